"""Time the fused kernels around the products beside torch's own and beside the bytes they must move.

    python bench/kernels/elementwise.py

Each runs inside a CUDA graph, over several sets of tensors where they would else stay in the cache.  At one token all
are bound by the launch, some 2 us; at 8192 by bytes over the copy rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from graphs import COPY_RATE, copies_for, time_us, write
from torch import Tensor
from torch.nn import functional

from callboard.kernels.activation import silu_and_multiply_
from callboard.kernels.embedding import embed_rows
from callboard.kernels.fused import rope as fused_rope
from callboard.kernels.norm import add_rms_norm_, rms_norm
from callboard.kernels.rope import rotate_, rotate_and_store_

TOKENS = (1, 64, 256, 8192)
KV_HEADS, HEAD_DIM, CONTEXT, SLOTS = 8, 128, 8192, 65536
EPSILON = 1e-6


@dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    head_norm: bool


MODELS = [
    Model("8B", 4096, 32, 14336, 128256, head_norm=False),
    Model("0.6B", 1024, 16, 3072, 151936, head_norm=True),
]


@dataclass(frozen=True)
class Case:
    """A kernel at one size: the bytes it must move, and makers of a call of ours and of torch's."""

    kernel: str
    size_bytes: int
    ours: Callable[[], Callable[[], object]]
    torchs: Callable[[], Callable[[], object]]


class Cases:
    def __init__(self, model: Model, tokens: int, device: torch.device) -> None:
        self.model, self.tokens, self.device = model, tokens, device
        self.norm = self.random(model.hidden)
        self.head_norm = self.random(HEAD_DIM)
        angles = torch.randn(CONTEXT, HEAD_DIM // 2, device=device)
        self.rotations = torch.polar(torch.ones_like(angles), angles)
        self.positions = torch.randint(CONTEXT, (tokens,), device=device)
        self.slots = torch.randperm(SLOTS, device=device)[:tokens]
        self.entries = torch.zeros(SLOTS + 1, KV_HEADS * 2 * HEAD_DIM, dtype=torch.bfloat16, device=device)
        self.embedding = self.random(model.vocabulary, model.hidden)
        self.last_tokens = torch.randint(model.vocabulary, (tokens,), device=device)
        self.rows = torch.randperm(tokens, device=device)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=self.device)

    def all(self) -> list[Case]:
        T, C, F = self.tokens, self.model.hidden, self.model.intermediate
        heads = self.model.heads + 2 * KV_HEADS
        # Of a row of qkv all is read; queries are written back, keys and values into the pool.
        return [
            Case("norm", 2 * 2 * T * C, self.norm_case(ours=True), self.norm_case(ours=False)),
            Case("add, norm", 4 * 2 * T * C, self.add_case(ours=True), self.add_case(ours=False)),
            Case("rotate, store", 2 * 2 * T * heads * HEAD_DIM, self.rope_case(ours=True), self.rope_case(ours=False)),
            Case("silu, multiply", 3 * 2 * T * F, self.silu_case(ours=True), self.silu_case(ours=False)),
            Case("embed", 2 * 2 * T * C, self.embed_case(ours=True), self.embed_case(ours=False)),
        ]

    def norm_case(self, *, ours: bool) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            x = self.random(self.tokens, self.model.hidden)
            if ours:
                return lambda: rms_norm(x, self.norm, EPSILON)
            return lambda: functional.rms_norm(x, self.norm.shape, self.norm, EPSILON)

        return make

    def add_case(self, *, ours: bool) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            x = self.random(self.tokens, self.model.hidden)
            parts = self.random(1, self.tokens, self.model.hidden).float()
            if ours:
                return lambda: add_rms_norm_(x, parts, self.norm, EPSILON)
            return lambda: functional.rms_norm(x.add_(parts[0]), self.norm.shape, self.norm, EPSILON)

        return make

    def silu_case(self, *, ours: bool) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            x = self.random(self.tokens, 2 * self.model.intermediate)
            gate, up = x.chunk(2, -1)
            return (lambda: silu_and_multiply_(x)) if ours else (lambda: functional.silu(gate) * up)

        return make

    def embed_case(self, *, ours: bool) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            if ours:
                return lambda: embed_rows(self.embedding, self.last_tokens, self.rows)
            return lambda: functional.embedding(self.last_tokens.index_select(0, self.rows), self.embedding)

        return make

    def rope_case(self, *, ours: bool, tuning: fused_rope.Tuning | None = None) -> Callable[[], Callable[[], object]]:
        H, K = self.model.heads, KV_HEADS
        norms = (self.head_norm, self.head_norm) if self.model.head_norm else (None, None)

        def torchs(qkv: Tensor) -> None:
            if self.model.head_norm:
                for part in (qkv[:, :H], qkv[:, H : H + K]):
                    part.copy_(functional.rms_norm(part, self.head_norm.shape, self.head_norm, EPSILON))
            rotate_(qkv[:, : H + K], self.rotations.index_select(0, self.positions))
            by_kind = self.entries.view(-1, K, 2, HEAD_DIM).transpose(1, 2)
            by_kind.index_copy_(0, self.slots, qkv[:, H:].unflatten(1, (2, K)))

        def make() -> Callable[[], object]:
            qkv = self.random(self.tokens, H + 2 * K, HEAD_DIM)
            where = (self.rotations, self.positions, self.slots, self.entries, H, K, *norms, EPSILON)
            if tuning is not None:
                return lambda: fused_rope.rotate_and_store_(qkv, *where, tuning)
            return (lambda: rotate_and_store_(qkv, *where)) if ours else (lambda: torchs(qkv))

        return make


