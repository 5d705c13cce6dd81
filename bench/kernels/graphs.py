"""Time kernels inside CUDA graphs, so that neither the host nor the caches flatter or blame them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

__all__ = ["COPY_RATE", "L2_BYTES", "copies_for", "eager_us", "time_us", "write"]

COPY_RATE = 4.3e12  # bytes a second that an H200 copies, counting both directions
L2_BYTES = 60e6
RESULTS = Path(__file__).parents[1] / "results"


def copies_for(size_bytes: float, most: int = 64) -> int:
    """Tell how many copies of a buffer to go round so that none is still cached when its turn comes."""
    return int(min(most, max(2, -(-4 * L2_BYTES // size_bytes))))


def time_us(calls: Sequence[Callable[[], object]], replays: int = 15) -> float:
    """Give the median microseconds a call, of replays of one graph that makes all calls one after the other."""
    for call in calls:  # compiles, and fills the allocator
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    # The clocks of a device that was idle rise for a while.
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    while True:
        graph.replay()
        end.record()
        end.synchronize()
        if start.elapsed_time(end) > 30.0:
            break
    times: list[float] = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def eager_us(call: Callable[[], object], times: int = 5) -> float:
    """Give the least microseconds a call on the device, launched by the host: torch's sorts may not be captured."""
    call()
    spans: list[float] = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        spans.append(start.elapsed_time(end) * 1e3)
    return min(spans)


def write(name: str, figures: list[dict[str, object]]) -> None:
    """Write one JSON of the figures, with what they were measured on."""
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(),
        "copy_rate": COPY_RATE,
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
