"""Time how long a model takes from files to a device, and how long drawing one there takes.

    python bench/loading.py [SHAPE] [--device cuda] [--folder FOLDER]

Writes a checkpoint of the shape (see shapes.py) and loads it twice: the first time as the system's file cache happens
to be, the second time out of it.  The limit beside it is a copy of as many bytes from pinned memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from callboard.bench.shapes import SHAPES, write_shape
from callboard.models.config import read_config
from callboard.models.loader import load
from callboard.models.registry import family

RESULTS = Path(__file__).parent / "results"
SHARD_BYTES = 4 << 30


def write_checkpoint(folder: Path) -> int:
    """Fill the model folder with shards of bfloat16 weights; returns their bytes."""
    config = read_config(folder)
    where: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    total = held = 0

    def flush() -> None:
        nonlocal held
        name = f"model-{len(set(where.values())) + 1:05}.safetensors"
        where.update(dict.fromkeys(shard, name))
        save_file(shard, folder / name)
        shard.clear()
        held = 0

    for parameter in family(config.architecture).parameters(config):
        for source in parameter.sources:
            tensor = shard[source.name] = torch.full(source.shape, 0.01, dtype=torch.bfloat16)
            held, total = held + tensor.nbytes, total + tensor.nbytes
            if held >= SHARD_BYTES:
                flush()
    if shard:
        flush()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return total


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Time something until the device has done it; what it made is dropped."""
    started = time.perf_counter()
    made = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    del made
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return seconds


def copy_rate(device: torch.device) -> float:
    """Measure bytes a second from pinned memory to the device; on a CPU, from memory to memory."""
    source = torch.ones(256 << 20, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty_like(source, device=device)
    target.copy_(source)
    return source.numel() / min(timed(lambda: target.copy_(source, non_blocking=True), device) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time how long a model takes from files to a device.")
    parser.add_argument("shape", nargs="?", default="Llama-3.2-1B", choices=tuple(SHAPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help="where to put the checkpoint; by default a folder that is deleted")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        torch.zeros(1, device=device)  # the context is not the loader's
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        size = write_checkpoint(write_shape(Path(folder), arguments.shape))
        rate = copy_rate(device)
        seconds = {
            "load, first": timed(lambda: load(folder, device=device, dtype=torch.bfloat16), device),
            "load, cached": timed(lambda: load(folder, device=device, dtype=torch.bfloat16), device),
            "dummy": timed(lambda: load(folder, device=device, dtype=torch.bfloat16, load_format="dummy"), device),
        }
    table = Table(title=f"{arguments.shape}, {size / 1e9:.2f} GB, {device}")
    for column in ("what", "seconds", "GB/s", "of the pinned copy's"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, taken in seconds.items():
        table.add_row(what, f"{taken:.2f}", f"{size / taken / 1e9:.2f}", f"{size / taken / rate:.0%}")
    Console().print(table)
    print(f"pinned copy: {rate / 1e9:.1f} GB/s")
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "shape": arguments.shape,
        "bytes": size,
        "copy_bytes_per_s": rate,
        "seconds": seconds,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "loading.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
