"""A scripted backend that notes what it is told of leases, and programs that play against it in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

import callboard as cb
from callboard.actors.core import simulate

__all__ = ["Body", "noting", "play"]

Body = Callable[[Any], Awaitable[None]]


def noting(scripted: Any, *lines: Any, joining: bool = False) -> Any:
    """A backend that computes ahead, or joins KV.  told: what was told of which lease, and of how many tokens."""

    class Noting(scripted):
        joins, eager = joining, not joining

        def __init__(self) -> None:
            super().__init__(*lines)
            self.told: list[tuple[Any, ...]] = []
            self.leases = 0

        def lease(self) -> int:
            self.leases += 1
            return self.leases

        def release(self, lease: int) -> None:
            self.told.append(("release", lease))

        def pause(self, lease: int, tokens: bytes, joins: bytes = b"") -> None:
            self.told.append(("pause", lease, len(tokens) // 4))

        def resume(self, lease: int) -> None:
            self.told.append(("resume", lease))

    return Noting()


def play(scripted: Any, body: Body, *lines: Any, joining: bool = False) -> Any:
    """Run a program to its end, in time that only passes while everybody waits; give its backend."""

    async def main() -> Any:
        async with noting(scripted, *lines, joining=joining) as backend:
            with anyio.move_on_after(60):
                await cb.function(body).arun(backend=backend)
            return backend

    return simulate.run(main, seed=1).value
