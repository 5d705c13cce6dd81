"""Who talks to whom: the addresses the engine hands to its actors as it builds the tree."""

from __future__ import annotations

from typing import Any

from .core import Ref
from .recorded import Recorded

__all__ = ["Wires"]


class Wires:
    """The refs of one engine's actors.  The pipeline is a ring (tokens come back to the dispatcher), so some actors
    start before those they speak to; an address is looked up when it is first used, and survives restarts.

    workers, schedulers: one each a replica, in their order.  recorded: the requests that somebody records, which the
    engine names and the schedulers follow.
    """

    __slots__ = ("detokenizer", "dispatcher", "grammar", "recorded", "schedulers", "tokenizer", "workers")

    tokenizer: Ref[Any]
    grammar: Ref[Any]
    dispatcher: Ref[Any]
    detokenizer: Ref[Any]

    def __init__(self) -> None:
        self.workers: list[Ref[Any]] = []
        self.schedulers: list[Ref[Any]] = []
        self.recorded = Recorded()
