"""callboard serve: how it starts, ends and fails, and the line a second that it tells."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest

from callboard.__main__ import main
from callboard.actors.core import ActorDied, simulate
from callboard.commands import serve
from callboard.commands.statistics_line import statistics_line

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "callboard", "serve", "--port", "0", "--grace", "0.2"],
        stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, "CALLBOARD_API_KEY": "sk-test"},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"address +(http://\S+)", line):
                    break
            else:
                raise AssertionError("it never told its address")
            yield process, found[1]
        finally:
            process.kill()


def test_serve_answers_and_a_signal_ends_it(server: tuple[subprocess.Popen[str], str]):
    process, url = server
    headers = {"authorization": "Bearer sk-test"}
    body = {
        "text": "Q: What is the capital of France?\nA:",
        "sampling_params": {"max_new_tokens": 16, "temperature": 0},
    }
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        assert client.get("/health").status_code == 200
        assert client.post("/generate", json=body).status_code == 401
        assert client.post("/generate", json=body, headers=headers).json()["text"]
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopping" in rest
    assert "Traceback" not in rest


def test_a_tls_connection_that_ends_untidily_is_no_news_and_anything_else_is(caplog: pytest.LogCaptureFixture):
    loop = asyncio.new_event_loop()
    untidy = ssl.SSLError(1, "application data after close notify")
    try:
        serve.pass_over_tls(loop, {"message": "a client", "exception": untidy})
        serve.pass_over_tls(loop, {"message": "a client", "exception": ExceptionGroup("all", [untidy])})
        assert not caplog.records
        serve.pass_over_tls(loop, {"message": "a bug", "exception": KeyError("x")})
        serve.pass_over_tls(loop, {"message": "a task was destroyed"})
    finally:
        loop.close()
    assert [record.getMessage() for record in caplog.records] == ["a bug", "a task was destroyed"]


def test_serve_on_a_taken_address_says_so_before_it_loads_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    made: list[Any] = []
    monkeypatch.setattr(serve, "make_engine", made.append)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert capsys.readouterr().err == f"callboard: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert not made


def test_serve_on_a_host_that_is_not_there_says_so(capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--host", "nowhere.invalid"]) == 1
    assert capsys.readouterr().err.startswith("callboard: cannot listen on host 'nowhere.invalid': ")


def statistics(**changes: Any) -> dict[str, Any]:
    scheduler = {
        "running": 0, "waiting": 0, "output_tokens": 50, "computed_tokens": 10, "slots": 10_000, "slots_free": 7500,
        "hit_rate": 0.5, "host_seconds": 1.0, "retractions": 1,
    }  # fmt: skip
    worker = {"steps": 10, "forward_s": 1.0, "launch_s": 0.5, "collect_s": 0.25, "graphs": 0, "graph_bytes": 0}
    known = scheduler.keys() | worker.keys()
    assert changes.keys() <= known
    return {
        "scheduler": scheduler | {name: value for name, value in changes.items() if name in scheduler},
        "worker": worker | {name: value for name, value in changes.items() if name in worker},
    }


def test_a_line_is_told_only_when_busy():
    idle = statistics()
    assert statistics_line({}, idle, 1.0) == ""
    assert statistics_line(idle, idle, 1.0) == ""
    waiting = statistics(waiting=1)
    assert statistics_line(idle, waiting, 1.0) == (
        "running 0  waiting 1  tokens/s 0 out 0 in  hits 50%  slots 25% of 10,000"
    )


def test_a_line_tells_rates_parts_of_a_step_and_how_busy_the_device_is():
    busy = statistics(
        running=3, waiting=1, output_tokens=90, computed_tokens=2010, host_seconds=1.004, retractions=3, steps=30,
        forward_s=2.96, launch_s=0.502, collect_s=0.251, graphs=12, graph_bytes=300 << 20,
    )  # fmt: skip
    assert statistics_line(statistics(), busy, 2.0) == (
        "running 3  waiting 1  tokens/s 20 out 1,000 in  hits 50%  slots 25% of 10,000  "
        "step 98.00 ms (launch 100 collect 50 plan 200 us)  device 98%  graphs 12 (300 MiB)  retracted 2"
    )


def test_lines_come_at_their_interval_while_there_is_work(capsys: pytest.CaptureFixture[str]):
    """Ten virtual seconds: busy in the third and fourth, a line every two."""
    asked: list[float] = []

    async def ask() -> dict[str, Any]:
        now = anyio.current_time()
        asked.append(now)
        return statistics(output_tokens=50 + 100 * min(4, max(2, round(now - asked[0]))))

    async def main() -> None:
        with anyio.move_on_after(10.5):
            await serve.report(ask, 2.0)

    simulate.run(main, seed=1)
    assert len(asked) == 6
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("tokens/s ")[2].split()[0] for line in told] == ["100"]


def test_a_core_that_starts_again_costs_a_line_and_not_the_server(capsys: pytest.CaptureFixture[str]):
    answers = iter([statistics(), ActorDied("worker"), statistics(running=1, output_tokens=20)])

    async def ask() -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> None:
        with anyio.move_on_after(2.5):
            await serve.report(ask, 1.0)

    simulate.run(main, seed=1)
    assert "running 1  waiting 0  tokens/s 0 out" in capsys.readouterr().err
