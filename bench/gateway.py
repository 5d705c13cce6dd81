"""What the gateway costs: served tokens/s over in-process tokens/s, and events/s with an engine that costs nothing.

    python bench/gateway.py [--rounds 5] [--streams 32] [--tokens 128]

The same engine, the model that ships, in the same run: rounds of 32 generations in process and rounds of 32 streams
over HTTP/1.1 take turns, and medians are compared; CPU time a token of this process (engine and gateway, not the
client) is told beside, which other work on the machine disturbs less.  All that twice: with every delta an event, and
with the gateway's own beat.  The client is a process of its own, on plain sockets, so that what is measured is the
server; both share the machine's cores.  Then an engine that echoes tokens shows what an event costs the gateway itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from callboard.actors.core import Supervisor  # noqa: E402
from callboard.actors.engine import Engine  # noqa: E402
from callboard.actors.gateway import Address, Gateway, GatewayOptions, Service  # noqa: E402
from callboard.actors.sampling import SamplingParams  # noqa: E402
from tests.actors.gateway.fake_engine import FakeEngine  # noqa: E402

TARGET = 0.8
PROMPT = "The capital of France is"


# --- the client, in a process of its own ---


async def client(url: str, streams: int, path: str, body: bytes) -> None:
    """Read lines from standard input; for each, run all streams at once and answer with what was seen."""
    host, port = url.removeprefix("http://").split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    sockets = [await anyio.connect_tcp(host, int(port)) for _ in range(streams)]
    lines = anyio.wrap_file(sys.stdin)
    async for _ in lines:
        seen = Seen()
        async with anyio.create_task_group() as group:
            for socket in sockets:
                group.start_soon(seen.read, socket, request)
        print(seen.told(), flush=True)


class Seen:
    """What one round of streams brought."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._first: list[float] = []
        self._counts = {"events": 0, "writes": 0, "bytes": 0}

    async def read(self, socket: Any, request: bytes) -> None:
        await socket.send(request)
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            data = await socket.receive()
            if not tail:
                self._first.append(time.perf_counter() - self._began)
            self._counts["events"] += data.count(b"data: ")
            self._counts["writes"] += 1
            self._counts["bytes"] += len(data)
            tail = (tail + data)[-16:]

    def told(self) -> str:
        seconds = time.perf_counter() - self._began
        return json.dumps({**self._counts, "seconds": seconds, "first_s": statistics.median(self._first)})


class Client:
    """The client's process, seen from here."""

    def __init__(self, url: str, streams: int, path: str, body: dict[str, Any]) -> None:
        self._command = [
            sys.executable, __file__, "--client", url, "--streams", str(streams), "--path", path,
            "--body", json.dumps(body),
        ]  # fmt: skip

    async def __aenter__(self) -> Client:
        self._process = await anyio.open_process(self._command, stderr=None)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._process.kill()
        await self._process.aclose()

    async def round(self) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        await self._process.stdin.send(b"go\n")
        line = b""
        while not line.endswith(b"\n"):
            line += await self._process.stdout.receive()
        return msgspec.json.decode(line)


# --- the server's side ---


class Round(NamedTuple):
    """What one round brought."""

    tokens_s: float
    cpu_us_a_token: float
    events: float = 0.0
    first_s: float = 0.0


