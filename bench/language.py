"""What the language costs: programs a second, CPU a program and memory a program, beside SGLang 0.5.9's frontend.

    python bench/language.py            # makes the peer's virtual environment under /tmp on first use

No model runs: both backends answer "Paris" after a fixed latency, so what is measured is the frontend.  Each figure is
measured in a process of its own, ours and the peer's in turn, and the median of the rounds is kept.  The peer's
environment holds sglang without its dependencies (they bring CUDA), and the few its `lang` folder imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import language_live
from language_live import ITEM, LIVE

PEER = Path("/tmp/callboard-bench-sglang")
PEER_VERSION = "0.5.9"
PEER_NEEDS = ["numpy", "tqdm", "pybase64", "requests", "ipython", "pydantic", "aiohttp"]
RESULTS = Path(__file__).parent / "results" / "language.json"

LATENCY_S = 0.05
AT_ONCE = 2000


def chat_body(lang: Any) -> Any:
    def chat(s, first, second):
        s += lang.system("You are a helpful assistant.")
        s += lang.user(first)
        s += lang.assistant(lang.gen("first_answer", max_tokens=64))
        s += lang.user(second)
        s += lang.assistant(lang.gen("second_answer", max_tokens=64))

    return lang.function(chat)


def reading_body(lang: Any) -> Any:
    """Give a chat whose body waits for its first answer, as control flow does."""

    def reading(s, first, second):
        s += lang.user(first)
        s += lang.assistant(lang.gen("first_answer", max_tokens=64))
        s += lang.user(second if "Paris" in s["first_answer"] else first)
        s += lang.assistant(lang.gen("second_answer", max_tokens=64))

    return lang.function(reading)


def fork_body(lang: Any) -> Any:
    def fork(s, first, second):  # noqa: ARG001
        s += first
        branches = s.fork(8)
        for index, branch in enumerate(branches):
            branch += f"tip {index}: " + lang.gen("tip", max_tokens=64)
        branches.join()
        s += lang.gen("summary", max_tokens=64)

    return lang.function(fork)


# --- one measurement, in a process of its own ---------------------------------------------------------------------


def ours(case: str) -> dict[str, float]:
    import callboard

    async def measure() -> dict[str, float]:
        latency = LATENCY_S if case.endswith("50ms") else 0.0
        body = {"chat": chat_body, "read": reading_body, "fork": fork_body}[case.split("_", maxsplit=1)[0]](callboard)
        count = 500 if case.startswith("fork") else AT_ONCE
        async with callboard.NullBackend(latency_s=latency, text="Paris") as backend:
            await body.arun_batch([ITEM] * 20, backend=backend)
            wall, cpu = time.perf_counter(), time.process_time()
            states = await body.arun_batch([ITEM] * count, backend=backend)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        check(states, case)
        return {"programs_s": count / wall, "cpu_us": cpu / count * 1e6}

    lives = {
        "live": lambda: language_live.live(reading_body(callboard)),
        "branches": lambda: language_live.branches(100),
        "first_chunk": language_live.first_chunk,
    }
    return asyncio.run(lives.get(case, measure)())


def peer(case: str) -> dict[str, float]:
    import sglang
    from sglang.lang.backend.base_backend import BaseBackend
    from sglang.lang.chat_template import get_chat_template

    if case == "first_chunk":
        return language_live.peer_first_chunk()
    latency = LATENCY_S if case.endswith("50ms") else 0.0

    class NullBackend(BaseBackend):
        def __init__(self) -> None:
            super().__init__()
            self.chat_template = get_chat_template("default")

        def get_chat_template(self):
            return self.chat_template

        def generate(self, s, sampling_params):  # noqa: ARG002
            if latency:
                time.sleep(latency)
            return "Paris", {}

    body = {"chat": chat_body, "read": reading_body, "fork": fork_body}[case.split("_", maxsplit=1)[0]](sglang)
    count = 200 if case.startswith("fork") else AT_ONCE
    backend = NullBackend()
    body.run_batch([dict(ITEM) for _ in range(20)], backend=backend)
    wall, cpu = time.perf_counter(), time.process_time()
    states = body.run_batch([dict(ITEM) for _ in range(count)], backend=backend)
    for state in states:
        state.sync()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    check(states, case)
    return {"programs_s": count / wall, "cpu_us": cpu / count * 1e6}


def check(states: list[Any], case: str) -> None:
    name = "summary" if case.startswith("fork") else "second_answer"
    assert all(state[name] == "Paris" for state in states), "a program did not come to its end"


# --- all of them --------------------------------------------------------------------------------------------------


def peer_python() -> Path | None:
    """Give the peer's interpreter, making its environment on first use; None if that fails."""
    python = PEER / "bin" / "python"
    if not python.exists():
        pip = [str(python), "-m", "pip", "install", "-q"]
        try:
            subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
            subprocess.run([*pip, "--no-deps", f"sglang=={PEER_VERSION}"], check=True)
            subprocess.run([*pip, *PEER_NEEDS], check=True)
        except subprocess.CalledProcessError as error:
            print(f"no peer: {error}", file=sys.stderr)
            return None
    return python


