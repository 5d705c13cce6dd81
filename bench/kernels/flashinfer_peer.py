"""Time our paged attention beside flashinfer's: decode, prefill, and rows that share a prefix.

    python bench/kernels/flashinfer_peer.py [--compile]

Everything in bfloat16, head_dim 128, 8 key heads, page size 1, tables shuffled, inside CUDA graphs, one layer after the
other so that no layer's keys are cached.  Both read the same pool, through the same batch; each result is first held
against float32.  "ours" is what a worker runs: our kernels, cuDNN's for whole prompts of 2,048 tokens or more, and
together where rows share a prefix; flashinfer decodes such rows each alone.  "plan" is the host's time for a step's
plan.  flashinfer compiles two modules when it is first used, which takes minutes, into
$FLASHINFER_WORKSPACE_BASE/.cache/flashinfer; --compile does that and no more.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from time import perf_counter

import attention as rows
import numpy as np
import torch
import tree
from graphs import write

from callboard.kernels.attention.flashinfer_attention import FlashInferAttention
from callboard.kernels.attention.interface import Attention

KV_HEADS, HEAD_DIM = rows.KV_HEADS, rows.HEAD_DIM
DECODES = [(64, 1024), (256, 1024), (1, 8192), (16, 100_000)]
PREFILLS = [(8, 1024, 1024), (1, 8192, 8192), (8, 512, 7680)]  # rows, new tokens, keys
SHARED = [(1, 64, 4096, 256), (8, 32, 1024, 256)]  # groups, rows of each, keys in common, keys of their own
HEADS = (32, 16)


def made(heads: int, most: int, longest: int, device: torch.device) -> FlashInferAttention:
    return FlashInferAttention(
        heads, KV_HEADS, HEAD_DIM, max_rows=most, context_length=longest, device=device, dtype=torch.bfloat16
    )


def host_us(plan: Callable[[], object], times: int = 20) -> float:
    """Give the host's time a call, without what it leaves to the device."""
    plan()
    torch.cuda.synchronize()
    begun = perf_counter()
    for _ in range(times):
        plan()
    taken = perf_counter() - begun
    torch.cuda.synchronize()
    return taken / times * 1e6


def line(
    work: str, heads: int, limit_us: float, us: tuple[float, float], plan_us: float, errors: tuple[float, float]
) -> dict[str, object]:
    theirs, ours = us
    print(
        f"{work:<26}{f'{heads}/{KV_HEADS}':>6}{theirs:>12.1f}{ours:>10.1f}{theirs / ours:>8.2f}x{limit_us:>9.1f}"
        f"{limit_us / ours:>8.0%}{plan_us:>9.0f}{max(errors):>10.1e}{rows.warn(max(errors))}"
    )
    return {
        "work": work,
        "heads": heads,
        "flashinfer_us": theirs,
        "ours_us": ours,
        "limit_us": limit_us,
        "flashinfer_plan_us": plan_us,
        "flashinfer_error": errors[0],
        "our_error": errors[1],
    }


def alone(heads: int, count: int, queries: int, keys: int, device: torch.device) -> dict[str, object]:
    """Rows that share nothing, decoding (one query each) or extending."""
    case = rows.draw(heads, count, queries, keys, device)
    peer, ours = made(heads, count, keys, device), case.attention(extend="auto")
    errors = case.error(peer), case.error(ours)
    us = case.time_us(peer), case.time_us(ours)
    lengths = np.array(case.batch.lengths, np.int32)
    plan_us = host_us((lambda: peer.replay(lengths)) if queries == 1 else (lambda: peer.plan(case.batch)))
    work = f"decode {count} x {keys}" if queries == 1 else f"prefill {count} x {queries}"
    if queries not in (1, keys):
        work = f"{work} on {keys - queries}"
    return line(work, heads, case.limit_us, us, plan_us, errors)


def shared(heads: int, shape: tuple[int, int, int, int], device: torch.device) -> dict[str, object]:
    """Groups of decoding rows with a prefix in common."""
    case = tree.draw(heads, shape, device)
    groups, members, prefix, own = shape
    peer, ours = made(heads, case.rows, prefix + own, device), case.attention()
    packed = ours.pack(case.groups, case.rows)
    batch = case.batch if packed is None else case.grouped(packed)
    errors = case.error(peer, case.batch), case.error(ours, batch)
    us = case.time_us(peer, case.batch), case.time_us(ours, batch)
    plan_us = host_us(lambda: peer.replay(np.array(case.batch.lengths, np.int32)))
    return line(f"{groups} x {members} on {prefix}, + {own}", heads, case.limit_us, us, plan_us, errors)


def table(device: torch.device) -> list[dict[str, object]]:
    begun, figures = perf_counter(), list[dict[str, object]]()
    print(f"{'work':<26}{'heads':>6}{'flashinfer':>12}{'ours us':>10}{'':>9}{'limit':>9}{'of it':>8}", end="")
    print(f"{'plan us':>9}{'error':>10}")
    for (count, keys), heads in itertools.product(DECODES, HEADS):
        figures.append(alone(heads, count, 1, keys, device))
        torch.cuda.empty_cache()
    for (count, queries, keys), heads in itertools.product(PREFILLS, HEADS):
        figures.append(alone(heads, count, queries, keys, device))
    for shape, heads in itertools.product(SHARED, HEADS):
        figures.append(shared(heads, shape, device))
    print(f"{perf_counter() - begun:.0f} s in all")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="compile flashinfer's two modules, and stop")
    arguments, device = parser.parse_args(), torch.device("cuda")
    with torch.inference_mode():
        begun = perf_counter()
        peer: Attention = made(32, 1, 1024, device)
        print(f"{type(peer).__name__}: ready after {perf_counter() - begun:.1f} s")
        if not arguments.compile:
            write("flashinfer", table(device))


if __name__ == "__main__":
    main()
