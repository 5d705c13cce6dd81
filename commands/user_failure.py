"""What a user's own file raised, as its author wants to read it."""

from __future__ import annotations

from pathlib import Path
from traceback import FrameSummary, TracebackException

__all__ = ["UserFailure", "tell_failure"]

_PACKAGE = Path(__file__).resolve().parent.parent


class UserFailure(Exception):
    """Raised when a user's file fails as it is imported, or its program as it runs; the cause is what it raised."""


def tell_failure(error: BaseException, file: Path) -> str:
    """Say what came out of a file's code: a line for what callboard says no to, else a traceback of the file's own.

    A traceback begins where the file does: what is above is how callboard came there.
    """
    from ..actors.core import ActorDied, RestartLimit
    from ..actors.errors import Aborted, BackendUnset, GenerationFailed, InvalidRequest, Overloaded

    told = TracebackException.from_exception(error)
    own = [number for number, frame in enumerate(told.stack) if _is_own(frame, file.resolve())]
    if isinstance(
        error, (InvalidRequest, Overloaded, GenerationFailed, Aborted, BackendUnset, ActorDied, RestartLimit)
    ):
        place = "".join(f"{Path(told.stack[n].filename).name}, line {told.stack[n].lineno}: " for n in own[-1:])
        return f"callboard: {place}{' '.join(str(error).split())}"
    if own:
        del told.stack[: own[0]]
    elif isinstance(error, SyntaxError):  # no line of the file has run
        told.stack.clear()
    return "".join(told.format()).rstrip("\n")


def _is_own(frame: FrameSummary, file: Path) -> bool:
    """Tell whether a frame is the file's, or that of one beside or below it that nobody installed there."""
    path = Path(frame.filename)
    if path == file:
        return True
    return path.is_relative_to(file.parent) and not path.is_relative_to(_PACKAGE) and "site-packages" not in path.parts