def measure(python: Path | str, who: str, case: str) -> dict[str, float]:
    done = subprocess.run([str(python), __file__, "--one", who, case], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("WHO", "CASE"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.one:
        who, case = options.one
        print(json.dumps((ours if who == "ours" else peer)(case)))
        return
    python = peer_python()
    cases = {
        "chat_50ms": f"two-turn chat, 50 ms a call, {AT_ONCE} at once",
        "read_50ms": f"the same, the body reads the first answer, {AT_ONCE} at once",
        "chat": "two-turn chat, no latency",
        "fork": "fork of 8 and join, no latency",
    }
    results: dict[str, Any] = {}
    for case in cases:
        mine, theirs = [], []
        for _ in range(options.rounds):
            mine.append(measure(sys.executable, "ours", case))
            if python is not None:
                theirs.append(measure(python, "peer", case))
        results[case] = {"ours": median(mine), "peer": median(theirs) if theirs else None}
    results["live"] = {"ours": measure(sys.executable, "ours", "live"), "programs": LIVE}
    results["branches"] = {"ours": measure(sys.executable, "ours", "branches")}
    results["first_chunk"] = {
        "ours": measure(sys.executable, "ours", "first_chunk"),
        "peer": None if python is None else measure(python, "peer", "first_chunk"),
    }
    report(cases, results)


def report(cases: dict[str, str], results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"language, beside SGLang {PEER_VERSION}")
    for column in ("program", "programs/s", "peer", "ratio", "CPU us a program", "peer", "ratio"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for case, words in cases.items():
        mine, theirs = results[case]["ours"], results[case]["peer"]
        row = [words]
        for key in ("programs_s", "cpu_us"):
            row.append(f"{mine[key]:,.0f}")
            row += [f"{theirs[key]:,.0f}", f"{mine[key] / theirs[key]:.2f}"] if theirs else ["-", "-"]
        table.add_row(*row)
    console = Console()
    console.print(table)
    live = results["live"]["ours"]
    size, cancel = f"{live['bytes']:,.0f} bytes each (limit 25,000)", f"{live['cancel_us']:.0f} us"
    console.print(f"{LIVE:,} live programs: {size}; {live['threads_more']:.0f} threads more; cancelling one: {cancel}")
    tree = results["branches"]["ours"]
    console.print(
        f"{tree['branches']:,.0f} branches, forks of forks: {tree['cpu_us']:.0f} us and {tree['bytes']:,.0f} bytes "
        f"each, {tree['wall_s']:.2f} s in all; cancelling one: {tree['cancel_us']:.0f} us"
    )
    for who, chunk in results["first_chunk"].items():
        if chunk is not None:
            console.print(
                f"first chunk after the backend's, {chunk['programs']:,.0f} live programs, {who}: "
                f"median {chunk['median_ms']:.2f} ms, p99 {chunk['p99_ms']:.2f} ms (limit 1 ms)"
            )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps(
            {
                "date": date.today().isoformat(),
                "python": platform.python_version(),
                "machine": f"{platform.machine()}, {len(__import__('os').sched_getaffinity(0))} cores",
                "peer": f"sglang {PEER_VERSION}",
                "results": results,
            },
            indent=2,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