async def served_over_in_process(
    rounds: int, streams: int, tokens: int, intervals: Sequence[float | None]
) -> list[dict[str, Any]]:
    sampling = SamplingParams(max_new_tokens=tokens, min_new_tokens=tokens, temperature=0.0)
    # No end before the last token: behind an end that is ignored come tokens without text, which make no event.
    body = {
        "prompt": PROMPT,
        "max_tokens": tokens,
        "min_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }
    count = streams * tokens
    async with (
        Engine("embedded", max_rows=streams, threads=1) as engine,
        Supervisor("bench", grace=10.0) as supervisor,
        AsyncExitStack() as stack,
    ):

        async def inside() -> Round:
            async def one() -> None:
                async for _ in engine.generate(PROMPT, sampling):
                    pass

            began, spent = time.perf_counter(), time.process_time()
            async with anyio.create_task_group() as group:
                for _ in range(streams):
                    group.start_soon(one)
            spent, seconds = time.process_time() - spent, time.perf_counter() - began
            return Round(count / seconds, 1e6 * spent / count)

        async def outside(over: Client) -> Round:
            spent = time.process_time()
            seen = await over.round()
            spent = time.process_time() - spent
            return Round(count / seen["seconds"], 1e6 * spent / count, seen["events"], seen["first_s"])

        clients: list[Client] = []
        for number, interval_ms in enumerate(intervals):
            url = await serve(supervisor, engine, f"gateway-{number}", stream_interval_ms=interval_ms)
            clients.append(await stack.enter_async_context(Client(url, streams, "/v1/completions", body)))
        await inside()
        for client in clients:
            await client.round()
        alone: list[Round] = []
        served: list[list[Round]] = [[] for _ in clients]
        for _ in range(rounds):
            alone.append(await inside())
            for client, seen in zip(clients, served, strict=True):
                seen.append(await outside(client))
    return [
        {
            "streams": streams,
            "tokens": tokens,
            "interval_ms": interval_ms,
            "in_process_tokens_s": _median(alone, "tokens_s"),
            "served_tokens_s": _median(seen, "tokens_s"),
            "ratio": _median(seen, "tokens_s") / _median(alone, "tokens_s"),
            "ratio_by_round": [one.tokens_s / other.tokens_s for one, other in zip(seen, alone, strict=True)],
            "in_process_cpu_us_a_token": _median(alone, "cpu_us_a_token"),
            "served_cpu_us_a_token": _median(seen, "cpu_us_a_token"),
            "events_a_token": _median(seen, "events") / count,
            "first_event_ms": 1000 * _median(seen, "first_s"),
            "target": TARGET,
        }
        for interval_ms, seen in zip(intervals, served, strict=True)
    ]


def _median(rounds: list[Round], field: str) -> float:
    return statistics.median(getattr(one, field) for one in rounds)


async def events_alone(rounds: int, streams: int, path: str, length: int) -> dict[str, Any]:
    """The gateway over an engine that costs nothing: every token a delta and an event, by way of the loop."""
    text = "x" * length
    fields = {"text": text} if path == "/generate" else {"prompt": text, "max_tokens": len(text)}
    async with Supervisor("bench", grace=10.0) as supervisor:
        url = await serve(supervisor, FakeEngine(), "gateway", stream_interval_ms=0.0)
        async with Client(url, streams, path, {**fields, "stream": True}) as over:
            await over.round()
            spent = time.process_time()
            seen = [await over.round() for _ in range(rounds)]
            spent = time.process_time() - spent
    rates = [one["events"] / one["seconds"] for one in seen]
    return {
        "path": path,
        "streams": streams,
        "tokens": length,
        "cpu_us_a_request": 1e6 * spent / (rounds * streams),
        "events_s": statistics.median(rates),
        "cpu_us_an_event": 1e6 * spent / sum(one["events"] for one in seen),
        "bytes_an_event": seen[0]["bytes"] / seen[0]["events"],
        "first_event_ms": 1000 * statistics.median(one["first_s"] for one in seen),
    }


async def serve(supervisor: Supervisor, service: Service, name: str, **options: Any) -> str:
    given = GatewayOptions(port=0, grace_s=0.0, **options)
    ref = await supervisor.spawn(lambda: Gateway(service, given), name=name)
    return await ref.ask(Address())


async def main(rounds: int, streams: int, tokens: int) -> None:
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("callboard", "hypercorn", "starlette", "torch")},
        "cpu": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "load_average": os.getloadavg()[0],
        "rounds": rounds,
        "engine": await served_over_in_process(rounds, streams, tokens, (0.0, None)),
        "events": [
            await events_alone(rounds, count, path, 6400 // count)
            for path in ("/v1/completions", "/generate")
            for count in (32, 256)
        ],
        "requests": await events_alone(10 * rounds, 32, "/v1/completions", 1),
    }
    table = Table("what", "tokens/s or events/s", "ratio", "CPU, us each", "limit")
    first = result["engine"][0]
    table.add_row(
        f"in process, {streams} x {tokens} tokens", f"{first['in_process_tokens_s']:,.0f}", "",
        f"{first['in_process_cpu_us_a_token']:.0f}", "",
    )  # fmt: skip
    for one in result["engine"]:
        told = "every delta" if one["interval_ms"] == 0 else "by the beat"
        table.add_row(
            f"served, {told}, {one['events_a_token']:.2f} events a token", f"{one['served_tokens_s']:,.0f}",
            f"{one['ratio']:.2f}", f"{one['served_cpu_us_a_token']:.0f}", f"at least {TARGET}",
        )  # fmt: skip
    for one in result["events"]:
        what = f"{one['path']}, {one['streams']} streams, echo engine, {one['bytes_an_event']:.0f} B each"
        table.add_row(what, f"{one['events_s']:,.0f}", "", f"{one['cpu_us_an_event']:.0f}", "")
    table.add_row("requests of one token, echo engine", "", "", f"{result['requests']['cpu_us_a_request']:.0f}", "")
    Console(width=140).print(table)
    path = ROOT / "bench" / "results" / "gateway.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--client", metavar="URL")
    parser.add_argument("--path")
    parser.add_argument("--body")
    given = parser.parse_args()
    if given.client:
        anyio.run(client, given.client, given.streams, given.path, given.body.encode())
    else:
        anyio.run(main, given.rounds, given.streams, given.tokens)
