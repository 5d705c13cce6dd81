"""Attention that does not depend on the batch: right, and the same bits for a token in any chunk, batch and part."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ..triton_device import DEVICE, GPU

pytest.importorskip("triton")

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.invariant_attention import InvariantAttention, InvariantTuning
from callboard.kernels.kv_pool import KVPool

from .triton_cases import MIXED, Case, draw, wanted

# Small blocks, so that short rows have several parts and blocks; few programs, and many.
SMALL = InvariantTuning(keys=16, part=32, lines=64, programs=1)
SPREAD = InvariantTuning(keys=16, part=32, lines=64, programs=64)


@pytest.fixture(autouse=True)
def one_order_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply as tensor cores do: an element's sum does not depend on where in a tile it lies.

    numpy's product of matrices is a library's, which takes the last lines of a matrix another way.
    """
    if GPU:
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        product = np.zeros(d.data.shape, np.float32)
        for i in range(a.data.shape[1]):
            product += a.data[:, i, None] * b.data[None, i, :]
        return TensorHandle(product + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def attend(case: Case, shape: tuple[int, int, int], tuning: InvariantTuning, **options: Any) -> Tensor:
    attention = InvariantAttention(*shape, device=DEVICE, dtype=case.q_THD.dtype, tuning=tuning, **options)
    return attention.attend(case.q_THD, 0, case.pool, attention.plan(case.batch))


@pytest.mark.parametrize("tuning", [SMALL, SPREAD], ids=["one", "several"])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4, 2, 16), {}),
        ((6, 2, 24), {"windows": (20,)}),
        ((7, 1, 64), {"windows": (1,)}),
        ((4, 4, 8), {"soft_cap": 5.0}),
    ],
    ids=str,
)
def test_it_attends_as_float64_does(
    shape: tuple[int, int, int], options: dict[str, Any], tuning: InvariantTuning
) -> None:
    case = draw(MIXED, shape)
    expected = wanted(case, shape[2] ** -0.5, options.get("windows", (None,))[0], options.get("soft_cap"))
    torch.testing.assert_close(attend(case, shape, tuning, **options).double(), expected, rtol=0, atol=2e-5)


class Row:
    """One row's keys in a pool among others', and its queries, attended to in chunks beside strangers."""

    def __init__(self, shape: tuple[int, int, int], length: int, dtype: torch.dtype) -> None:
        self.shape, self.length, self.dtype = shape, length, dtype
        heads, kv_heads, head_dim = shape
        slots = 4 * length
        self.pool = KVPool(layers=1, slots=slots, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=DEVICE)
        self.pool.entries[0].normal_()
        self.q_THD = torch.randn(length, heads, head_dim, device=DEVICE).to(dtype)
        self.table_RL = torch.stack([torch.randperm(slots)[: length + 40] for _ in range(4)]).to(torch.int32)

    def attend(
        self, attention: InvariantAttention, begin: int, end: int, strangers: list[tuple[int, int]], *, decodes: bool
    ) -> Tensor:
        """Attend tokens [begin, end) of the row beside strangers of (queries, keys); as decoding row if it decodes."""
        extending = [each for each in strangers if each[0] > 1]
        decoding = [each for each in strangers if each[0] == 1]
        mine = (end - begin, end)
        rows = [*extending, *([] if decodes else [mine]), *decoding, *([mine] if decodes else [])]
        place = rows.index(mine) if not decodes else len(rows) - 1
        lines = [1, 2, 3, 1][: len(rows) - 1]
        lines.insert(place, 0)
        queries, lengths = [row[0] for row in rows], [row[1] for row in rows]
        starts = torch.tensor([0, *np.cumsum(queries).tolist()], dtype=torch.int32)
        q_THD = torch.randn(sum(queries), *self.q_THD.shape[1:], device=DEVICE).to(self.dtype)
        first = int(starts[place])
        q_THD[first : first + end - begin] = self.q_THD[begin:end]
        nothing = torch.zeros(0, dtype=torch.int64, device=DEVICE)
        batch = AttentionBatch(
            starts,
            queries,
            lengths,
            self.table_RL.to(DEVICE),
            nothing,
            nothing,
            rows_R=torch.tensor(lines, dtype=torch.int32, device=DEVICE),
            lengths_R=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
            starts_R1=starts.to(DEVICE),
            extends=len(extending) + (not decodes),
        )
        return attention.attend(q_THD, 0, self.pool, attention.plan(batch))[first : first + end - begin]

    def check(self, tunings: list[InvariantTuning], trials: int, options: dict[str, Any]) -> None:
        """Attend the row in many ways; every token must get the bits that it gets alone and whole."""
        made = [
            InvariantAttention(*self.shape, device=DEVICE, dtype=self.dtype, tuning=each, **options) for each in tunings
        ]
        whole = self.attend(made[0], 0, self.length, [], decodes=False)
        assert not whole.isnan().any()
        generator = random.Random(0)
        for _ in range(trials):
            attention = generator.choice(made)
            strangers = [
                (generator.choice([1, 1, 5, 30]), generator.randrange(30, self.length))
                for _ in range(generator.randrange(4))
            ]
            begin = generator.randrange(self.length)
            decodes = generator.random() < 0.5
            end = begin + 1 if decodes else generator.randrange(begin + 1, self.length + 1)
            given = self.attend(attention, begin, end, strangers, decodes=decodes)
            assert torch.equal(given, whole[begin:end]), (begin, end, decodes, strangers, attention.tuning)


@pytest.mark.parametrize("options", [{}, {"windows": (20,)}], ids=str)
def test_a_token_has_the_same_bits_in_any_chunk_and_any_batch(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    Row((4, 2, 16), 72, torch.float32).check([SMALL, SPREAD], 6, options)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("options", [{}, {"windows": (700,)}, {"soft_cap": 20.0}], ids=str)
@pytest.mark.parametrize("shape", [(32, 8, 128), (16, 8, 128), (14, 2, 64), (8, 8, 96)], ids=str)
def test_real_shapes_have_the_same_bits_in_any_chunk_and_any_batch(
    shape: tuple[int, int, int], options: dict[str, Any]
) -> None:
    torch.manual_seed(2)
    tunings = [
        InvariantTuning(),
        InvariantTuning(programs=1),
        InvariantTuning(lines=64, warps=4, stages=2, single_stages=2),
    ]
    Row(shape, 3000, torch.bfloat16).check(tunings, 50, options)
    Row(shape, 900, torch.bfloat16).check(tunings, 50, options)


def test_what_would_not_fit_together_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="part is 100; it must be a multiple of keys"):
        InvariantTuning(part=100)
    with pytest.raises(ValueError, match="lines is 32; it must be a power of two, at least 64"):
        InvariantTuning(lines=32)
    with pytest.raises(ValueError, match="heads is 3; it must be a multiple of kv_heads"):
        InvariantAttention(3, 2, 16, device=DEVICE, dtype=torch.float32)
