"""callboard bench serve: the same requests over HTTP and in process, one after the other in one run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from ...actors.gateway import Address, Gateway, GatewayOptions
from .offline import run_workload
from .workload import Workload

if TYPE_CHECKING:
    from .setting import Setting

__all__ = ["measure_serve", "print_serve", "serving"]


@asynccontextmanager
async def serving(setting: Setting) -> AsyncIterator[str]:
    """Serve the engine on a free port of this machine; gives the URL."""
    engine = setting.engine
    supervisor = await engine.supervisor.supervise("gateway", grace=10.0)
    ref = await supervisor.spawn(lambda: Gateway(engine, GatewayOptions(port=0, grace_s=0.0)), name="gateway")
    try:
        yield await ref.ask(Address())
    finally:
        await ref.stop()


class _Client:
    """The client's process, seen from here."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process

    async def round(self) -> dict[str, Any]:
        """Let it send all its requests; gives what it saw.  Raises RuntimeError if it ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        try:
            await self._process.stdin.send(b"go\n")
            while not line.endswith(b"\n"):
                line += await self._process.stdout.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            raise RuntimeError("the client ended before its requests did; its own words stand above") from None
        return json.loads(line)


@asynccontextmanager
async def _client(url: str, workload: Workload, vocabulary: int, temperature: float) -> AsyncIterator[_Client]:
    command = [sys.executable, "-m", f"{__package__}.client", url, str(workload), str(vocabulary), str(temperature)]
    process = await anyio.open_process(command, stderr=None, stdout=subprocess.PIPE)
    try:
        yield _Client(process)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def measure_serve(
    setting: Setting, url: str, workload: Workload, *, rounds: int = 1, temperature: float = 0.0
) -> dict[str, Any]:
    """Run a workload in process and over HTTP, in turns; tells the best of each and their ratio."""
    engine = setting.engine
    requests = workload.requests(engine.limits.vocabulary)
    alone: list[float] = []
    served: list[dict[str, Any]] = []
    async with _client(url, workload, engine.limits.vocabulary, temperature) as client:
        for _ in range(rounds):
            alone.append((await run_workload(engine, requests, temperature=temperature)).output_rate)
            await engine.flush()
            before = await engine.statistics()
            seen = await client.round()
            after = await engine.statistics()
            device_s = after["worker"]["forward_s"] - before["worker"]["forward_s"]
            seen["tokens_a_second"] = seen["outputs"] / seen["seconds"]
            seen["busy"] = device_s / seen["seconds"] / engine.limits.replicas
            served.append(seen)
    wanted = sum(request.outputs for request in requests)
    if served[0]["outputs"] != wanted:
        raise RuntimeError(f"the server gave {served[0]['outputs']} tokens instead of {wanted}")
    best = min(served, key=lambda seen: seen["seconds"])
    return {
        "workload": str(workload),
        "in_process_tokens_a_second": max(alone),
        "served_tokens_a_second": best["tokens_a_second"],
        "ratio": best["tokens_a_second"] / max(alone),
        **{name: value for name, value in best.items() if name != "tokens_a_second"},
    }


def print_serve(line: dict[str, Any], *, first: bool) -> None:
    """Print a line of the table, below its head if it is the first."""
    if first:
        print(f"{'workload':>28} {'in process':>10} {'served':>10} {'ratio':>6} {'busy':>6} {'first p50':>9} "
              f"{'p99 s':>7} {'gap p50':>8} {'p99 ms':>7} {'events':>7}")  # fmt: skip
    rates = line["in_process_tokens_a_second"], line["served_tokens_a_second"]
    print(f"{line['workload']:>28} {rates[0]:>10,.0f} {rates[1]:>10,.0f} {line['ratio']:>6.3f} {line['busy']:>6.1%} "
          f"{line['first_token_s_p50']:>9.3f} {line['first_token_s_p99']:>7.3f} {line['between_ms_p50']:>8.1f} "
          f"{line['between_ms_p99']:>7.1f} {line['events_a_token']:>7.2f}", flush=True)  # fmt: skip
