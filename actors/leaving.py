"""What becomes of a request that nobody waits for any more."""

from __future__ import annotations

import asyncio

from .core import MailboxFull
from .messages import Abort
from .wires import Wires

__all__ = ["leave"]

_PATIENCE_S = 0.01  # until an abort is tried again that found no room


def leave(wires: Wires, request: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Abort a request, at once or as soon as the dispatcher has room; one that is over is ignored.

    Whoever leaves does not wait for room, nor must what nobody reads run on.  loop: None for the one that runs.
    """
    try:
        wires.dispatcher.post(Abort(request, "its reader left"))
    except MailboxFull:
        loop = loop or asyncio.get_running_loop()
        # Readers that are dropped are let go of by whatever thread collects garbage.
        loop.call_soon_threadsafe(loop.call_later, _PATIENCE_S, leave, wires, request, loop)
