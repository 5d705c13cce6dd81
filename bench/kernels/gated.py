"""Time gated products of many tokens beside cuBLAS and a gate behind it, cool and after seconds without a pause.

    python bench/kernels/gated.py

Cool: the first calls after a pause, at the clock that a device has then.  Hot: what a call takes once the limit of
watts has brought the clock down, which is how long prompts are computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from graphs import write
from products import Shape, Work
from torch import Tensor

from callboard.kernels.gated import gated_linear, takes_gated

MATMUL_RATE = 799e12
TOKENS = (1024, 2048, 8192)
PAUSE_S, HOT_S = 1.0, 2.0


def cool_and_hot_us(call: Callable[[Tensor], object], weights: list[Tensor]) -> tuple[float, float]:
    """Give the microseconds of a call at first, and in the second half of two seconds of them."""
    for weight in weights:
        call(weight)
    torch.cuda.synchronize()
    time.sleep(PAUSE_S)
    ends, begun, calls = [0.0], time.perf_counter(), 2 * len(weights)
    while ends[-1] < HOT_S:
        for number in range(calls):
            call(weights[number % len(weights)])
        torch.cuda.synchronize()
        ends.append(time.perf_counter() - begun)
    half = len(ends) // 2
    return ends[1] / calls * 1e6, (ends[-1] - ends[half]) / (len(ends) - 1 - half) / calls * 1e6


def main(device: torch.device) -> None:
    shape = Shape("8B gate up", 28672, 4096, gated=True)
    work = Work(shape, TOKENS, device)
    figures: list[dict[str, object]] = []
    print(f"{shape.name}, us{'tokens':>14}{'limit':>8}{'cuBLAS, gate: cool':>20}{'hot':>8}{'ours: cool':>12}{'hot':>8}")
    for tokens in TOKENS:
        if not takes_gated(work.x[tokens], work.weights[0]):
            raise RuntimeError(f"{tokens} tokens are left to cuBLAS")
        work.check(gated_linear(work.x[tokens], work.weights[0]), tokens, "gated_linear")
        limit = 1e6 * 2 * tokens * shape.outputs * shape.inputs / MATMUL_RATE
        apart = cool_and_hot_us(partial(work.apart, tokens), work.weights)
        ours = cool_and_hot_us(partial(gated_linear, work.x[tokens]), work.weights)
        print(f"{tokens:>28}{limit:>8.0f}{apart[0]:>20.0f}{apart[1]:>8.0f}{ours[0]:>12.0f}{ours[1]:>8.0f}")
        timed = {"limit_us": limit, "apart_us": apart[0], "apart_hot_us": apart[1]}
        figures.append({"product": shape.name, "tokens": tokens, "us": ours[0], "hot_us": ours[1], **timed})
    write("gated", figures)


if __name__ == "__main__":
    with torch.inference_mode():
        main(torch.device("cuda"))
