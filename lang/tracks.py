"""Where a program's life is told to whoever records it; nearly always nobody does, and there is no track."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..actors.recorder import Track, current_track
from .script import Branches, Choose, Concatenate, Generate, ShowVideo

if TYPE_CHECKING:
    from .stream_state import StreamState

__all__ = ["acting", "awaiting", "draw_join", "open_track", "step_told"]

_NOTHING = nullcontext()
_KINDS = {Generate: "request", Choose: "request", Branches: "fork", Concatenate: "join", ShowVideo: "video"}


def open_track(name: str, parent: StreamState | None) -> Track | None:
    """Give a program's track, or its branch's, which begins later; None if it is not recorded."""
    if parent is not None:
        return None if parent.track is None else parent.track.recorder.open(name, parent.track)
    here = current_track()
    track = None if here is None else here.recorder.open(name, None)
    if track is not None:
        track.begin()
    return track


def acting(track: Track | None) -> AbstractContextManager[None]:
    """Run a program's body in this block."""
    return _NOTHING if track is None else track.acting()


def awaiting(track: Track | None, what: str) -> AbstractContextManager[None]:
    """Wait, in this block, for something of a program or branch, for its body."""
    if track is None:
        return _NOTHING
    return track.waiting(what if track is track.root else f"{what} of {track.name}")


def step_told(stream: StreamState, step: Any) -> tuple[str, str]:
    """Say what executing a step is, and the variable it is for."""
    variable: Any = getattr(step, "variable", None)
    names = (name for name, known in stream.variables.items() if known is variable)
    return _KINDS.get(type(step), "step"), next(names, "")


def draw_join(parent: StreamState, branches: Iterable[StreamState]) -> None:
    """Draw arrows from branches that were waited for to what their parent does now."""
    track = parent.track
    if track is not None:
        for branch in branches:
            if branch.track is not None:
                track.recorder.draw("join", branch.track, track)
