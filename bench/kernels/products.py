"""The products of a layer that benches time: shapes of two models, their tensors, and what a library makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from graphs import copies_for, time_us
from torch import Tensor

from callboard.kernels.activation import silu_and_multiply_
from callboard.kernels.norm import rms_norm

__all__ = ["EPSILON", "SHAPES", "Shape", "Work", "compile_all"]

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

    def __init__(self, shape: Shape, tokens: Sequence[int], device: torch.device) -> None:
        self.shape = shape

        def random(*size: int) -> Tensor:
            return torch.randn(*size, dtype=torch.bfloat16, device=device)

        self.size_bytes = 2 * shape.outputs * shape.inputs
        weights = [random(shape.outputs, shape.inputs) for _ in range(copies_for(self.size_bytes))]
        self.weights = [weight.mul_(shape.inputs**-0.5).t() for weight in weights]
        self.x = {count: random(count, shape.inputs) for count in tokens}
        self.residual = {count: random(count, shape.outputs) for count in tokens}
        self.norm = random(shape.inputs)

    def apart(self, tokens: int, weight: Tensor) -> Tensor:
        """Do as a library does: norm, product, sum or gate as kernels of their own."""
        x = rms_norm(self.x[tokens], self.norm, EPSILON) if self.shape.normed else self.x[tokens]
        if self.shape.added:
            return self.residual[tokens].addmm_(x, weight)
        product = torch.mm(x, weight)
        return silu_and_multiply_(product) if self.shape.gated else product

    def wanted(self, tokens: int) -> Tensor:
        """Compute what the first weight gives, before the sum, in float32."""
        x = self.x[tokens].float()
        if self.shape.normed:
            x = torch.nn.functional.rms_norm(x, self.norm.shape, self.norm.float(), EPSILON)
        y = x @ self.weights[0].float()
        if not self.shape.gated:
            return y
        gate, up = y.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    def check(self, given: Tensor, tokens: int, what: object) -> None:
        """Compare with float32 on the same inputs; wrong results are not timed."""
        wanted = self.wanted(tokens)
        error = float((given.float() - wanted).norm() / wanted.norm())
        if not error < 2e-2:
            raise RuntimeError(f"{self.shape.name}, {tokens} tokens, {what}: the relative error is {error}")

    def time(self, call: Callable[[Tensor], object]) -> float:
        return time_us([lambda weight=weight: call(weight) for weight in self.weights])


def compile_all(calls: Sequence[Callable[[], object]]) -> None:
    """Call each once, side by side: compilers wait for other programs most of the time."""
    device = torch.cuda.current_device()
    with ThreadPoolExecutor(16, initializer=torch.cuda.set_device, initargs=(device,)) as pool:
        list(pool.map(lambda call: call(), calls))
