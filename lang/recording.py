"""Recording when programs do what, for a timeline to look at."""

from __future__ import annotations

from contextvars import Token
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ..actors.errors import InvalidRequest
from ..actors.recorder import LIMIT, TRACK, Recorder, Track
from ..actors.trace_events import trace_json

__all__ = ["Recording", "Writable", "record"]


class Writable(Protocol):
    """What takes bytes: a binary file, io.BytesIO."""

    def write(self, data: bytes, /) -> object: ...


class Recording:
    """A block in which programs are recorded; leaving it writes their timeline, also when it is left by an error.

    left_out: how much there was no room for.
    """

    def __init__(self, to: str | PathLike[str] | Writable, recorder: Recorder) -> None:
        self._to = to
        self.recorder = recorder
        self._token: Token[Track | None] | None = None

    @property
    def left_out(self) -> int:
        return self.recorder.left_out

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RuntimeError("this recording was made already; make another")
        self.recorder.begin()
        self._token = TRACK.set(self.recorder.outside)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        TRACK.reset(self._token)
        self.recorder.close()
        written = trace_json(self.recorder)
        self.recorder.forget()
        if isinstance(self._to, (str, PathLike)):
            Path(self._to).write_bytes(written)
        else:
            self._to.write(written)


def record(to: str | PathLike[str] | Writable, *, limit: int = LIMIT) -> Recording:
    """Write a timeline of what runs in a block, for ui.perfetto.dev: `with callboard.record("run.json"): ...`.

    It holds the programs that are started in the block, in sync or async code, and what they ask an engine for: queued,
    prefill, decode, waiting, tool; a track a program and a branch, and one of the engine's steps.  to: a path, or what
    takes bytes.  limit: how many tracks, spans and arrows are kept; `left_out` tells how many there were beyond.
    Raises InvalidRequest for what is neither, OSError if the file cannot be written.
    """
    if not isinstance(to, (str, PathLike)) and not callable(getattr(to, "write", None)):
        raise InvalidRequest("to", f"{to!r:.80} is neither a path nor a binary file")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidRequest("limit", f"{limit!r:.80} is not a number of events, at least 1")
    if isinstance(to, (str, PathLike)):
        Path(to).write_bytes(b"")  # whether it can be written is better known before than after
    return Recording(to, Recorder(limit))
