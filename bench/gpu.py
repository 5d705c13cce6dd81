"""Run everything that a GPU is measured by, and print one table; bench/gpu.sh starts it.

    python bench/gpu.py [quick] [--device cuda] [--model NAME ...] [--only PART ...] [--minutes N]

Each part is a process of its own with a time limit: what fails in one, or hangs, is told, and the rest goes on.
Parts: tests, a model by its name, deterministic, overlap, tree, forks and shared and alone (each with a model's name),
join, start, kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from callboard.bench.anchors import ANCHORS, FORKS, SHARED, Anchor

__all__ = ["Part", "figures", "parts", "table"]

ROOT = Path(__file__).parent.parent
MODELS = ("Qwen3-0.6B", "Llama-3.1-8B")
# Where tests need a GPU; the others' packages need not be there.
TESTED = ("tests/kernels", "tests/models", "tests/actors/worker")
LEAST_S = 5.0  # a part that has less left is not begun


@dataclass(frozen=True, slots=True)
class Part:
    """One process.  out: what it writes, JSON; None if it only prints."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    out: Path | None = None


def parts(arguments: argparse.Namespace, folder: Path) -> Iterator[Part]:
    """List what is to run, what matters most first."""
    gpu, quick, device = arguments.device != "cpu", arguments.quick, arguments.device
    python, bench = sys.executable, ROOT / "bench"

    def model(part: str, name: str, *more: str, limit_s: float) -> Part:
        out = folder / f"{part.replace(': ', ' ')}.json"
        command = (python, str(bench / "gpu_model.py"), name, "--device", device, "--out", str(out), *more)
        return Part(part, command, limit_s, out)

    models = tuple(arguments.model or MODELS)
    if gpu:
        # Tests of long rows take gigabytes each: more than a few at once are too many.
        beside = ("-n", "4", "--dist", "worksteal") if find_spec("xdist") else ()
        command = (python, "-m", "pytest", "-q", "-m", "gpu", *beside, *TESTED)
        yield Part("tests", command, 50.0 if quick else 300.0)
    for name in models:
        yield model(name, name, *(["--quick"] if quick else []), limit_s=75.0 if quick else 180.0)
    if not quick or not gpu:
        yield model("overlap", models[0], "--work", "mixed", "--in-flight", "1", limit_s=60.0)
        yield model("tree", models[0], "--work", "mixed", "--no-prefix-cache", limit_s=60.0)
        if gpu:  # there is no such mode on a CPU
            yield model("deterministic", models[-1], "--work", "mixed", "--deterministic", limit_s=120.0)
        shared, forks = ([argument for name in works for argument in ("--work", name)] for works in (SHARED, FORKS))
        for name in models:
            yield model(f"forks: {name}", name, *forks, limit_s=90.0)
        for name in models:  # what programs share is read together, and each for itself; work of strangers too
            yield model(f"shared: {name}", name, *shared, limit_s=90.0)
            works = (*shared, "--work", "mixed", "--no-share-attention")
            yield model(f"alone: {name}", name, *works, limit_s=120.0)
        out = folder / "join.json"
        size = ("--branch-tokens", "1024") if gpu else ()
        command = (python, str(bench / "join.py"), "--model", models[-1], "--device", device, "--json", str(out), *size)
        yield Part("join", command, 60.0, out)
        out = folder / "start.json"
        files = ["--files"] if gpu else []
        command = (python, str(bench / "start.py"), models[-1], "--device", device, "--json", str(out), *files)
        yield Part("start", command, 150.0, out)
    if gpu and not quick:
        for path in sorted((bench / "kernels").glob("*.py")):
            if "__main__" in path.read_text():  # the others are what these have in common
                yield Part(f"kernels: {path.stem}", (python, str(path)), 40.0)


def run(part: Part, limit_s: float) -> dict[str, Any]:
    """Run a part to its end or its limit; tell its seconds, what it wrote, and why it failed, if so."""
    print(f"\n--- {part.name} (at most {limit_s:.0f} s)", flush=True)
    begun = time.monotonic()
    error = ""
    process = subprocess.Popen(part.command, cwd=ROOT, start_new_session=True)
    try:
        if status := process.wait(limit_s):
            error = f"ended with status {status}"
    except subprocess.TimeoutExpired:
        error = f"took longer than {limit_s:.0f} s"
    finally:
        end(process)
    told: dict[str, Any] = {"seconds": round(time.monotonic() - begun, 1)}
    if part.out is not None and part.out.exists():
        told["found"] = json.loads(part.out.read_text())
        if errors := told["found"].get("errors"):
            error = "; ".join(f"{name}: {why}" for name, why in errors.items())
    if error:
        told["error"] = error
        print(f"--- {part.name}: {error}", flush=True)
    return told


