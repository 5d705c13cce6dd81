"""An actor that keeps what it is told, and answers asks from a table; and one that has no room for more."""

from __future__ import annotations

from typing import Any

import anyio

from callboard.actors.core import Actor, MailboxFull, Message

__all__ = ["Collector", "Full", "until"]


class Collector(Actor[Any]):
    """Append every message to `heard`; answer an ask with answers[type(ask)]."""

    def __init__(self, heard: list[Message], answers: dict[type, Any] | None = None) -> None:
        self.heard = heard
        self.answers = answers or {}

    async def receive(self, message: Message) -> Any:
        self.heard.append(message)
        return self.answers.get(type(message))


class Full:
    """The address of an actor that is far behind with its mail."""

    def post(self, message: Message) -> None:
        raise MailboxFull("actor", 1)


async def until(condition: Any) -> None:
    """Let the loop run until `condition()` holds."""
    with anyio.fail_after(10):
        while not condition():
            await anyio.lowlevel.checkpoint()
