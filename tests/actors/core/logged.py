"""Actors that log their lives, and how to wait for what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio

from callboard.actors.core import (
    Actor,
    Ask,
    Inbox,
    Message,
    Ref,
    Supervisor,
)

__all__ = ["Crash", "Logged", "Note", "Return", "Stuck", "Which", "other_tasks", "settle", "spawn_all"]


class Note(Message, frozen=True):
    text: str


class Crash(Message, frozen=True):
    pass


class Which(Ask[int], frozen=True):
    pass


class Return(Message, frozen=True):
    pass


class Logged(Actor[Message]):
    """Logs its lives as `name+` and `name-`; tells which of its lives this is."""

    def __init__(self, name: str, log: list[str], fails: Callable[[], bool] = lambda: False) -> None:
        self.name = name
        self.log = log
        self.fails = fails

    async def __aenter__(self) -> Self:
        await anyio.lowlevel.checkpoint()
        if self.fails():
            self.log.append(f"{self.name}!")
            raise OSError(f"{self.name} cannot start")
        self.log.append(f"{self.name}+")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.log.append(f"{self.name}-")

    async def run(self, inbox: Inbox[Message]) -> None:
        while True:
            message, reply = await inbox.get()
            match message:
                case Crash():
                    raise ValueError(f"{self.name} was told to")
                case Return():
                    return
                case Which() if reply is not None:
                    reply.answer(self.log.count(f"{self.name}+"))
                case Note(text):
                    self.log.append(f"{self.name}:{text}")
                case _:
                    self.log.append(f"{self.name} got {message}")


class Stuck(Actor[Message]):
    """Waits forever at its first message; logs how it ended."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def receive(self, message: Message) -> None:
        self.log.append("at hand")
        await anyio.sleep_forever()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.log.append("cancelled" if isinstance(error, asyncio.CancelledError) else "ended")


async def settle() -> None:
    for _ in range(60):
        await anyio.lowlevel.checkpoint()


async def spawn_all(root: Supervisor, log: list[str], names: str) -> list[Ref[Message]]:
    return [await root.spawn(lambda name=name: Logged(name, log), name=name) for name in names]


def other_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