def end(process: subprocess.Popen[bytes]) -> None:
    """End a part's process and those it started: a session of their own."""
    with suppress(ProcessLookupError):  # they may have ended by themselves
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def figures(found: dict[str, dict[str, Any]], models: Sequence[str]) -> dict[tuple[str, str], float]:
    """Read the figures that have an aim out of what the parts wrote, by what is measured and the model."""
    known: dict[tuple[str, str], float] = {}
    lines = {name: told["found"].get("lines", {}) for name, told in found.items() if "found" in told}
    for name in models:
        of = lines.get(name, {})
        for work in ("one", "many", "mixed", "prompts"):
            if work in of:
                known[work, name] = of[work]["input_tokens_a_second" if work == "prompts" else "output_tokens_a_second"]
        for rows in (1, 64, 256):
            if (decode := of.get(f"decode, {rows} rows")) is None:
                continue
            counted = f"{rows} row{'s' if rows > 1 else ''}"
            known[f"busy, {counted}", name] = 100 * decode["busy_p90"]
            known[f"host, {counted}", name] = sum(decode[f"{part}_us_a_step"] for part in ("loop", "launch", "collect"))
        if "serve" in of:
            known["served / in process", name] = of["serve"]["ratio"]
        for work, line in lines.get(f"forks: {name}", {}).items():
            known[work, name] = line["output_tokens_a_second"]
        together, alone = lines.get(f"shared: {name}", {}), lines.get(f"alone: {name}", {})
        for work in together:
            known[work, name] = together[work]["output_tokens_a_second"]
            if work in alone:
                known[f"{work}, shared", name] = known[work, name] / alone[work]["output_tokens_a_second"]
        if "mixed" in of and "mixed" in alone:
            without = alone["mixed"]["output_tokens_a_second"]
            known["groups' cost, no sharing", name] = 100 * (without / known["mixed", name] - 1)
    first, last = models[0], models[-1]
    with_all = known.get(("mixed", first))
    for part, work in (("overlap", "overlap on / off"), ("tree", "tree's cost, no hits")):
        if with_all and "mixed" in lines.get(part, {}):
            without = lines[part]["mixed"]["output_tokens_a_second"]
            known[work, first] = with_all / without if part == "overlap" else 100 * (without / with_all - 1)
    whole, told = known.get(("mixed", last)), lines.get("deterministic", {}).get("mixed")
    if whole and told:
        known["deterministic costs", last] = 100 * (1 - told["output_tokens_a_second"] / whole)
    if "found" in found.get("join", {}):
        known["join, next token", last] = found["join"]["found"]["kv_ms"]
    if "found" in found.get("start", {}):
        known["start to first token", last] = found["start"]["found"]["cached"]["first token"]
    return known


def table(known: dict[tuple[str, str], float], models: Sequence[str]) -> list[dict[str, Any]]:
    """Put our figures beside these models' anchors; figures without an anchor come behind."""
    lines = [_line(each, known.get((each.work, each.model))) for each in ANCHORS if each.model in models]
    anchored = {(each.work, each.model) for each in ANCHORS}
    for (work, model), figure in known.items():
        if (work, model) not in anchored:
            lines.append({"work": work, "model": model, "ours": figure})
    return lines


def _line(each: Anchor, figure: float | None) -> dict[str, Any]:
    line: dict[str, Any] = {
        "work": each.work, "model": each.model, "unit": each.unit, "vllm": each.vllm, "sglang": each.sglang,
        "limit": each.limit, "aim": each.aim, "ours": figure,
    }  # fmt: skip
    return line if figure is None else {**line, "reached": each.reached(figure)}


def show(lines: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(f"\n{'work':<24} {'model':<14} {'unit':<8} {'vLLM':>9} {'SGLang':>9} {'limit':>9} {'aim':>9} {'ours':>10}")
    for line in lines:
        reached = {True: "reached", False: "missed"}.get(line.get("reached"), "")
        cells = [_number(line.get(name)) for name in ("vllm", "sglang", "limit", "aim")]
        print(f"{line['work']:<24} {line['model']:<14} {line.get('unit', ''):<8} "
              f"{' '.join(f'{cell:>9}' for cell in cells)} {_number(line['ours']):>10} {reached}")  # fmt: skip


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", choices=("quick",), help="under three minutes instead of twenty")
    parser.add_argument("--device", default="cuda", help="cpu tries the bench itself: small work, no figures to keep")
    parser.add_argument("--model", action="append", help=f"by default {' and '.join(MODELS)}; or embedded")
    parser.add_argument("--only", action="append", metavar="PART", help="parts whose name begins so")
    parser.add_argument("--minutes", type=float, help="after which nothing is begun or goes on")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "gpu.json")
    arguments = parser.parse_args()
    arguments.quick = arguments.mode == "quick"
    deadline = time.monotonic() + 60 * (arguments.minutes or (2.9 if arguments.quick else 20.0))
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in parts(arguments, Path(folder)):
            if arguments.only and not part.name.startswith(tuple(arguments.only)):
                continue
            left = deadline - time.monotonic()
            if left < LEAST_S:
                found[part.name] = {"error": "not begun: time was up"}
                continue
            found[part.name] = run(part, min(part.limit_s, left))
    models = tuple(arguments.model or MODELS)
    lines = table(figures(found, models), models)
    show(lines)
    failed = {name: told["error"] for name, told in found.items() if "error" in told}
    for name, error in failed.items():
        print(f"FAILED {name}: {error}")
    settings = [told["found"]["told"] for told in found.values() if "told" in told.get("found", {})]
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": settings[0]["versions"] if settings else {},
        "device": settings[0]["device"] if settings else arguments.device,
        "quick": arguments.quick,
        "figures": lines,
        "parts": found,
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {arguments.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
