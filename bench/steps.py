"""Time steps with prompts on a GPU, launched kernel by kernel and as a graph.

Rows begin behind 512 cached tokens that they share and bring the same number of new ones.  One step at a time: `host`
is what launching takes, `device` what lies between a step's first and last work, in which the device may wait for the
host.  Graphs are also timed where the worker would have none (`PromptGraphs.limit`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from callboard.actors.messages import Begin, Extend, Step
from callboard.actors.sampling import SamplingParams
from callboard.actors.worker.build import build_runner
from callboard.actors.worker.device_runner import DeviceRunner
from callboard.actors.worker.options import WorkerOptions

RESULTS = Path(__file__).parent / "results"
PREFIX = 512
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=4)


def packed(values: np.ndarray) -> bytes:
    return values.astype(np.int32).tobytes()


class Steps:
    """Make steps that forget the rows of the one before."""

    def __init__(self, rows: int, tokens: int) -> None:
        self.rows, self.size = rows, tokens // rows
        self.number = 0
        self.retired = b""

    def make(self) -> Step:
        self.number += 1
        extends: list[Extend] = []
        for row in range(self.rows):
            first = PREFIX + row * self.size
            begin = Begin(row, row, GREEDY, eos=packed(np.array([2])))
            tokens, slots = np.arange(self.size) + self.number, np.arange(first, first + self.size)
            prefix = packed(np.arange(PREFIX))
            extends.append(Extend(row, PREFIX, packed(tokens), packed(slots), True, begin, prefix_slots=prefix))
        step = Step(self.number, tuple(extends), retired_rows=self.retired)
        self.retired = packed(np.arange(self.rows))
        return step

    def time(self, runner: DeviceRunner, repeats: int) -> tuple[float, float]:
        """Give the milliseconds of host and device, medians; the first steps compile and capture."""
        host: list[float] = []
        device: list[float] = []
        for _ in range(repeats + 3):
            step = self.make()
            torch.cuda.synchronize()
            started = time.perf_counter()
            running = runner.forward(step)
            runner.sample(running)
            host.append(time.perf_counter() - started)
            runner.collect(running)
            device.append(running.forward_s)
        runner.run(Step(0, retired_rows=self.retired))
        return 1e3 * statistics.median(host[3:]), 1e3 * statistics.median(device[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of a model")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    options = WorkerOptions(
        folder=arguments.model,
        device="cuda",
        max_rows=256,
        context_length=8192,
        kv_slots=1 << 16,
        chunk_tokens=8192,
        load_format=arguments.load_format,
    )
    with torch.inference_mode():
        runner, description = build_runner(options, None)
        assert isinstance(runner, DeviceRunner)
        line = runner.prompts.limit
        figures = measure(runner, arguments.repeats)
    table = Table("tokens", "rows", "host, ms", "as a graph", "device, ms", "as a graph", title=f"graphs up to {line}")
    for figure in figures:
        times = (figure[name] for name in ("host_ms", "graph_host_ms", "device_ms", "graph_device_ms"))
        table.add_row(str(figure["tokens"]), str(figure["rows"]), *(f"{each:.2f}" for each in times))
    console = Console()
    console.print(table)
    told = runner.statistics()
    console.print(f"{told['prompt_graphs']} graphs take {told['graph_bytes'] / 2**20:,.0f} MiB")
    if arguments.write:
        report: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "architecture": description.architecture,
            "graphs_up_to": line,
            "graphs": told["prompt_graphs"],
            "graph_bytes": told["graph_bytes"],
            "prefix": PREFIX,
            "figures": figures,
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "steps.json").write_text(json.dumps(report, indent=2) + "\n")


def measure(runner: DeviceRunner, repeats: int) -> list[dict[str, float]]:
    figures: list[dict[str, float]] = []
    for tokens in (64, 256, 512, 1024, 2048, 4096):
        for rows in (8, 64, 256):
            if rows > tokens:
                continue
            figure: dict[str, float] = {"tokens": tokens, "rows": rows}
            for prefix, limit in (("", 0), ("graph_", 4096)):
                runner.prompts.limit = limit
                figure[f"{prefix}host_ms"], figure[f"{prefix}device_ms"] = Steps(rows, tokens).time(runner, repeats)
            figures.append(figure)
    return figures


if __name__ == "__main__":
    main()
