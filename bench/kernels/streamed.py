"""Time products of few tokens, whose weights stream, beside cuBLAS, over more weights than the cache holds.

    python bench/kernels/streamed.py [--only 0.6B] [--sweep]

`mm` is torch's product alone; `apart` is what the kernel replaces: the product, and the sum or the gate behind it.  A
sum's parts are left to a norm, which is there either way; so `us` of a sum is without them being added up.
--sweep adds a table of the best tunings.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import torch
from graphs import COPY_RATE, write
from products import SHAPES, Shape, Work, compile_all
from torch import Tensor

from callboard.kernels.streamed import StreamTuning, stream_linear, stream_parts, streams

TOKENS = (2, 8, 32, 64, 128, 256)
MATMUL_RATE = 799e12
RINGS = (96 << 10, 192 << 10)


def bare(shape: Shape) -> Shape:
    """Leave out the norm before: it stays a kernel of its own."""
    return Shape(shape.name, shape.outputs, shape.inputs, gated=shape.gated, added=shape.added)


def ours(work: Work, tokens: int, weight: Tensor, tuning: StreamTuning | None = None) -> Tensor:
    if work.shape.added:
        return stream_parts(work.x[tokens], weight, tuning=tuning)
    return stream_linear(work.x[tokens], weight, gated=work.shape.gated, tuning=tuning)


def checked(work: Work, tokens: int, tuning: StreamTuning | None = None) -> StreamTuning | None:
    given = ours(work, tokens, work.weights[0], tuning)
    work.check(given.sum(0) if work.shape.added else given, tokens, tuning)
    return tuning


def tunings(shape: Shape, tokens: int) -> Iterator[StreamTuning]:
    """List what the sweep tries: those whose ring holds three stages and whose sums fit a thread's registers."""
    most = max(8, 1 << (tokens - 1).bit_length())
    blocks = itertools.product((64, 128), sorted({most, max(8, most // 2)}), (64, 128), (4, 8), RINGS)
    for block_outputs, block_tokens, block_inputs, warps, ring in blocks:
        stages = ring // (2 * (block_outputs + block_tokens) * block_inputs)
        if stages < 3 or warps * 16 > block_outputs or block_outputs * block_tokens > 128 * 32 * warps:
            continue
        programs = -(-shape.outputs // block_outputs)
        wanted = {1, max(1, 132 // programs), max(1, 264 // programs)} if shape.added else {1}
        for parts in wanted:
            if parts * block_inputs <= shape.inputs:
                yield StreamTuning(block_outputs, block_tokens, block_inputs, stages, parts, warps)


def sweep(work: Work, tokens: int) -> list[dict[str, object]]:
    """Time every tuning; the best four."""
    rows: list[dict[str, object]] = []
    tried = list(tunings(work.shape, tokens))
    compile_all([partial(ours, work, tokens, work.weights[0], tuning) for tuning in tried])
    for tuning in tried:
        us = work.time(partial(ours, work, tokens, tuning=checked(work, tokens, tuning)))
        rows.append({"product": work.shape.name, "tokens": tokens, "us": us, **asdict(tuning)})
    return sorted(rows, key=lambda row: float(str(row["us"])))[:4]


def main(device: torch.device, *, only: str = "", swept: bool = False) -> None:
    figures: list[dict[str, object]] = []
    tuned: list[dict[str, object]] = []
    print(f"{'product':<13}{'T':>4}{'us':>8}{'limit':>8}{'of limit':>9}{'mm':>8}{'apart':>8}{'apart/us':>9}")
    for shape in (bare(shape) for shape in SHAPES if shape.name.startswith(only) and "head" not in shape.name):
        work = Work(shape, TOKENS, device)
        compile_all([partial(ours, work, tokens, work.weights[0]) for tokens in TOKENS])
        for tokens in TOKENS:
            taken = streams(work.x[tokens], work.weights[0], divided=shape.added)
            checked(work, tokens)
            operations = tokens * work.size_bytes
            limit = 1e6 * max(work.size_bytes / COPY_RATE, operations / MATMUL_RATE)
            us, mm = work.time(partial(ours, work, tokens)), work.time(partial(torch.mm, work.x[tokens]))
            apart = work.time(partial(work.apart, tokens))
            print(
                f"{shape.name:<13}{tokens:>4}{us:>8.2f}{limit:>8.2f}{limit / us:>9.0%}{mm:>8.2f}{apart:>8.2f}"
                f"{apart / us:>9.2f}{'' if taken else '  left to cuBLAS'}"
            )
            timed = {"us": us, "mm_us": mm, "apart_us": apart, "limit_us": limit}
            figures.append({"product": shape.name, "tokens": tokens, "taken": taken, **timed})
            if swept:
                tuned += sweep(work, tokens)
    for row in tuned:
        print("  ".join(f"{name} {value:.2f}" if name == "us" else f"{name} {value}" for name, value in row.items()))
    write("streamed", figures + tuned)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="products whose name begins so: 8B, 0.6B, ...")
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    with torch.inference_mode():
        main(torch.device("cuda"), only=arguments.only, swept=arguments.sweep)
