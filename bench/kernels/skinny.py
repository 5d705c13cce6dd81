"""Time products of one token beside cuBLAS, inside CUDA graphs, over more copies of the weight than the cache holds.

    python bench/kernels/skinny.py [--only 0.6B] [--sweep]

`mm` is torch's product alone; `apart` is what the kernel replaces: norm, product, sum or gate as kernels of their own.
--sweep adds a table of which tuning is best, best first.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from functools import partial

import torch
from graphs import COPY_RATE, write
from products import EPSILON, SHAPES, Work, compile_all
from torch import Tensor

from callboard.kernels.skinny import SkinnyTuning, skinny_linear


def ours(work: Work, weight: Tensor, tuning: SkinnyTuning | None = None, residual: Tensor | None = None) -> Tensor:
    shape = work.shape
    return skinny_linear(
        work.x[1],
        weight,
        norm_I=work.norm if shape.normed else None,
        epsilon=EPSILON,
        residual_TO=(work.residual[1] if residual is None else residual) if shape.added else None,
        gated=shape.gated,
        tuning=tuning,
    )


def checked(work: Work, tuning: SkinnyTuning) -> SkinnyTuning:
    work.check(ours(work, work.weights[0], tuning, torch.zeros_like(work.residual[1])), 1, tuning)
    return tuning


def default(work: Work) -> SkinnyTuning:
    return SkinnyTuning.of(work.shape.inputs, work.shape.outputs, gated=work.shape.gated)


def tunings(work: Work) -> list[SkinnyTuning]:
    """List what the sweep tries: the default, the same launched late, and what lies around it."""
    halves = 2 if work.shape.gated else 1
    cuts = ((4, 1024, 4), (8, 1024, 4), (16, 1024, 4), (4, 2048, 4), (8, 2048, 8), (2, 4096, 8), (4, 4096, 8))
    tried = [SkinnyTuning(max(1, rows // halves), inputs, warps) for rows, inputs, warps in cuts]
    tried = [tuning for tuning in tried if tuning.block_inputs < 2 * work.shape.inputs]
    return list(dict.fromkeys([default(work), replace(default(work), dependent=False), *tried]))


def sweep(work: Work) -> list[dict[str, object]]:
    """Time every tuning, best first."""
    rows: list[dict[str, object]] = []
    for tuning in tunings(work):
        us = work.time(partial(ours, work, tuning=checked(work, tuning)))
        rows.append({"product": work.shape.name, "us": us, "default": tuning == default(work), **asdict(tuning)})
    return sorted(rows, key=lambda row: float(str(row["us"])))


def main(device: torch.device, *, only: str = "", swept: bool = False) -> None:
    figures: list[dict[str, object]] = []
    tuned: list[dict[str, object]] = []
    print(f"{'product':<13}{'shape':>15}{'us':>8}{'TB/s':>7}{'of limit':>9}{'mm':>8}{'apart':>8}{'apart/us':>9}")
    for shape in (shape for shape in SHAPES if shape.name.startswith(only)):
        work = Work(shape, (1,), device)
        compile_all(
            [partial(ours, work, work.weights[0], each) for each in (tunings(work) if swept else [default(work)])]
        )
        checked(work, default(work))
        us, limit = work.time(partial(ours, work)), work.size_bytes / COPY_RATE * 1e6
        mm, apart = work.time(partial(torch.mm, work.x[1])), work.time(partial(work.apart, 1))
        size = f"{shape.outputs} x {shape.inputs}"
        print(
            f"{shape.name:<13}{size:>15}{us:>8.2f}{work.size_bytes / us / 1e6:>7.2f}{limit / us:>9.0%}{mm:>8.2f}"
            f"{apart:>8.2f}{apart / us:>9.2f}"
        )
        timed = {"us": us, "mm_us": mm, "apart_us": apart, "limit_us": limit}
        figures.append({"product": shape.name, "shape": size, **timed})
        if swept:
            tuned += sweep(work)
    if swept:
        print_tunings(tuned)
    write("skinny", figures + tuned)


def print_tunings(tuned: list[dict[str, object]]) -> None:
    columns = ("block_outputs", "block_inputs", "warps")
    print("\n* the default, e launched early")
    print(f"{'product':<13}{'us':>8}" + "".join(f"{column:>15}" for column in columns))
    for row in tuned:
        marks = "".join(mark for mark, key in (("*", "default"), ("e", "dependent")) if row[key])
        values = "".join(f"{row[column]:>15}" for column in columns)
        print(f"{row['product']:<13}{row['us']:>8.2f}{values} {marks}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="products whose name begins so: 8B, 0.6B, ...")
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    with torch.inference_mode():
        main(torch.device("cuda"), only=arguments.only, swept=arguments.sweep)
