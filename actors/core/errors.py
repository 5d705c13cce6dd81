"""The states in which the actor library raises."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ActorDied",
    "AskCycle",
    "DeadLetter",
    "MailboxFull",
    "RestartLimit",
    "Stopped",
    "SupervisorClosed",
]


class ActorDied(Exception):
    """Raised at an asker when the actor ended or crashed before it answered; the crash is the `__cause__`."""

    def __init__(self, name: str, cause: BaseException | None = None, reason: str = "stopped") -> None:
        detail = reason if cause is None else f"{type(cause).__name__}: {cause}"
        super().__init__(f"actor {name!r} ended before it answered ({detail})")
        self.name = name
        self.__cause__ = cause


class MailboxFull(Exception):
    """Raised when a mailbox is at its bound."""

    def __init__(self, name: str, bound: int) -> None:
        super().__init__(f"the mailbox of {name!r} holds {bound} messages, its bound; use tell to wait for room")
        self.name = name
        self.bound = bound


class RestartLimit(Exception):
    """Raised when a supervisor's children crashed more often than `restarts` in `within` seconds.

    The last crash is its `__cause__`.
    """

    def __init__(self, name: str, restarts: int, within: float) -> None:
        super().__init__(f"supervisor {name!r}: more than {restarts} restarts within {within:g} s")
        self.name = name
        self.restarts = restarts
        self.within = within


class DeadLetter(Exception):
    """Made when a message reaches nobody: sent to an actor that ended, or still queued when it ended.

    It is handed to the supervisor's `dead_letter` callback, which may raise it.
    """

    def __init__(self, name: str, message: Any) -> None:
        super().__init__(f"{type(message).__name__} for {name!r} reached nobody: the actor has ended")
        self.name = name
        self.message = message


class Stopped(Exception):
    """Raised by an inbox when its actor is told to stop, or when its life is over; let it pass."""


class AskCycle(Exception):
    """Raised in debug mode when an ask would wait for an actor that waits, through other asks, for the asker."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"an ask would wait for itself: {' -> '.join(names)}; answer later through Actor.reply()")
        self.names = names


class SupervisorClosed(RuntimeError):
    """Raised when something is spawned into a supervisor that is not inside its block, or is leaving it."""
