"""What programs and requests do when, for a timeline: spans on tracks, and arrows from one to another.

Nothing of it exists while nobody records: whoever could have a track has None instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter_ns
from typing import Any, NamedTuple

__all__ = ["LIMIT", "TRACK", "Arrow", "Recorder", "Span", "Track", "current_track"]

LIMIT = 200_000
"""How many tracks, spans and arrows a recorder keeps if nobody says otherwise; about 230 bytes each."""

_BESIDE_NS = 100_000  # what a body does beside a generation is told if it takes so long

_RANKS = {"queued": 0, "retracted": 1, "prefill": 2, "decode": 3}


class Span(NamedTuple):
    """What a track did from `start` to `end`, nanoseconds of the recorder's clock."""

    track: Track
    name: str
    start: int
    end: int
    about: dict[str, Any]


class Arrow(NamedTuple):
    """What happened on `target` at `end` for what `source` was doing at `start`."""

    name: str
    source: Track
    start: int
    target: Track
    end: int


class Recorder:
    """Keep at most `limit` tracks, spans and arrows; `left_out` tells how many more there were, since `full_at`.

    clock: nanoseconds.  Everything but `close` is called in the loop of what is recorded.
    """

    def __init__(self, limit: int = LIMIT, clock: Callable[[], int] = perf_counter_ns) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit is {limit!r}; it must be a number of events, at least 1")
        self.clock = clock
        self.begun = clock()
        self.closed_at: int | None = None
        self.full_at: int | None = None
        self.left_out = 0
        self.tracks: list[Track] = []
        self.spans: list[Span] = []
        self.arrows: list[Arrow] = []
        self._limit = limit
        self.outside = Track(self, "requests", None)  # what no program asks for
        self.engine = Track(self, "engine", None)
        self.steps = Track(self, "steps", self.engine)
        self._further_steps: dict[int, Track] = {}  # of replicas behind the first

    def begin(self) -> None:
        """Let time count from now on."""
        self.begun = self.clock()

    def close(self) -> None:
        """Take nothing more; what is under way ends here."""
        if self.closed_at is None:
            self.closed_at = self.clock()

    def forget(self) -> None:
        """Let go of everything that was kept: states of recorded programs lead here as long as they live."""
        self.tracks, self.spans, self.arrows = [], [], []

    def room(self, now: int | None = None) -> bool:
        """Tell whether one more may be kept, and count it if not.  now: when that is, if it is known."""
        if self.closed_at is not None:
            return False
        if len(self.tracks) + len(self.spans) + len(self.arrows) < self._limit:
            return True
        self.left_out += 1
        if self.full_at is None:
            self.full_at = self.clock() if now is None else now
        return False

    def open(self, name: str, above: Track | None) -> Track | None:
        """Give a track, or None if there is no room for it.  above: whose branch, or request, it is."""
        if not self.room():
            return None
        track = Track(self, name, above)
        self.tracks.append(track)
        return track

    def steps_of(self, replica: int) -> Track:
        """Give the track of a replica's steps: those of several run side by side."""
        if not replica:
            return self.steps
        if (track := self._further_steps.get(replica)) is None:
            track = self._further_steps[replica] = Track(self, f"steps of replica {replica}", self.engine)
        return track

    def keep(self, track: Track, name: str, start: int, end: int, about: dict[str, Any]) -> None:
        """Keep a span."""
        if self.room(end):
            self.spans.append(Span(track, name, start, end, about))

    def draw(self, name: str, source: Track, target: Track) -> None:
        """Draw an arrow from what one track does, or did last, to what another does now.

        Perfetto takes the span that begins first for the arrow's beginning: the target's begins anew if need be.
        """
        if source.since is not None and target.since is not None and self.room():
            if target.since < source.since:
                target.cut()
            self.arrows.append(Arrow(name, source, source.since, target, max(source.since, target.since)))


