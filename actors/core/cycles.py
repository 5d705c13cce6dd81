"""Debug mode: who waits for whom, carried along asks, so that a cycle raises instead of hanging."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from .errors import AskCycle

if TYPE_CHECKING:
    from .mailbox import Mailbox
    from .reply import Reply

__all__ = ["enter_ask", "leave_ask"]

# The mailboxes of the actors that wait, through asks, for what this task does now; the task's own actor last.
_chain: ContextVar[tuple[Mailbox, ...]] = ContextVar("callboard_ask_chain", default=())


def leave_ask(target: Mailbox) -> tuple[Mailbox, ...]:
    """Return the chain to send along with an ask of `target`; raises AskCycle if it is in the chain already."""
    chain = _chain.get()
    if target in chain:
        names = [mailbox.name for mailbox in chain[chain.index(target) :]]
        raise AskCycle([*names, target.name])
    return chain


def enter_ask(mailbox: Mailbox, replies: Iterable[Reply]) -> None:
    """Note that this task now works for these asks, as the actor of `mailbox`."""
    chain: tuple[Mailbox, ...] = ()
    for reply in replies:
        chain += tuple(other for other in reply.chain if other not in chain)
    _chain.set((*chain, mailbox))
