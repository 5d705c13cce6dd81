"""Time products of few tokens beside cuBLAS, inside CUDA graphs, over more copies of the weight than the cache holds.

    python bench/kernels/skinny.py [--only 0.6B] [--sweep]

`mm` is torch's product alone; `apart` is what the kernel replaces: norm, product, sum or gate as kernels of their own.
The first table tells up to how many tokens the kernel wins; --sweep adds one of which tuning is best, best first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

import torch
from graphs import COPY_RATE, copies_for, time_us, write
from torch import Tensor

from callboard.kernels.activation import silu_and_multiply_
from callboard.kernels.norm import rms_norm
from callboard.kernels.skinny import Tuning, skinny_linear

TOKENS = (1, 2, 4, 8, 16)
EPSILON = 1e-6


@dataclass(frozen=True)
class Shape:
    """One product of a layer: outputs x inputs, what stands before it and what behind."""

    name: str
    outputs: int
    inputs: int
    normed: bool = False
    gated: bool = False
    added: bool = False


SHAPES = [
    Shape("8B qkv", 6144, 4096, normed=True),
    Shape("8B output", 4096, 4096, added=True),
    Shape("8B gate up", 28672, 4096, normed=True, gated=True),
    Shape("8B down", 4096, 14336, added=True),
    Shape("8B head", 128256, 4096, normed=True),
    Shape("0.6B qkv", 4096, 1024, normed=True),
    Shape("0.6B output", 1024, 2048, added=True),
    Shape("0.6B gate up", 6144, 1024, normed=True, gated=True),
    Shape("0.6B down", 1024, 3072, added=True),
    Shape("0.6B head", 151936, 1024, normed=True),
]


class Work:
    """A shape's tensors on the device, the weight as often as it takes to leave the cache."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape

        def random(*size: int) -> Tensor:
            return torch.randn(*size, dtype=torch.bfloat16, device=device)

        self.size_bytes = 2 * shape.outputs * shape.inputs
        weights = [random(shape.outputs, shape.inputs) for _ in range(copies_for(self.size_bytes))]
        self.weights = [weight.mul_(shape.inputs**-0.5).t() for weight in weights]
        self.x = {tokens: random(tokens, shape.inputs) for tokens in TOKENS}
        self.residual = {tokens: random(tokens, shape.outputs) for tokens in TOKENS}
        self.norm = random(shape.inputs)

    def ours(self, tokens: int, weight: Tensor, tuning: Tuning | None = None, residual: Tensor | None = None) -> Tensor:
        return skinny_linear(
            self.x[tokens],
            weight,
            norm_I=self.norm if self.shape.normed else None,
            epsilon=EPSILON,
            residual_TO=(self.residual[tokens] if residual is None else residual) if self.shape.added else None,
            gated=self.shape.gated,
            tuning=tuning,
        )

    def apart(self, tokens: int, weight: Tensor) -> Tensor:
        x = rms_norm(self.x[tokens], self.norm, EPSILON) if self.shape.normed else self.x[tokens]
        if self.shape.added:
            return self.residual[tokens].addmm_(x, weight)
        product = torch.mm(x, weight)
        return silu_and_multiply_(product) if self.shape.gated else product

    def check(self, tokens: int, tuning: Tuning) -> None:
        """Compare with float32 on the same inputs; wrong results are not timed."""
        x, weight = self.x[tokens].float(), self.weights[0].float()
        if self.shape.normed:
            x = torch.nn.functional.rms_norm(x, self.norm.shape, self.norm.float(), EPSILON)
        wanted = x @ weight
        if self.shape.gated:
            gate, up = wanted.chunk(2, -1)
            wanted = torch.nn.functional.silu(gate) * up
        residual = torch.zeros_like(self.residual[tokens])
        given = self.ours(tokens, self.weights[0], tuning, residual).float()
        error = float((given - wanted).norm() / wanted.norm())
        if not error < 2e-2:
            raise RuntimeError(f"{self.shape.name}, {tokens} tokens, {tuning}: the relative error is {error}")

    def time(self, call: Callable[[Tensor], Tensor]) -> float:
        return time_us([lambda weight=weight: call(weight) for weight in self.weights])

    def default(self, tokens: int) -> Tuning:
        return Tuning.of(tokens, self.shape.inputs, self.shape.outputs, gated=self.shape.gated)

    def tunings(self, tokens: int) -> list[Tuning]:
        """List what the sweep tries: the default, what lies around it, and each launched early."""
        halves = 2 if self.shape.gated else 1
        cores = [
            Tuning(max(16, rows) // halves, inputs, warps, stages=stages)
            for rows, inputs, warps, stages in ((16, 256, 2, 6), (32, 256, 4, 4), (32, 128, 4, 8), (64, 128, 4, 6))
        ]
        threads = [
            Tuning(max(1, rows // halves), inputs, warps, tensor_cores=False)
            for rows, inputs, warps in (
                (4, 1024, 4), (8, 1024, 4), (16, 1024, 4), (4, 2048, 4), (8, 2048, 8), (2, 4096, 8), (4, 4096, 8),
            )
        ]  # fmt: skip
        tried = [*(threads if tokens == 1 else []), *cores[1 if tokens == 1 else 0 :]]
        default = self.default(tokens)
        tried = [tuning for tuning in tried if tuning.block_inputs < 2 * self.shape.inputs]
        return list(dict.fromkeys([default, replace(default, dependent=True), *tried]))


def compare(work: Work, tokens: int) -> dict[str, object]:
    """Time one product three ways."""
    work.check(tokens, work.default(tokens))
    ours = work.time(lambda weight: work.ours(tokens, weight))
    mm = work.time(lambda weight: torch.mm(work.x[tokens], weight))
    apart = work.time(lambda weight: work.apart(tokens, weight))
    limit = work.size_bytes / COPY_RATE * 1e6
    shape = f"{work.shape.outputs} x {work.shape.inputs}"
    return {
        "product": work.shape.name,
        "shape": shape,
        "tokens": tokens,
        "us": ours,
        "mm_us": mm,
        "apart_us": apart,
        "limit_us": limit,
    }


def sweep(work: Work, tokens: int) -> list[dict[str, object]]:
    """Time every tuning, best first."""
    rows: list[dict[str, object]] = []
    for tuning in work.tunings(tokens):
        work.check(tokens, tuning)
        us = work.time(lambda weight, tuning=tuning: work.ours(tokens, weight, tuning))
        rows.append(
            {
                "product": work.shape.name,
                "tokens": tokens,
                "us": us,
                "default": tuning == work.default(tokens),
                **asdict(tuning),
            }
        )
    return sorted(rows, key=lambda row: float(str(row["us"])))


def compile_all(work: Work, wanted: list[tuple[int, Tuning]]) -> None:
    """Run each once, side by side: compilers wait for other programs most of the time."""
    device = torch.cuda.current_device()
    with ThreadPoolExecutor(16, initializer=torch.cuda.set_device, initargs=(device,)) as pool:
        list(pool.map(lambda given: work.ours(given[0], work.weights[0], given[1]), dict.fromkeys(wanted)))


def main(device: torch.device, *, only: str = "", swept: bool = False) -> None:
    figures: list[dict[str, object]] = []
    tuned: list[dict[str, object]] = []
    print(
        f"{'product':<13}{'shape':>15}{'T':>4}{'us':>8}{'TB/s':>7}{'of limit':>9}{'mm':>8}{'apart':>8}{'apart/us':>9}"
    )
    for shape in (shape for shape in SHAPES if shape.name.startswith(only)):
        work = Work(shape, device)
        wanted = [(tokens, work.default(tokens)) for tokens in (1, 8)]
        if swept:
            wanted += [(tokens, tuning) for tokens in (1, 8) for tuning in work.tunings(tokens)]
        compile_all(work, wanted)
        for tokens in TOKENS:
            row = compare(work, tokens)
            us, limit, mm, apart = (float(str(row[key])) for key in ("us", "limit_us", "mm_us", "apart_us"))
            rate = work.size_bytes / us / 1e6
            print(
                f"{shape.name:<13}{row['shape']:>15}{tokens:>4}{us:>8.2f}{rate:>7.2f}{limit / us:>9.0%}{mm:>8.2f}"
                f"{apart:>8.2f}{apart / us:>9.2f}"
            )
            figures.append(row)
        if swept:
            tuned += [row for tokens in (1, 8) for row in sweep(work, tokens)]
    crossing(figures)
    if swept:
        print_tunings(tuned)
    write("skinny", figures + tuned)


def print_tunings(tuned: list[dict[str, object]]) -> None:
    columns = ("block_outputs", "block_inputs", "warps", "stages")
    print("\n* the default, e launched early, c tensor cores")
    print(f"{'product':<13}{'T':>4}{'us':>8}" + "".join(f"{column:>15}" for column in columns))
    for row in tuned:
        marks = "".join(mark for mark, key in (("*", "default"), ("e", "dependent"), ("c", "tensor_cores")) if row[key])
        values = "".join(f"{row[column]:>15}" for column in columns)
        print(f"{row['product']:<13}{row['tokens']:>4}{row['us']:>8.2f}{values} {marks}")


def crossing(figures: list[dict[str, object]]) -> None:
    """Print up to how many tokens each product is faster in one kernel than apart."""
    print("\nfaster in one kernel, up to tokens:")
    for name in dict.fromkeys(str(row["product"]) for row in figures):
        won = [row for row in figures if row["product"] == name and float(str(row["us"])) < float(str(row["apart_us"]))]
        print(f"{name:<13}{max((int(str(row['tokens'])) for row in won), default=0):>4}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="products whose name begins so: 8B, 0.6B, ...")
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    with torch.inference_mode():
        main(torch.device("cuda"), only=arguments.only, swept=arguments.sweep)
