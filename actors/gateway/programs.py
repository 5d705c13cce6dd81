"""The routes and the field by which clients elsewhere tell of which program a request is (`sessions.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec

from ..errors import InvalidRequest
from .exchange import Exchange
from .fields import Rules, convert, parse
from .room import Room

__all__ = ["ProgramName", "end_programs", "open_programs", "program_leases"]

BEAT_S = 15.0
"""How often an open stream says that it is there: proxies cut what is silent, and a client that is gone is noticed."""
ENDED = 65_536
"""How many programs one request may end."""


class ProgramName(msgspec.Struct, kw_only=True):
    """Of which program a request is.  session: as its stream has told.  number, branch: the client's own.

    number: of the whole program; branch: of what goes on from this request, whose KV is kept; the program itself unless
    given, and 0 if nothing goes on from it.
    """

    session: str
    number: int
    branch: int | None = None


class _Opened(msgspec.Struct):
    """The body of /programs, without fields."""


class _Ended(msgspec.Struct, kw_only=True):
    """The body of /programs/end."""

    session: str
    numbers: list[int]


async def open_programs(room: Room, exchange: Exchange, body: bytes) -> None:
    """Open a session, tell its name, and keep it for as long as its client stays."""
    if body:
        parse(body, _Opened, Rules())
    with room.sessions.open(exchange.tenant) as session:
        await exchange.write(b"data: " + msgspec.json.encode({"session": session.token}) + b"\n\n")
        while not session.closing.is_set():
            with anyio.move_on_after(BEAT_S):
                await session.closing.wait()
                break
            await exchange.write(b": still here\n\n")
        await exchange.end(b"data: [DONE]\n\n")


async def end_programs(room: Room, exchange: Exchange, body: bytes) -> None:
    """End programs of a session.  200 also if it, or they, have ended meanwhile."""
    ended = parse(body, _Ended, Rules())
    if len(ended.numbers) > ENDED:
        raise InvalidRequest("numbers", f"{len(ended.numbers)} given, at most {ENDED} allowed")
    if (session := room.sessions.find(exchange.tenant, _token(ended.session, "session"))) is not None:
        session.end(ended.numbers)
    await exchange.reply_json({"success": True})


@contextmanager
def program_leases(room: Room, exchange: Exchange, given: Any) -> Iterator[tuple[int, int]]:
    """Give the lease of what asks, and the number of its whole program, for a block; 0 and 0 for a request of none.

    A session that is over is nobody's: its requests are answered as those of no program.  A name that none can have is
    InvalidRequest.
    """
    if given is None:
        yield 0, 0
        return
    name = convert(given, ProgramName, Rules(), at="program")
    branch = name.number if name.branch is None else name.branch
    for field, number, least in (("number", name.number, 1), ("branch", branch, 0)):
        if not least <= number < 1 << 53:
            raise InvalidRequest(f"program.{field}", f"{number} given, {least} to 2**53 - 1 allowed")
    session = room.sessions.find(exchange.tenant, _token(name.session, "program.session"))
    if session is None:
        yield 0, 0
        return
    numbers = (name.number, branch) if branch else (name.number,)
    with session.using(*numbers) as (program, *kept):
        yield kept[0] if kept else 0, program


def _token(given: str, field: str) -> str:
    if len(given) != 32 or not all(letter in "0123456789abcdef" for letter in given):
        raise InvalidRequest(field, f"{given!r:.80} is not what /programs tells: 32 hexadecimal digits")
    return given
