"""Time products that do not depend on the batch beside torch's, inside CUDA graphs, the weights not in the cache.

    python bench/kernels/invariant.py [--only 4096x4096] [--sweep]

First it is checked that no tile changes a bit: without that the figures mean nothing.  --sweep tries tunings.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import torch
from graphs import COPY_RATE, copies_for, time_us, write
from torch import Tensor

from callboard.kernels.invariant import Tuning, invariant_linear

MATMUL_RATE = 799e12  # bf16 operations a second that an H200 does
TOKENS = (1, 16, 64, 128, 256, 8192)
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # outputs x inputs
SWEPT = (16, 64, 256, 8192)


class Work:
    """A weight on the device, as often as it takes to leave the cache, and tokens to multiply by it."""

    def __init__(self, outputs: int, inputs: int, device: torch.device) -> None:
        self.outputs, self.inputs, self.size_bytes = outputs, inputs, 2 * outputs * inputs
        self.name = f"{outputs}x{inputs}"

        def random(*size: int) -> Tensor:
            return torch.randn(*size, dtype=torch.bfloat16, device=device)

        count = copies_for(self.size_bytes, 8)
        self.weights = [random(outputs, inputs).mul_(inputs**-0.5).t() for _ in range(count)]
        self.x_TI = random(max(TOKENS), inputs)

    def ours(self, tokens: int, tuning: Tuning | None = None) -> Callable[[Tensor], Tensor]:
        return lambda weight: invariant_linear(self.x_TI[:tokens], weight, tuning=tuning)

    def time(self, tokens: int, call: Callable[[Tensor], Tensor]) -> float:
        weights = self.weights if tokens <= 256 else self.weights[:2]
        calls = [lambda weight=weight: call(weight) for weight in weights]
        return time_us(calls, 15 if tokens <= 256 else 5)

    def limit_us(self, tokens: int) -> float:
        moved = self.size_bytes + 2 * tokens * (self.inputs + self.outputs)
        return max(moved / COPY_RATE, 2 * tokens * self.inputs * self.outputs / MATMUL_RATE) * 1e6

    def check(self) -> None:
        """Compare every count with the most, and that with float32."""
        whole = self.ours(max(TOKENS))(self.weights[0])
        wanted = self.x_TI[:256].float() @ self.weights[0].float()
        error = float((whole[:256].float() - wanted).norm() / wanted.norm())
        if not error < 1e-2:
            raise RuntimeError(f"{self.name}: the relative error is {error}")
        for tokens in TOKENS:
            for tuning in (None, *tunings(tokens)):
                if not torch.equal(self.ours(tokens, tuning)(self.weights[0]), whole[:tokens]):
                    raise RuntimeError(f"{self.name}: {tokens} tokens have other bits by {tuning}")


def tunings(tokens: int) -> list[Tuning]:
    """List what the sweep tries."""
    if tokens <= 64:
        return [
            Tuning(64, 32, 128, stages=4),
            Tuning(64, 32, 128, stages=8),
            Tuning(64, 32, 128, stages=6, descriptors=False),
            Tuning(64, 64, 128, stages=6),
            Tuning(64, 64, 64, stages=8),
            Tuning(64, 128, 64, stages=4),
            Tuning(64, 128, 64, stages=4, programs=132),
            Tuning(64, 256, 64, stages=4),
        ]
    if tokens <= 256:
        return [
            Tuning(64, 64, 128, stages=4),
            Tuning(64, 128, 128, stages=4),
            Tuning(64, 128, 64, stages=4),
            Tuning(128, 64, 128, stages=4),
            Tuning(128, 64, 64, stages=4, warps=8),
            Tuning(128, 128, 64, stages=4, warps=8),
            Tuning(128, 128, 64, stages=3, warps=8, descriptors=False),
            Tuning(128, 256, 64, stages=4, warps=8),
        ]
    return [
        Tuning(128, 256, 64, stages=3, warps=8),
        Tuning(128, 256, 64, stages=4, warps=8),
        Tuning(128, 256, 64, stages=3, warps=8, programs=132),
        Tuning(128, 256, 64, stages=3, warps=8, programs=132, group=16),
        Tuning(128, 256, 64, stages=3, warps=8, descriptors=False),
        Tuning(128, 128, 64, stages=4, warps=8),
        Tuning(128, 128, 64, stages=3, warps=4),
        Tuning(128, 128, 64, stages=4, warps=8, programs=264),
    ]


def compile_all(work: Work) -> None:
    """Run each once, side by side: compilers wait for other programs most of the time."""
    device = torch.cuda.current_device()
    wanted = [(tokens, tuning) for tokens in TOKENS for tuning in (Tuning.of(tokens, work.outputs), *tunings(tokens))]
    with ThreadPoolExecutor(16, initializer=torch.cuda.set_device, initargs=(device,)) as pool:
        list(pool.map(lambda given: work.ours(*given)(work.weights[0]), dict.fromkeys(wanted)))


def compare(work: Work) -> list[dict[str, object]]:
    """Time each count beside torch's, and print it."""
    figures: list[dict[str, object]] = []
    for tokens in TOKENS:
        ours = work.time(tokens, work.ours(tokens))
        mm = work.time(tokens, lambda weight, tokens=tokens: torch.mm(work.x_TI[:tokens], weight))
        limit, tuning = work.limit_us(tokens), Tuning.of(tokens, work.outputs)
        tile = f"{tuning.block_tokens}x{tuning.block_outputs}x{tuning.block_inputs}"
        print(
            f"{work.name:<13}{tokens:>6}{ours:>10.1f}{mm:>10.1f}{mm / ours:>9.2f}{limit:>10.1f}{limit / ours:>7.0%}"
            f"{tile:>13}"
        )
        figures.append({"shape": work.name, "tokens": tokens, "us": ours, "mm_us": mm, "limit_us": limit, "tile": tile})
    return figures


def sweep(work: Work, tokens: Sequence[int] = SWEPT) -> list[dict[str, object]]:
    """Time every tuning, best first for each count, and print it."""
    found: list[dict[str, object]] = []
    for count in tokens:
        timed = sorted(
            ((work.time(count, work.ours(count, tuning)), tuning) for tuning in tunings(count)),
            key=lambda each: each[0],
        )
        for us, tuning in timed:
            print(
                f"{work.name:<13}{count:>6}{us:>10.1f}  {tuning.block_tokens}x{tuning.block_outputs}x"
                f"{tuning.block_inputs} warps {tuning.warps} stages {tuning.stages} group {tuning.group} "
                f"programs {tuning.programs}{'' if tuning.descriptors else ' pointers'}"
            )
            found.append({"shape": work.name, "tokens": count, "us": us, **asdict(tuning)})
    return found


def main(device: torch.device, *, only: str = "", swept: bool = False) -> None:
    figures: list[dict[str, object]] = []
    tuned: list[dict[str, object]] = []
    begun = time.monotonic()
    print(f"{'product':<13}{'tokens':>6}{'us':>10}{'mm':>10}{'mm / us':>9}{'limit':>10}{'of it':>7}{'tile':>13}")
    for outputs, inputs in SHAPES:
        work = Work(outputs, inputs, device)
        if only and work.name != only:
            continue
        compile_all(work)
        work.check()
        figures += compare(work)
        if swept:
            tuned += sweep(work)
    print(f"{time.monotonic() - begun:.0f} s")
    write("invariant", figures + tuned)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="one product, outputs x inputs: 4096x4096, ...")
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    with torch.inference_mode():
        main(torch.device("cuda"), only=arguments.only, swept=arguments.sweep)