class Track:
    """What one program, branch or request does: one thing at a time, in spans that follow each other without gap.

    A request of it comes first ("queued", "prefill", "decode", "retracted"; of several at once the furthest), then a
    step that has no request ("request", "fork", ...), then its body: "waiting" for something of ours, else "tool".  A
    branch has no body; it waits for its program to go on.  What a body does beside a generation goes to a track of its
    own, `beside`.

    above: what it branched from.  root: the program it belongs to.  path: its place in the program, below which are
    `branches` more.  since: when its latest span began.  acts: whether its body runs; waits: what for.
    """

    __slots__ = (
        "_about", "_beside", "_beside_since", "_doing", "_requests", "_state", "_told", "above", "acts", "branches",
        "name", "path", "recorder", "root", "since", "waits",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, name: str, above: Track | None) -> None:
        self.recorder = recorder
        self.name = name
        self.above = above
        self.root: Track = self if above is None else above.root
        self.path: tuple[int, ...] = ()
        if above is not None:
            self.path = (*above.path, above.branches)
            above.branches += 1
        self.since: int | None = None
        self.branches = 0
        self._state = ""  # nothing: it has not begun, or has ended
        self._about = ""  # what the state is about, if there is more to say
        self._told: dict[str, Any] = {}  # what else is known of the span at hand
        self._requests: dict[int, str] = {}  # by their numbers, what becomes of them
        self._doing: tuple[str, str] | None = None  # the step at hand, and its variable
        self.acts = False
        self.waits: list[str] = []
        self._beside: Track | None = None
        self._beside_since: int | None = None

    # --- what it does ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Be there, waiting."""
        self._turn("waiting", "")
        if self.above is not None:
            self.recorder.draw("fork", self.above, self)

    def end(self, error: BaseException | None = None) -> None:
        """Be over; error: what it failed with."""
        if error is not None:
            self._told["error"] = f"{type(error).__name__}: {error}"[:500]
        self._requests.clear()
        self._doing = None
        self.acts = False
        self._look_beside()
        self._turn("", "")

    @contextmanager
    def doing(self, kind: str, about: str) -> Generator[None]:
        """Execute a step.  kind: what it does while it has no request.  about: the variable it is for."""
        self._doing = (kind, about)
        self.look()
        try:
            yield
        finally:
            self._doing = None
            self.look()

    @contextmanager
    def acting(self) -> Generator[None]:
        """Run the body, whose own requests are this track's, too; who has called it waits for it."""
        caller = current_track()
        token = TRACK.set(self)
        self.acts = True
        self.look()
        try:
            if caller is None or not caller.root.acts:  # nobody's, or not called by a body
                yield
            else:
                self.recorder.draw("call", caller.root, self)
                with caller.waiting(self.name):
                    yield
        finally:
            TRACK.reset(token)
            self.acts = False
            self.look()

    @contextmanager
    def waiting(self, what: str) -> Generator[None]:
        """Let the body of the program wait for something of ours."""
        body = self.root
        body.waits.append(what)
        body.look()
        try:
            yield
        finally:
            body.waits.remove(what)
            body.look()

    def request(self, number: int, phase: str) -> None:
        """Note what becomes of a request of this track."""
        if self._requests.get(number) != phase:
            self._requests[number] = phase
            self.look()

    def request_over(self, number: int, told: dict[str, Any]) -> None:
        """Note that a request has its end, and what is known of it."""
        if self._requests.pop(number, None) is not None:
            self._told.update(told)
            self.look()

    # --- spans -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Find out what it does now."""
        if self._state:  # else it has not begun, or is over
            self._look_beside()
            self._turn(*self._now())

    def _now(self) -> tuple[str, str]:
        doing = self._doing
        about = "" if doing is None else doing[1]
        if self._requests:
            return max(self._requests.values(), key=_RANKS.__getitem__), about
        if doing is not None:
            return doing
        if self.waits:
            return "waiting", self.waits[-1]
        return ("tool" if self.acts else "waiting"), ""

    def _turn(self, state: str, about: str) -> None:
        if (state, about) == (self._state, self._about):
            return
        now = self.recorder.clock()
        if (span := self.latest(now)) is not None:
            self.recorder.keep(*span)
        self._state, self._about, self._told = state, about, {}
        if state:
            self.since = now

    def cut(self) -> None:
        """Let a span end here and another begin in which the track does the same."""
        now = self.recorder.clock()
        if (span := self.latest(now)) is not None:
            self.recorder.keep(*span)
            self._told, self.since = {}, now

    def latest(self, now: int) -> Span | None:
        """Give the span that is under way, as if it ended now; None if none is."""
        if not self._state or self.since is None:
            return None
        about = {"for": self._about, **self._told} if self._about else self._told
        return Span(self, self._state, self.since, now, about)

    def _look_beside(self) -> None:
        """Keep what the body did while something was generated for it."""
        working = self.acts and not self.waits and bool(self._requests or self._doing)
        if working == (self._beside_since is not None):
            return
        now = self.recorder.clock()
        begun, self._beside_since = self._beside_since, now if working else None
        if begun is not None and now - begun >= _BESIDE_NS:
            self._beside = self._beside or self.recorder.open(f"{self.name} (beside)", self)
            if self._beside is not None:
                self.recorder.keep(self._beside, "tool", begun, now, {})


TRACK: ContextVar[Track | None] = ContextVar("callboard_track", default=None)
"""On which track the code that runs here is, or `outside` of programs; None, nearly always: nobody records it."""


def current_track() -> Track | None:
    """Give the track of the code that runs here, if it is recorded."""
    track = TRACK.get()
    return track if track is None or track.recorder.closed_at is None else None
