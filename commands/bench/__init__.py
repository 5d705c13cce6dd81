"""callboard bench: figures of an engine, beside what its device allows."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ..engine_arguments import add_engine_arguments, make_engine

if TYPE_CHECKING:
    from ...actors.engine import Engine

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure an engine beside its device's limit",
        description="Measure an engine beside what its device's copy and matmul rates allow.",
    )
    kinds = parser.add_subparsers(title="what to measure", metavar="KIND", required=True)
    offline: argparse.ArgumentParser = kinds.add_parser(
        "offline",
        help="requests handed over all at once, in process",
        description="Hand requests to the engine all at once, in process.",
    )
    offline.add_argument(
        "--workload",
        action="append",
        metavar="NxIN/OUT",
        help="requests, input and output tokens, as 64x1024/256 or 256x100-1024/100-1024; may be given often",
    )
    offline.add_argument("--temperature", type=float, default=0.0, help="0, the default, is greedy")
    offline.add_argument("--rounds", type=int, default=1, help="runs of each workload; the best counts (default 1)")
    offline.add_argument("--json", metavar="FILE", help="write the figures there too")
    add_engine_arguments(offline)
    offline.set_defaults(command=_offline)


def _offline(arguments: argparse.Namespace) -> int:
    import anyio

    from .workload import parse_workload

    workloads = [parse_workload(text) for text in arguments.workload or ["1x128/128", "16x128/128"]]
    if arguments.rounds < 1:
        raise ValueError(f"rounds is {arguments.rounds}; it must be at least 1")
    lines = anyio.run(_measure, make_engine(arguments), workloads, arguments)
    if arguments.json:
        with open(arguments.json, "w") as file:  # noqa: PTH123  (a path as the user gave it)
            json.dump(lines, file, indent=2)
            file.write("\n")
    return 0


async def _measure(engine: Engine, workloads: list[Any], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    from ...models.config import read_config
    from .limits import ideal_seconds, measure_rates
    from .offline import run_workload, warm_up

    lines: list[dict[str, Any]] = []
    async with engine:
        limits = engine.limits
        device, dtype = torch.device(limits.device), getattr(torch, limits.dtype)
        rates = measure_rates(device, dtype)
        config = read_config(engine.folder)
        await warm_up(engine)
        for workload in workloads:
            requests = workload.requests(limits.vocabulary)
            runs = [
                await run_workload(engine, requests, temperature=arguments.temperature) for _ in range(arguments.rounds)
            ]
            best = min(runs, key=lambda run: run.seconds)
            ideal = ideal_seconds(config, dtype.itemsize, requests, rates)
            line = {
                "model": engine.name, "device": limits.device, "workload": str(workload),
                "seconds": best.seconds, "output_tokens_a_second": best.output_rate,
                "input_tokens_a_second": best.input_rate, "limit_seconds": ideal, "share": ideal / best.seconds,
                "busy": best.busy, "steps": best.steps, "first_token_s": best.first_s,
                "scheduler_us_a_step": 1e6 * best.host_s / max(1, best.steps),
                "device_ms_a_step": 1e3 * best.device_s / max(1, best.steps), "retractions": best.retractions,
                "copy_bytes_a_second": rates.copy, "matmul_a_second": rates.matmul,
            }  # fmt: skip
            lines.append(line)
            _print(line, first=len(lines) == 1)
    return lines


def _print(line: dict[str, Any], *, first: bool) -> None:
    if first:
        print(f"{line['model']} on {line['device']}: copies {line['copy_bytes_a_second'] / 1e12:.2f} TB/s, "
              f"products {line['matmul_a_second'] / 1e12:.1f} TFLOP/s", file=sys.stdout)  # fmt: skip
        print(f"{'workload':>28} {'out tok/s':>10} {'in tok/s':>10} {'seconds':>8} {'limit':>6} {'busy':>6} "
              f"{'ms/step':>8} {'sched us':>8} {'first s':>8}")  # fmt: skip
    print(f"{line['workload']:>28} {line['output_tokens_a_second']:>10,.0f} {line['input_tokens_a_second']:>10,.0f} "
          f"{line['seconds']:>8.2f} {100 * line['share']:>5.0f}% {100 * line['busy']:>5.1f}% "
          f"{line['device_ms_a_step']:>8.3f} {line['scheduler_us_a_step']:>8.0f} {line['first_token_s']:>8.3f}",
          flush=True)  # fmt: skip
