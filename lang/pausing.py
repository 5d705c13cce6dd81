"""What a stream does while its program waits on the outside world: a tool, a human, anything but itself.

Its backend is told, so that the program's KV goes before that of others when room runs short; and what the program has
said since its last generation is tokenized and given to the backend to compute, if it has nothing else to do.

    told    what is computed ahead may be tokenized otherwise once more is said behind it: constant text is tokenized
            together, once, when a generation needs it.  The cache then serves as far as the two are equal.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ..actors.core import ActorDied
from ..actors.errors import InvalidRequest
from ..actors.joins import pack_joins

if TYPE_CHECKING:
    from .stream import Stream

__all__ = ["go_on", "pause", "watch"]

PAUSE_S = 0.002
"""How long a program says nothing before it is taken to wait; between two generations it computes for less."""
WORTH = 64
"""Constant text of fewer characters is not computed ahead: that takes a step of its own, and hardly saves one."""


def watch(stream: Stream) -> None:
    """See in a moment whether a program waits whose stream has nothing to do, if that is worth anything."""
    if not stream.paused and not stream.forks and (stream.lease or _is_worth_it(stream)):
        stream.timer = stream.loop.call_later(PAUSE_S, stream.rest)


def go_on(stream: Stream) -> None:
    """Be told that the program says more, or ends."""
    if stream.timer is not None:
        stream.timer.cancel()
        stream.timer = None
    if stream.paused:
        stream.paused = False
        for lease in (stream.lease, *stream.inherited):
            if lease:
                stream.backend.resume(lease)


async def pause(stream: Stream) -> None:
    """Tell the backend that the program waits, and what it will need, unless it has said more meanwhile."""
    if not _is_idle(stream):
        return
    transcript, backend = stream.transcript, stream.backend
    tokens: bytes | None = None
    if _is_worth_it(stream):
        with suppress(ActorDied, InvalidRequest):  # whoever cannot do without will ask again
            tokens = await _foresee(stream)
        if not _is_idle(stream):
            return
        stream.lease = stream.lease or backend.lease()
    stream.paused = True
    if stream.lease:
        said = b"" if tokens is None else transcript.tokens + tokens
        backend.pause(stream.lease, said, pack_joins(transcript.joins) if said else b"")
    for lease in stream.inherited:
        backend.pause(lease, b"")


async def _foresee(stream: Stream) -> bytes | None:
    """Give the tokens of the constant text said since the last generation, and keep them in case no more is said."""
    transcript = stream.transcript
    text, beginning = transcript.tail, not transcript.tokens
    tokens = await stream.backend.encode(text, beginning=beginning)
    stream.foreseen = None if tokens is None else (text, beginning, tokens)
    return tokens


def _is_idle(stream: Stream) -> bool:
    return stream.steps is None and not stream.ended


def _is_worth_it(stream: Stream) -> bool:
    return stream.backend.eager and len(stream.transcript.tail) >= WORTH
