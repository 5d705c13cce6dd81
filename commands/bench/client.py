"""The client of callboard bench serve, in a process of its own, so that what it costs is not the server's.

    python -m callboard.commands.bench.client URL WORKLOAD VOCABULARY TEMPERATURE

Each line on standard input is a round: all requests of the workload at once, each a stream of /v1/completions over a
connection of its own, which is open before time counts.  It answers with one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import anyio
import numpy as np

from .workload import Request, parse_workload

__all__ = ["Seen", "Stream", "message", "run_round", "summary"]

_TAIL = 4096  # bytes kept of a reply, for its last event and what an error says
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_COUNT = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(slots=True)
class Seen:
    """What a client saw of one request: when each write of the server came, in seconds, and how many events."""

    arrivals: list[float] = field(default_factory=list[float])
    events: int = 0
    outputs: int = 0


class Stream(asyncio.Protocol):
    """One request and its streamed reply, over HTTP/1.1 as it stands on the wire."""

    def __init__(self) -> None:
        self.seen = Seen()
        self._tail = b""
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, message: bytes) -> Seen:
        """Send a whole HTTP request and wait for its reply's end.  Raises RuntimeError if that is no whole stream."""
        assert self._transport is not None
        self._transport.write(message)
        await self._ended
        counts = _COUNT.findall(self._tail)
        if not self.seen.events or not counts:
            raise RuntimeError(f"the server did not stream to the end: {self._tail[-500:]!r}")
        self.seen.outputs = int(counts[-1])
        return self.seen

    def data_received(self, data: bytes) -> None:
        events = data.count(b"data: ")
        if events:
            self.seen.arrivals.append(perf_counter())
            self.seen.events += events
        self._tail = (self._tail + data)[-_TAIL:]
        if self._tail.endswith(b"0\r\n\r\n") or (not self.seen.events and self._refused()):
            self._end()

    def _refused(self) -> bool:
        """Tell whether a whole reply of a given length is there: an error, for a stream has no length."""
        head, _, body = self._tail.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        return length is not None and len(body) >= int(length[1])

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # what is missing shows in what was received
        self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


def message(request: Request, temperature: float) -> bytes:
    """Write the HTTP request of a stream."""
    body = {
        "prompt": np.frombuffer(request.prompt, np.int32).tolist(),
        "max_tokens": request.outputs,
        "ignore_eos": True,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    packed = json.dumps(body, separators=(",", ":")).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(packed)}\r\n\r\n"
    )
    return head.encode() + packed


async def run_round(url: str, messages: list[bytes]) -> tuple[float, list[Seen]]:
    """Run all requests at once; gives the seconds from the first write to the last event, and what was seen."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    loop = asyncio.get_running_loop()
    streams = [(await loop.create_connection(Stream, host, int(port)))[1] for _ in messages]
    seen: list[Seen] = []
    begun = perf_counter()

    async def one(stream: Stream, sent: bytes) -> None:
        seen.append(await stream.ask(sent))

    try:
        async with anyio.create_task_group() as group:
            for stream, sent in zip(streams, messages, strict=True):
                group.start_soon(one, stream, sent)
        seconds = perf_counter() - begun
    finally:
        for stream in streams:
            stream.close()
    for each in seen:
        each.arrivals[:] = [arrival - begun for arrival in each.arrivals]
    return seconds, seen


def summary(seconds: float, seen: list[Seen]) -> dict[str, Any]:
    """Tell rates and waits: to the first event, and between two writes of the server behind it."""
    firsts = [each.arrivals[0] for each in seen]
    between = [gap for each in seen for gap in np.diff(each.arrivals).tolist()] or [0.0]
    outputs = sum(each.outputs for each in seen)
    a_token = [(each.arrivals[-1] - each.arrivals[0]) / (each.outputs - 1) for each in seen if each.outputs > 1] or [
        0.0
    ]
    return {
        "seconds": seconds,
        "outputs": outputs,
        "events_a_token": sum(each.events for each in seen) / max(1, outputs),
        "first_token_s_p50": float(np.percentile(firsts, 50)),
        "first_token_s_p99": float(np.percentile(firsts, 99)),
        "between_ms_p50": 1e3 * float(np.percentile(between, 50)),
        "between_ms_p99": 1e3 * float(np.percentile(between, 99)),
        "a_token_ms_p50": 1e3 * float(np.percentile(a_token, 50)),
        "a_token_ms_p99": 1e3 * float(np.percentile(a_token, 99)),
    }


async def _main(url: str, workload: str, vocabulary: int, temperature: float) -> None:
    messages = [message(request, temperature) for request in parse_workload(workload).requests(vocabulary)]
    async for _ in anyio.wrap_file(sys.stdin):
        print(json.dumps(summary(*await run_round(url, messages))), flush=True)


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
