"""bench/gpu.sh runs where callboard is not installed, loses nothing when a part fails, and reads its figures right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.bench.anchors import ANCHORS, WORK, anchor
from callboard.bench.gpu import TESTED, Part, figures, run, table
from callboard.bench.gpu_model import Findings
from callboard.commands.bench.workload import parse_workload

ROOT = Path(__file__).parents[2]


def test_it_runs_without_callboard_installed_and_writes_what_it_measured(tmp_path: Path) -> None:
    packages = os.pathsep.join(path for path in sys.path if "packages" in path)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: what is installed as editable is not found
    python.chmod(0o755)
    out = tmp_path / "gpu.json"
    done = subprocess.run(
        ["bash", str(ROOT / "bench" / "gpu.sh"), "quick", "--device", "cpu", "--model", "embedded",
         "--only", "embedded", "--out", str(out)],
        env={**os.environ, "PYTHON": str(python), "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(out.read_text())
    assert written["device"].startswith("cpu")
    assert "torch" in written["versions"]
    found = {line["work"]: line["ours"] for line in written["figures"]}
    assert set(WORK) | {"served / in process", "busy, 1 row"} <= set(found)
    assert all(figure > 0 for figure in found.values())
    assert "served / in process" in done.stdout


def test_every_test_that_needs_a_gpu_is_in_a_room_that_is_run() -> None:
    """Others import packages that a machine with a GPU and nothing else has not."""
    marked = {path for path in (ROOT / "tests").rglob("*.py") if "mark.gpu" in path.read_text()} - {Path(__file__)}
    assert len(marked) > 10
    assert {path for path in marked if not any(path.is_relative_to(ROOT / room) for room in TESTED)} == set()


def test_a_part_that_fails_or_hangs_is_told_and_the_rest_can_go_on(tmp_path: Path) -> None:
    out = tmp_path / "part.json"
    broken = Part("broken", (sys.executable, "-c", "raise SystemExit(3)"), 30.0, out)
    assert run(broken, 30.0)["error"] == "ended with status 3"
    hangs = Part("hangs", (sys.executable, "-c", "import signal; signal.pause()"), 0.2)
    assert run(hangs, 0.2)["error"] == "took longer than 0 s"


@pytest.mark.anyio
async def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    findings = Findings(tmp_path / "found.json")
    with findings.attempt("one"):
        findings.add("one", {"output_tokens_a_second": 5.0})
    with findings.attempt("many"):
        raise RuntimeError("the device is gone")
    with findings.attempt("slow"):
        await anyio.lowlevel.checkpoint()
        raise TimeoutError
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["lines"] == {"one": {"output_tokens_a_second": 5.0}}
    assert written["errors"]["many"] == "RuntimeError: the device is gone"
    assert written["errors"]["slow"].startswith("TimeoutError")


def test_figures_are_read_beside_their_anchors() -> None:
    decode = {"busy_p90": 0.98, "loop_us_a_step": 100.0, "launch_us_a_step": 50.0, "collect_us_a_step": 25.0}
    lines: dict[str, Any] = {
        "one": {"output_tokens_a_second": 1000.0, "input_tokens_a_second": 1.0},
        "mixed": {"output_tokens_a_second": 30_000.0},
        "prompts": {"output_tokens_a_second": 1.0, "input_tokens_a_second": 350_000.0},
        "decode, 1 rows": decode,
        "decode, 256 rows": decode,
        "serve": {"ratio": 0.99},
    }
    found = {
        "Qwen3-0.6B": {"found": {"lines": lines}},
        "overlap": {"found": {"lines": {"mixed": {"output_tokens_a_second": 25_000.0}}}},
        "tree": {"found": {"lines": {"mixed": {"output_tokens_a_second": 30_060.0}}}},
        "shared: Qwen3-0.6B": {"found": {"lines": {"chats": {"output_tokens_a_second": 9000.0}}}},
        "alone: Qwen3-0.6B": {
            "found": {
                "lines": {"chats": {"output_tokens_a_second": 2500.0}, "mixed": {"output_tokens_a_second": 30_600.0}}
            }
        },
        "forks: Qwen3-0.6B": {"found": {"lines": {"forks of 8,192": {"output_tokens_a_second": 48_000.0}}}},
        "deterministic": {"found": {"lines": {"mixed": {"output_tokens_a_second": 27_000.0}}}},
        "join": {"found": {"kv_ms": 9.0}},
        "tests": {"error": "ended with status 1"},
    }
    known = figures(found, ["Qwen3-0.6B"])
    ours = {line["work"]: (line["ours"], line.get("reached")) for line in table(known, ["Qwen3-0.6B"])}
    assert ours["one"] == (1000.0, True)
    assert ours["many"] == (None, None)
    assert ours["prompts"] == (350_000.0, True)
    assert ours["busy, 1 row"] == (98.0, True)
    assert ours["host, 256 rows"] == (175.0, True)
    assert ours["overlap on / off"] == (1.2, True)
    assert ours["tree's cost, no hits"] == (pytest.approx(0.2), True)
    assert ours["forks of 8,192"] == (48_000.0, True)
    assert ours["deterministic costs"] == (pytest.approx(10.0), None), "its aim is the other model's, as the join's"
    assert ours["join, next token"] == (9.0, None)
    assert ours["chats"] == (9000.0, None)
    assert ours["chats, shared"] == (3.6, True)
    assert ours["groups' cost, no sharing"] == (pytest.approx(2.0), False)
    assert ours["thoughts, shared"] == (None, None)
    assert ours["served / in process"] == (0.99, None), "its aim is the other model's"


def test_anchors_are_consistent() -> None:
    assert all(str(parse_workload(text)) == text for text in WORK.values())
    assert len({(each.work, each.model) for each in ANCHORS}) == len(ANCHORS)
    for each in ANCHORS:
        assert each.limit is None or (each.aim <= each.limit) == each.more
    start = anchor("start to first token", "Llama-3.1-8B")
    assert start is not None
    assert (start.reached(11.0), start.reached(13.0)) == (True, False)
    assert anchor("one", "another") is None
