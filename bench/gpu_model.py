"""Measure one model's engine: whole workloads, decode steps, serving.  bench/gpu.py runs it in a process of its own.

    python bench/gpu_model.py MODEL --out FILE [--device cuda] [--quick] [--in-flight N] [--no-prefix-cache]
                              [--no-share-attention] [--deterministic] [--work NAME ...]

MODEL is a shape of shapes.py, whose weights are drawn, or `embedded`.  What is measured is written at once, so that
nothing of it is lost if the rest fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from callboard.actors.engine import Engine
from callboard.bench.anchors import FORKS, SHARED, WORK
from callboard.bench.shapes import write_shape
from callboard.commands.bench.decode import measure_decode, parse_point, print_decode
from callboard.commands.bench.offline import measure_offline, print_offline
from callboard.commands.bench.serve import measure_serve, print_serve, serving
from callboard.commands.bench.setting import Setting, started
from callboard.commands.bench.workload import Workload, parse_workload

__all__ = ["Findings", "measure"]

SMALL = {"one": "1x16/8", "many": "4x32/8", "mixed": "6x8-24/8-24", "prompts": "2x100/1"}  # for a CPU
SMALL_SHARED = {"thoughts": "2^2*32/4", "chats": "4x1*64+8/8"}
SMALL_FORKS = {"forks of 8,192": "4x2*64+8/8", "forks of 2,048": "8x2*32+8/4"}
POINTS = ("1x384", "64x1024", "256x1024")
SMALL_POINTS = ("1x16", "4x32", "6x16")
AGAIN_S = 20.0  # until so many seconds are spent a work is measured again, up to twice, and the best one counts
SECONDS = 90.0  # that one measurement may take


class Findings:
    """What was measured so far, and what failed; written to a file with every addition."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.told: dict[str, Any] = {}
        self.lines: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, str] = {}

    def add(self, name: str, line: dict[str, Any]) -> None:
        self.lines[name] = line
        self.write()

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Let a measurement fail, or take too long, without ending the others."""
        try:
            with anyio.fail_after(SECONDS):
                yield
        except Exception as error:  # whatever a part of a bench breaks with, the others are still worth measuring
            traceback.print_exc()
            self.errors[name] = f"{type(error).__name__}: {error}"
            self.write()

    def write(self) -> None:
        self._path.write_text(json.dumps({"told": self.told, "lines": self.lines, "errors": self.errors}))


async def measure(engine: Engine, findings: Findings, arguments: argparse.Namespace) -> None:
    """Start the engine and measure what is asked for."""
    async with started(engine) as setting:
        findings.told = setting.told()
        findings.write()
        print(f"\n{engine.name} on {findings.told['device']}, ready after {setting.start_s:.1f} s", flush=True)
        await _measure(setting, findings, arguments)


async def _measure(setting: Setting, findings: Findings, arguments: argparse.Namespace) -> None:
    small = arguments.device == "cpu"
    works = SMALL if small else WORK
    known = works | (SMALL_SHARED | SMALL_FORKS if small else SHARED | FORKS)
    for number, name in enumerate(arguments.work or works):
        with findings.attempt(name):
            workload = parse_workload(known[name])
            runs = [await measure_offline(setting, workload)]
            # The first run of a work may meet shapes that have to be compiled still, and the second to be captured.
            while len(runs) < 3 and sum(each["seconds"] for each in runs) < (
                AGAIN_S / 4 if arguments.quick else AGAIN_S
            ):
                runs.append(await measure_offline(setting, workload))
            line = min(runs, key=lambda each: each["seconds"])
            print_offline(line, first=not number)
            findings.add(name, line)
    if arguments.work:
        return
    points = SMALL_POINTS if small else POINTS
    for number, at in enumerate(points[: 2 if arguments.quick else 3]):
        name = f"decode, {parse_point(at).rows} rows"
        with findings.attempt(name):
            line = await measure_decode(setting, parse_point(at), steps=24 if small else 256)
            print_decode(line, first=not number)
            findings.add(name, line)
    with findings.attempt("serve"):
        async with serving(setting) as url:
            mixed = parse_workload(works["mixed"])
            assert isinstance(mixed, Workload), "a tree cannot be sent over HTTP"
            line = await measure_serve(setting, url, mixed)
            print_serve(line, first=True)
            findings.add("serve", line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--work", action="append", choices=(*WORK, *SHARED, *FORKS), help="only these workloads, and nothing else"
    )
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--no-prefix-cache", action="store_true")
    parser.add_argument("--no-share-attention", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    arguments = parser.parse_args()
    findings = Findings(arguments.out)
    with tempfile.TemporaryDirectory() as folder:
        drawn = arguments.model != "embedded"
        engine = Engine(
            write_shape(Path(folder) / arguments.model, arguments.model) if drawn else arguments.model,
            device=arguments.device,
            load_format="dummy" if drawn else "auto",
            context_length=16_384 if drawn else None,
            in_flight=arguments.in_flight,
            prefix_cache=not arguments.no_prefix_cache,
            share_attention=not arguments.no_share_attention,
            deterministic=arguments.deterministic,
        )
        anyio.run(measure, engine, findings, arguments)
    return 1 if findings.errors else 0


if __name__ == "__main__":
    sys.exit(main())
