"""What the hardware allows: seconds a workload takes if nothing costs anything but bytes and products.

Prompts cost products at the device's measured matmul rate, decode steps bytes at its measured copy rate: the weights
once a step, and the keys and values of every row that still runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch

from ...models.config import ModelConfig
from .workload import Request

__all__ = ["ElementBytes", "Rates", "decode_seconds", "ideal_seconds", "measure_rates"]


@dataclass(frozen=True, slots=True)
class Rates:
    """A device's measured rates: bytes read and written a second by a copy, floating-point operations by a product."""

    copy: float
    matmul: float


class ElementBytes(NamedTuple):
    """How many bytes a weight takes, and how many a cached number."""

    weight: int
    cached: int


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Measure a large copy and a large product; under a second on a GPU."""
    large = device.type == "cuda"
    size = 1 << (30 if large else 26)
    both = torch.empty(2, size, dtype=torch.uint8, device=device)
    copy_s = _best(lambda: both[0].copy_(both[1]), device)
    side = 8192 if large else 1024
    factors = torch.randn(2, side, side, device=device, dtype=dtype)
    product_s = _best(lambda: factors[0] @ factors[1], device)
    return Rates(copy=2 * size / copy_s, matmul=2 * side**3 / product_s)


def ideal_seconds(config: ModelConfig, element_bytes: ElementBytes, requests: Sequence[Request], rates: Rates) -> float:
    """Tell the least time for requests that all start together, those with a parent when all of its level have ended.

    What a group shares, and what stands before several requests, is computed and read once.
    """
    head = config.vocabulary * config.hidden
    layers = _layer_weights(config) * config.layers
    operations = 0.0
    prefixes = {request.group: request.shared for request in requests if request.parent is None}
    spans = [(0, shared) for shared in prefixes.values()]
    spans += [(request.inputs - request.own, request.inputs) for request in requests]
    for first, end in spans:
        attended = (end * (end + 1) - first * (first + 1)) / 2
        operations += 2 * layers * (end - first)
        operations += 4 * config.layers * config.heads * config.head_dim * attended
    operations += 2 * head * len(requests)
    decode_s = 0.0
    for level in _levels(requests):
        for step in range(1, max(request.outputs for request in level)):  # the first token comes with the prompt
            running = [request for request in level if request.outputs > step]
            tokens = sum(request.own + step for request in running) + _shared_tokens(requests, running)
            decode_s += decode_seconds(config, element_bytes, tokens, rates)
    return operations / rates.matmul + decode_s


def _levels(requests: Sequence[Request]) -> list[list[Request]]:
    """Sort requests by how many stand above them; a parent stands before its children."""
    depths: list[int] = []
    levels: list[list[Request]] = []
    for request in requests:
        depths.append(0 if request.parent is None else depths[request.parent] + 1)
        if depths[-1] == len(levels):
            levels.append([])
        levels[depths[-1]].append(request)
    return levels


def _shared_tokens(requests: Sequence[Request], running: Sequence[Request]) -> int:
    """Count what running requests attend to before what is their own, each token once."""
    above = {request.parent for request in running if request.parent is not None}
    tokens = sum({request.group: request.shared for request in running if request.parent is None}.values())
    if above:
        parents = [requests[number] for number in above]
        tokens += sum(parent.own + parent.outputs for parent in parents) + _shared_tokens(requests, parents)
    return tokens


def decode_seconds(config: ModelConfig, element_bytes: ElementBytes, tokens: int, rates: Rates) -> float:
    """Tell the least time of one decode step whose rows together attend to so many tokens: all weights, and these."""
    weights = _layer_weights(config) * config.layers + config.vocabulary * config.hidden
    cached = 2 * config.layers * config.kv_heads * config.head_dim * tokens
    return (weights * element_bytes.weight + cached * element_bytes.cached) / rates.copy


def _layer_weights(config: ModelConfig) -> int:
    heads = 2 * config.heads + 2 * config.kv_heads  # queries and output, keys and values
    return config.hidden * (heads * config.head_dim + 3 * config.intermediate)


def _best(work: Callable[[], object], device: torch.device) -> float:
    times: list[float] = []
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begun = perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(perf_counter() - begun)
    return min(times[1:])