def timed(case: Case, make: Callable[[], Callable[[], object]]) -> float:
    return time_us([make() for _ in range(copies_for(case.size_bytes, most=16))])


def main(device: torch.device) -> None:
    figures: list[dict[str, object]] = []
    print(f"{'model':<6}{'kernel':<16}{'T':>6}{'us':>9}{'TB/s':>7}{'of limit':>9}{'torch us':>10}{'ratio':>7}")
    for model in MODELS:
        for tokens in TOKENS:
            cases = Cases(model, tokens, device)
            for case in cases.all():
                us, torch_us = timed(case, case.ours), timed(case, case.torchs)
                rate = case.size_bytes / us / 1e6
                print(
                    f"{model.name:<6}{case.kernel:<16}{tokens:>6}{us:>9.2f}{rate:>7.2f}{rate / COPY_RATE * 1e12:>9.0%}"
                    f"{torch_us:>10.2f}{torch_us / us:>7.2f}"
                )
                figures.append(
                    {
                        "model": model.name,
                        "kernel": case.kernel,
                        "tokens": tokens,
                        "us": us,
                        "torch_us": torch_us,
                        "limit_us": case.size_bytes / COPY_RATE * 1e6,
                    }
                )
    figures += sweep(device)
    write("elementwise", figures)


def sweep(device: torch.device) -> list[dict[str, object]]:
    """Time the rotation by heads a program and warps, best first."""
    rows: list[dict[str, object]] = []
    for tokens in (1, 256, 8192):
        cases = Cases(MODELS[0], tokens, device)
        for heads in (1, 2, 4, 8, 16):
            for warps in (1, 2, 4):
                make = cases.rope_case(ours=True, tuning=fused_rope.Tuning(heads, heads, warps=warps))
                us = time_us([make() for _ in range(2)])
                rows.append({"kernel": "rotate, store", "tokens": tokens, "heads": heads, "warps": warps, "us": us})
    rows.sort(key=lambda row: (int(str(row["tokens"])), float(str(row["us"]))))
    print("\nrotate, store, 8B: heads a program and warps, best first")
    for tokens in (1, 256, 8192):
        best = [row for row in rows if row["tokens"] == tokens][:6]
        print(
            f"{tokens:>6} tokens: " + ", ".join(f"{row['heads']} / {row['warps']} {row['us']:.2f} us" for row in best)
        )
    return rows


if __name__ == "__main__":
    with torch.inference_mode():
        main(torch.device("cuda"))
