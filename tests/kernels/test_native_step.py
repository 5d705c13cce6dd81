"""A step in C gives what torch gives, and torch takes over where there is no C."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.reference import ReferenceAttention
from callboard.kernels.kv_pool import KVPool
from callboard.kernels.native.build import load_library
from callboard.models.config import ModelConfig
from callboard.models.decoder import Decoder
from callboard.models.rope import Rope

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALLBOARD_NATIVE", raising=False)
    if load_library("step") is None:
        pytest.skip("native code cannot be compiled here")


@dataclass
class Step:
    """What one step computed: hidden states, logits and the pool it wrote to."""

    hidden_TC: Tensor
    logits_TV: Tensor
    pool: KVPool


def build(
    seed: int, heads: int, kv_heads: int, head_dim: int, hidden: int, intermediate: int, *, half: bool = False
) -> Decoder:
    """Build a random Llama of two layers; `half` rounds its weights to bfloat16."""
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        layers=2,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        intermediate=intermediate,
        vocabulary=101,
        context_length=512,
        norm_epsilon=1e-5,
        rope=Rope(context_length=512),
    )
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for parameter in Decoder.parameters(config):
        shapes = [source.shape for source in parameter.sources]
        shape = (sum(one[0] for one in shapes), *shapes[0][1:])
        weight = torch.randn(shape, generator=generator) * (0.5 if len(shape) == 1 else shape[-1] ** -0.5)
        weight = weight.bfloat16().float() if half else weight
        weights[parameter.name] = weight.t().contiguous() if parameter.transposed else weight
    return Decoder(config, weights)


def draw(
    config: ModelConfig, seed: int, lengths: list[int], queries: list[int] | None = None
) -> tuple[KVPool, AttentionBatch]:
    """Draw a pool of random entries and rows that share prefixes, their slots shuffled.

    queries: how many of a row's tokens are new; one each unless given.
    """
    queries = queries or [1] * len(lengths)
    generator, rows, longest = random.Random(seed), len(lengths), max(lengths)
    slots = longest + rows * 20 + sum(queries) + 5
    pool = KVPool(
        layers=2, slots=slots, kv_heads=config.kv_heads, head_dim=config.head_dim, dtype=torch.float32, device=CPU
    )
    for layer, entries in enumerate(pool.entries):
        entries.normal_(generator=torch.Generator().manual_seed(seed + layer))
    free = generator.sample(range(slots), slots)
    trunk = [free.pop() for _ in range(longest)]
    # Behind a row's length stands rubbish: nothing may look at it.
    table_RL = torch.full((rows, longest + 2), -(10**9), dtype=torch.int32)
    for row, (length, new) in enumerate(zip(lengths, queries, strict=True)):
        own = new + generator.randrange(0, min(20, length - new) + 1)
        table_RL[row, :length] = torch.tensor(trunk[: length - own] + [free.pop() for _ in range(own)])
    positions = [range(length - new, length) for length, new in zip(lengths, queries, strict=True)]
    slots_T = torch.cat([table_RL[row, list(places)] for row, places in enumerate(positions)]).long()
    positions_T = torch.tensor([place for places in positions for place in places])
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    return pool, AttentionBatch(starts, queries, lengths, table_RL, slots_T, positions_T)


@torch.inference_mode()
def run(
    model: Decoder,
    seed: int,
    lengths: list[int],
    queries: list[int] | None = None,
    *,
    native: bool,
    poisoned: int | None = None,
    wanted: list[int] | None = None,
) -> Step:
    """Run one step of random tokens; token `poisoned` brings a NaN, of its own and in its slot."""
    config = model.config
    pool, batch = draw(config, seed, lengths, queries)
    tokens_T = torch.randint(0, 100, (len(batch.slots_T),), generator=torch.Generator().manual_seed(seed))
    if poisoned is not None:
        pool.entries[0][batch.slots_T[poisoned]] = float("nan")
        model.embedding_VC[100] = float("nan")
        tokens_T[poisoned] = 100
    attention = ReferenceAttention(config.heads, config.kv_heads, config.head_dim)
    plan = attention.plan(batch)
    kept = model.native
    assert kept is not None
    assert kept.takes(pool, plan)
    model.native = kept if native else None
    wanted_N = None if wanted is None else torch.tensor(wanted)
    hidden_TC = model.forward(tokens_T, batch.positions_T, batch.slots_T, pool, attention, plan, wanted_N)
    logits_TV = model.logits(hidden_TC)
    model.native = kept
    return Step(hidden_TC, logits_TV, pool)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.nan_to_num().abs().max()))


def both_agree(model: Decoder, seed: int, lengths: list[int], queries: list[int] | None = None) -> None:
    ours = run(model, seed, lengths, queries, native=True)
    theirs = run(model, seed, lengths, queries, native=False)
    close(ours.hidden_TC, theirs.hidden_TC)
    close(ours.logits_TV, theirs.logits_TV)
    for own, other in zip(ours.pool.entries, theirs.pool.entries, strict=True):
        close(own, other)


SHAPES = [
    # heads, kv_heads, head_dim, hidden, intermediate
    (4, 4, 8, 32, 48),
    (6, 2, 16, 40, 30),
    (5, 1, 24, 50, 77),
    (10, 2, 32, 320, 896),
    (3, 3, 40, 33, 17),
    (4, 2, 64, 70, 100),
]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_computes_what_torch_computes(shape: tuple[int, int, int, int, int], half: bool) -> None:
    model = build(3, *shape, half=half)
    generator = random.Random(repr(shape))
    for rows in (1, 2, 3, 5, 6, 7, 13, 32, 40):
        lengths = [generator.randint(1, 300) for _ in range(rows)]
        both_agree(model, rows, lengths)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_that_extend_and_rows_that_decode_share_a_step(shape: tuple[int, int, int, int, int], half: bool) -> None:
    model = build(4, *shape, half=half)
    generator = random.Random(repr(shape))
    for extending, decoding in ((1, 0), (1, 1), (3, 0), (2, 9), (7, 20)):
        queries = [generator.randint(1, 30) for _ in range(extending)] + [1] * decoding
        both_agree(model, extending, [new + generator.choice((0, 1, 40, 200)) for new in queries], queries)


@pytest.mark.parametrize("new", [47, 48, 49, 96, 97, 150])
def test_a_long_prompt_is_multiplied_in_blocks(new: int) -> None:
    model = build(6, 6, 2, 16, 40, 30)
    both_agree(model, new, [new], [new])
    both_agree(model, new, [9, new + 30, 70], [1, new, 1])


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [1, 300], [64, 65, 63, 128]], ids=str)
def test_lengths_at_the_edges_of_blocks(lengths: list[int]) -> None:
    model = build(5, 10, 2, 32, 64, 80)
    both_agree(model, 1, lengths)


def test_a_table_may_hold_int64() -> None:
    model = build(5, 4, 2, 16, 64, 80)
    pool, batch = draw(model.config, 2, [20, 30])
    wide = AttentionBatch(
        batch.query_starts_R1,
        batch.query_lengths,
        batch.lengths,
        batch.table_RL.long(),
        batch.slots_T,
        batch.positions_T,
    )
    attention = ReferenceAttention(4, 2, 16)
    results: list[Tensor] = []
    with torch.inference_mode():
        for one in (batch, wide):
            plan = attention.plan(one)
            results.append(model.forward(torch.tensor([1, 2]), one.positions_T, one.slots_T, pool, attention, plan))
    assert torch.equal(*results)


def test_a_nan_stays_in_its_row() -> None:
    model, lengths = build(7, 6, 2, 16, 40, 30), [30] * 8
    clean = run(model, 4, lengths, native=True)
    poisoned = run(model, 4, lengths, native=True, poisoned=3)
    others = [0, 1, 2, 4, 5, 6, 7]
    assert poisoned.logits_TV[3].isnan().all()
    assert torch.equal(poisoned.logits_TV[others], clean.logits_TV[others])


def test_a_nan_reaches_no_token_before_it_and_no_other_row() -> None:
    model, lengths, queries = build(7, 6, 2, 16, 40, 30), [30, 12, 40], [5, 12, 1]
    clean = run(model, 4, lengths, queries, native=True)
    poisoned = run(model, 4, lengths, queries, native=True, poisoned=9)
    assert poisoned.logits_TV[9:17].isnan().all()
    others = [*range(9), 17]
    assert torch.equal(poisoned.logits_TV[others], clean.logits_TV[others])


@pytest.mark.parametrize("slot", [-1, 10**6])
def test_a_slot_that_does_not_exist_is_refused_before_anything_is_computed(slot: int) -> None:
    model = build(5, 4, 2, 16, 64, 80)
    pool, batch = draw(model.config, 2, [20, 30], [4, 1])
    before = [entries.clone() for entries in pool.entries]
    batch.table_RL[0, 17] = slot  # the second new token's, which it and those behind it see
    attention = ReferenceAttention(4, 2, 16)
    plan, tokens_T = attention.plan(batch), torch.arange(5)
    with torch.inference_mode(), pytest.raises(IndexError, match="slot"):
        model.forward(tokens_T, batch.positions_T, batch.slots_T, pool, attention, plan)
    assert all(torch.equal(entries, one) for entries, one in zip(pool.entries, before, strict=True))


def test_a_pool_in_half_precision_is_left_to_torch() -> None:
    model = build(5, 4, 2, 16, 64, 80)
    _, batch = draw(model.config, 2, [20])
    pool = KVPool(layers=2, slots=64, kv_heads=2, head_dim=16, dtype=torch.bfloat16, device=CPU)
    assert model.native is not None
    assert not model.native.takes(pool, ReferenceAttention(4, 2, 16).plan(batch))


def test_without_a_compiler_torch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert load_library("step") is None
    assert build(1, 4, 2, 16, 64, 80).native is None


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_NATIVE", "0")
    assert build(1, 4, 2, 16, 64, 80).native is None


def test_the_library_is_compiled_once_into_a_private_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_library("step") is not None
    folder = tmp_path / "callboard" / "native"
    (library,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    written = library.stat().st_mtime_ns
    assert load_library("step") is not None
    assert library.stat().st_mtime_ns == written
    folder.chmod(0o777)
    assert load_library("step") is None


@pytest.mark.parametrize("wanted", [[0], [3, 4, 20], [20], list(range(21))])
def test_only_wanted_tokens_leave_the_last_layer(wanted: list[int]) -> None:
    model = build(7, 4, 2, 32, 96, 80)
    lengths, queries = [30, 9, 12], [12, 1, 8]
    some = run(model, 7, lengths, queries, native=True, wanted=wanted)
    every = run(model, 7, lengths, queries, native=True)
    close(some.hidden_TC, every.hidden_TC[wanted])
    close(some.logits_TV, every.logits_TV[wanted])
    for own, other in zip(some.pool.entries, every.pool.entries, strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("wanted", [[5], [-1], [2, 1], [1, 1]])
def test_wanted_tokens_are_in_the_step_and_in_order(wanted: list[int]) -> None:
    with pytest.raises(IndexError, match="token"):
        run(build(7, 4, 2, 32, 96, 80), 7, [9], [5], native=True, wanted=wanted)
