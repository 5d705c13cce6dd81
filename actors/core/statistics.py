"""What an actor has done so far."""

from __future__ import annotations

from .message import Message

__all__ = ["Statistics"]


class Statistics(Message, frozen=True):
    """Count an actor's messages and lives, at one moment."""

    name: str
    bound: int
    """Messages the mailbox holds at most."""
    queued: int
    """Messages in it now."""
    taken: int
    """Messages taken out of it so far, over all lives."""
    restarts: int
    dead_letters: int
    """Messages for this actor that reached nobody."""
    ended: bool
    """True once it has ended for good."""
