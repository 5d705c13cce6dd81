"""Faults for a simulation: which messages are dropped or delayed, and which crash their actor."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .local import LocalRef
from .mailbox import Entry, Mailbox
from .message import Message
from .reply import Reply

if TYPE_CHECKING:
    from .child import Child

__all__ = ["Faults", "FaultyRef", "SimulatedCrash"]

M_contra = TypeVar("M_contra", bound=Message, contravariant=True)
Rule = float | Callable[[str, Any], float]


class Faults(msgspec.Struct, frozen=True):
    """Say what goes wrong: a number for every message, or a rule called with the receiver's name and the message.

    drop: the probability that a message is lost; an ask then waits until its caller's deadline.
    delay: the most seconds a message is on its way, drawn evenly from 0; messages to one actor keep their order.
    crash: the probability that a message crashes its receiver, wherever that is, as it arrives.
    """

    drop: Rule = 0.0
    delay: Rule = 0.0
    crash: Rule = 0.0


class SimulatedCrash(Exception):
    """Raised in an actor, as far as anyone can tell, when a simulation crashes it."""


class FaultyRef(LocalRef[M_contra]):
    """Deliver with faults. What it does is written to the trace."""

    __slots__ = ("_arrives", "_faults", "_flights", "_random", "_trace")

    def __init__(
        self, child: Child, mailbox: Mailbox, faults: Faults, randomness: random.Random, trace: Callable[[str], None]
    ) -> None:
        super().__init__(child, mailbox)
        self._faults = faults
        self._random = randomness
        self._trace = trace
        self._flights: deque[Entry] = deque()
        self._arrives = 0.0

    async def tell(self, message: M_contra) -> None:
        mailbox = self._mailbox
        if len(mailbox.data) >= mailbox.places:
            await mailbox.wait_for_room()
        else:
            mailbox.places -= 1
        self._send(message)

    def post(self, message: M_contra) -> None:
        self._mailbox.check_room()
        self._mailbox.places -= 1
        self._send(message)

    def _put_ask(self, reply: Reply) -> None:
        self._mailbox.places -= 1
        self._send(reply)

    async def _send_ask(self, reply: Reply) -> None:
        await self._mailbox.wait_for_room()
        self._send(reply)

    def _send(self, entry: Entry) -> None:
        """Start a message on its way, in the place reserved for it."""
        if self._roll(self._faults.drop, entry):
            self._note("drop", entry)
            self._mailbox.places += 1
            self._mailbox.grant()
            return
        loop = self._mailbox.home.loop
        delay = _rate(self._faults.delay, self.name, entry)
        if delay > 0:
            self._arrives = max(self._arrives, loop.time() + self._random.uniform(0, delay))
        if not self._flights and self._arrives <= loop.time():
            self._arrive(entry)
            return
        self._note("delay", entry)
        self._flights.append(entry)
        loop.call_at(self._arrives, self._land)

    def _land(self) -> None:
        self._arrive(self._flights.popleft())

    def _arrive(self, entry: Entry) -> None:
        mailbox = self._mailbox
        if isinstance(entry, Reply) and not entry.cancelled:
            mailbox.asks.add(entry)
        mailbox.put_reserved(entry)
        if self._child.life is not None and self._roll(self._faults.crash, entry):
            self._note("crash", entry)
            self._child.life.crash(SimulatedCrash(f"at {type(_message(entry)).__name__}"))

    def _roll(self, rule: Rule, entry: Entry) -> bool:
        chance = _rate(rule, self.name, entry)
        return chance > 0 and self._random.random() < chance

    def _note(self, what: str, entry: Entry) -> None:
        self._trace(f"{what} {type(_message(entry)).__name__} for {self.name}")


def _rate(rule: Rule, name: str, entry: Entry) -> float:
    return rule(name, _message(entry)) if callable(rule) else rule


def _message(entry: Entry) -> Any:
    return entry.message if isinstance(entry, Reply) else entry
