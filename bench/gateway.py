"""What the gateway costs: served tokens/s over in-process tokens/s, and events/s with an engine that costs nothing.

    python bench/gateway.py [--rounds 5] [--streams 32] [--tokens 128]

The same engine, the model that ships, in the same run: rounds of 32 generations in process and rounds of 32 streams
over HTTP/1.1 take turns, and medians are compared.  The client is a process of its own, on plain sockets, so that what
is measured is the server; both share the machine's cores.  Then an engine that echoes tokens shows how many events a
second the gateway itself can write.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

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


async def served_over_in_process(rounds: int, streams: int, tokens: int) -> dict[str, Any]:
    sampling = SamplingParams(max_new_tokens=tokens, ignore_eos=True, temperature=0.0)
    body = {
        "prompt": "The capital of France is",
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    async with Engine("embedded", max_rows=streams, threads=1) as engine, Supervisor("bench", grace=10.0) as supervisor:

        async def inside() -> float:
            async def one() -> None:
                async for _ in engine.generate("The capital of France is", sampling):
                    pass

            began = time.perf_counter()
            async with anyio.create_task_group() as group:
                for _ in range(streams):
                    group.start_soon(one)
            return streams * tokens / (time.perf_counter() - began)

        url = await serve(supervisor, engine)
        async with Client(url, streams, "/v1/completions", body) as over:
            await inside()
            await over.round()
            alone: list[float] = []
            served: list[float] = []
            events: list[float] = []
            for _ in range(rounds):
                alone.append(await inside())
                seen = await over.round()
                served.append(streams * tokens / seen["seconds"])
                events.append(seen["events"])
    return {
        "streams": streams,
        "tokens": tokens,
        "in_process_tokens_s": statistics.median(alone),
        "served_tokens_s": statistics.median(served),
        "ratio": statistics.median(served) / statistics.median(alone),
        "ratio_by_round": [one / other for one, other in zip(served, alone, strict=True)],
        "events_a_token": statistics.median(events) / (streams * tokens),
        "target": TARGET,
    }


async def events_alone(rounds: int, streams: int, path: str) -> dict[str, Any]:
    """The gateway over an engine that costs nothing: every token a delta, by way of the loop."""
    text = "x" * 200
    fields = {"text": text} if path == "/generate" else {"prompt": text, "max_tokens": 200}
    async with Supervisor("bench", grace=10.0) as supervisor:
        url = await serve(supervisor, FakeEngine())
        async with Client(url, streams, path, {**fields, "stream": True}) as over:
            await over.round()
            spent = time.process_time()
            seen = [await over.round() for _ in range(rounds)]
            spent = time.process_time() - spent
    rates = [one["events"] / one["seconds"] for one in seen]
    return {
        "path": path,
        "streams": streams,
        "events_s": statistics.median(rates),
        "cpu_us_an_event": 1e6 * spent / sum(one["events"] for one in seen),
        "bytes_an_event": seen[0]["bytes"] / seen[0]["events"],
        "first_event_ms": 1000 * statistics.median(one["first_s"] for one in seen),
    }


async def serve(supervisor: Supervisor, service: Service) -> str:
    ref = await supervisor.spawn(lambda: Gateway(service, GatewayOptions(port=0, grace_s=0.0)), name="gateway")
    return await ref.ask(Address())


async def main(rounds: int, streams: int, tokens: int) -> None:
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("callboard", "hypercorn", "starlette", "torch")},
        "cpu": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "load_average": os.getloadavg()[0],
        "rounds": rounds,
        "engine": await served_over_in_process(rounds, streams, tokens),
        "events": [
            await events_alone(rounds, count, path) for path in ("/v1/completions", "/generate") for count in (32, 256)
        ],
    }
    table = Table("what", "figure", "limit")
    engine = result["engine"]
    table.add_row(f"in process, {streams} x {tokens} tokens", f"{engine['in_process_tokens_s']:,.0f} tokens/s", "")
    table.add_row(f"served, {streams} SSE streams", f"{engine['served_tokens_s']:,.0f} tokens/s", "")
    table.add_row("served over in process", f"{engine['ratio']:.2f}", f"at least {TARGET}")
    for one in result["events"]:
        told = f"{one['events_s']:,.0f} events/s, {one['cpu_us_an_event']:.0f} us of CPU each"
        table.add_row(
            f"{one['path']}, {one['streams']} streams, echo engine", told, f"{one['bytes_an_event']:.0f} B each"
        )
    Console().print(table)
    path = ROOT / "bench" / "results" / "gateway.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--client", metavar="URL")
    parser.add_argument("--path")
    parser.add_argument("--body")
    given = parser.parse_args()
    if given.client:
        anyio.run(client, given.client, given.streams, given.path, given.body.encode())
    else:
        anyio.run(main, given.rounds, given.streams, given.tokens)
