"""Messages: frozen structs, so that any of them could cross to another process."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

__all__ = ["Ask", "Down", "Message"]

R = TypeVar("R")


class Message(msgspec.Struct, frozen=True, tag=True):
    """Derive every message from this; the class name is its tag on a wire.

    Derive with `frozen=True` as well (msgspec asks for it to be said again when other options are given).
    """


class Ask(Message, Generic[R], frozen=True):
    """Derive a message that wants an answer of type R from `Ask[R]`; send it with `Ref.ask`."""


class Down(Message, frozen=True):
    """Tell a watcher, on its control lane, that an actor has ended for good."""

    name: str
    reason: str
    """`returned`, `stopped`, or the error that ended it, as `ValueError: its words`."""
