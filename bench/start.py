"""Time a start: from a fresh process to the first token of the first request.

    python bench/start.py MODEL [--device cuda] [--files] [--json FILE]

MODEL is a shape of shapes.py, or `embedded`.  --files writes a checkpoint of the shape and starts from it; otherwise
its weights are drawn.  Started twice: the first time kernels may have to be compiled, the second time they are cached,
and so are the files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

__all__ = ["start"]


def start(model: str, device: str, *, drawn: bool) -> dict[str, float]:
    """Start an engine in a process of its own; seconds to its imports, to its being ready, and to a first token."""
    begun = time.perf_counter()
    command = [sys.executable, __file__, model, "--device", device, "--child", *(["--drawn"] if drawn else [])]
    seen: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen[line.strip()] = time.perf_counter() - begun
    if process.returncode or "first token" not in seen:
        raise RuntimeError(f"the engine's process ended with {process.returncode}; its own words stand above")
    return seen


async def child(model: str, device: str, *, drawn: bool) -> None:
    """Say what has been reached, a line each."""
    from callboard.actors.engine import Engine
    from callboard.actors.sampling import SamplingParams

    options = {"load_format": "dummy"} if drawn else {}
    engine = Engine(model, device=device, context_length=None if model == "embedded" else 16_384, **options)
    print("imported", flush=True)
    async with engine:
        print("ready", flush=True)
        async for delta in engine.generate(list(range(1, 33)), SamplingParams(max_new_tokens=2, ignore_eos=True)):
            if delta.tokens:
                break
        print("first token", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--drawn", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:

        async def run() -> None:
            await child(arguments.model, arguments.device, drawn=arguments.drawn)

        anyio.run(run)
        return
    with tempfile.TemporaryDirectory() as folder:
        model, drawn = arguments.model, False
        if model != "embedded":
            from callboard.bench.loading import write_checkpoint
            from callboard.bench.shapes import write_shape

            model, drawn = str(write_shape(Path(folder) / model, model)), not arguments.files
            if arguments.files:
                begun = time.perf_counter()
                size = write_checkpoint(Path(model))
                print(f"{size / 1e9:.1f} GB written in {time.perf_counter() - begun:.0f} s", flush=True)
        found = {name: start(model, arguments.device, drawn=drawn) for name in ("first", "cached")}
    print(f"{'start':>8} {'imported':>9} {'ready':>7} {'first token, s':>14}")
    for name, seen in found.items():
        print(f"{name:>8} {seen['imported']:>9.2f} {seen['ready']:>7.2f} {seen['first token']:>14.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
