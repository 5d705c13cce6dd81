"""What is known of a stream: what was written, what was executed of it, and who waits for what."""

from __future__ import annotations

import asyncio
from threading import get_ident
from types import TracebackType
from typing import Any

from ..actors.backend import Backend, Prompt
from ..actors.core import Job, Ref
from ..actors.errors import Aborted
from .ahead import Ahead
from .bell import Bell
from .sampling_arguments import Defaults
from .tracks import awaiting, open_track
from .transcript import Transcript
from .variable import Variable

__all__ = ["AHEAD", "StreamState"]

AHEAD = 4096
"""How many steps a program may run ahead of its stream."""


class StreamState(Job):
    """Keep what a program has written, and answer those who wait for its execution.

    Everything here belongs to the backend's loop, but for `find`, `written`, `check` and what they read, which may be
    called from anywhere.  A stream is `over` once it executed its End, or failed: then `error` holds why, and every
    waiter raises it.
    """

    __slots__ = (
        "_bell", "_idle", "_task", "_text_bell", "_trace", "ahead", "backend", "begun", "branched", "defaults", "ended",
        "error", "executed", "foreseen", "forks", "gone", "inherited", "lease", "loop", "observed", "over", "paused",
        "performer", "returned", "role", "root", "scopes", "seen_outside", "steps", "submitted", "thread", "timer",
        "track", "transcript", "variables",
    )  # fmt: skip

    def __init__(self, name: str, backend: Backend, defaults: Defaults, parent: StreamState | None = None) -> None:
        super().__init__(name)
        self.backend = backend
        self.defaults = defaults
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop() if parent is None else parent.loop
        self.thread = get_ident() if parent is None else parent.thread
        self.track = open_track(name, parent)  # nearly always None: nobody records it
        # What the body has written so far.
        self.variables: dict[str, Variable] = {} if parent is None else dict(parent.variables)
        self.role: str | None = None if parent is None else parent.role
        self.scopes: tuple[tuple[str, Variable], ...] = ()
        self.submitted = 0 if parent is None else 1  # steps; a branch's start counts as one
        self.steps: list[Any] | None = None  # appended, and not taken by the stream
        self.ended = False  # no more may be appended
        # What was executed so far.
        self.begun = parent is None  # what it was branched from is there
        self.transcript = Transcript() if parent is None else parent.transcript  # a branch gets its own at its start
        self.ahead: Ahead | None = None  # what a model wrote further than was asked for
        self.executed = 0  # steps
        self.root: StreamState | None = None if parent is None else parent.root or parent  # of a branch: its program
        self.lease = 0  # under which a backend with a cache keeps what it has said; 0 before it has generated
        self.inherited: tuple[int, ...] = ()  # leases of branches that are joined as they are, until it asks for more
        self.paused = False  # the backend knows that the program waits on the outside world
        self.timer: asyncio.TimerHandle | None = None  # while it may begin to
        self.foreseen: tuple[str, bool, bytes] | None = None  # text, whether it begins a sequence, its tokens
        self.over = False
        self.gone = False  # and neither its task nor a branch is left
        self.error: BaseException | None = None
        self.observed = False  # somebody has seen the error
        self.seen_outside = False  # somebody who is not the body
        self.returned: Any = None  # what the body returned
        # Who is concerned.
        self._bell: Bell | None = None  # made when somebody waits, which for most is never
        self._text_bell: Bell | None = None
        self.performer: Ref[Any] | None = None  # who runs the body, if that is not the caller
        self.forks: tuple[Any, ...] = ()  # of Kin: those whose branches may still run
        self.branched = 0  # how many branches it ever had
        self._task: asyncio.Task[Any] | None = None  # while it executes
        self._idle: asyncio.Future[None] | None = None  # while it waits for more to execute: until then it looks itself
        self._trace: TracebackType | None = None

    # --- being told ------------------------------------------------------------------------------------------------

    def append(self, steps: tuple[Any, ...] | list[Any]) -> None:
        """Take steps to execute, in the stream's loop; nothing waits."""
        self.submitted += len(steps)
        if self.steps is not None:
            self.steps.extend(steps)
            return
        self.steps = list(steps)
        self.look()

    def forget(self, kin: Any) -> None:
        """Own the branches of a fork no longer, for nothing of them is left but leases, which are its own now."""
        self.forks = tuple(other for other in self.forks if other is not kin)
        self.inherited += kin.leases
        kin.leases = ()

    def look(self) -> None:
        """Look at what was appended, or at the end, if it waits for either."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def rest(self) -> None:
        """Look whether the program waits on the outside world."""
        self.timer = None
        self.look()

    def leased(self) -> int:
        """Give the number under which the backend keeps what it has said; 0 from most."""
        self.lease = lease = self.lease or self.backend.lease()
        return lease

    @property
    def joining(self) -> bool:
        """Whether the step at hand is its last, and a join waits for it that takes its KV as it is."""
        return False

    def leased_prompt(self) -> Prompt:
        """Give what it has said, to ask the backend for something of which the KV is kept for it.

        The whole program's number is in it, too: by that a backend knows what its branches are out for.  What they have
        left is kept for it from here on.
        """
        lease, root = self.leased(), self.root
        if self.inherited:
            for other in self.inherited:
                self.backend.release(other)
            self.inherited = ()
        if root is None:  # and so it is no branch that a join could wait for
            return self.transcript.prompt(lease, lease)
        return self.transcript.prompt(lease, root.leased(), joining=self.joining)

    @property
    def has_room(self) -> bool:
        """Whether the program may run further ahead."""
        return self.submitted - self.executed < AHEAD

    async def room(self) -> None:
        """Wait until it may, or the stream is over."""
        with awaiting(self.track, "room"):
            while not self.has_room and not self.over:
                await self.bell.wait()

    def check_open(self) -> None:
        """Raise the error if there is one, or RuntimeError after the end."""
        if self.ended:
            self.check()
            raise RuntimeError(f"{self.name} has ended; nothing more can be appended to it")

    def fail(self, error: BaseException | None) -> None:
        """Be over, for `error` unless there is one already, and wake whoever waits."""
        if self.over:
            return
        self.ended = True
        self.error = error
        self._trace = None if error is None else error.__traceback__
        self.over = True
        self.ring()

    # --- being waited for ------------------------------------------------------------------------------------------

    @property
    def bell(self) -> Bell:
        """What rings when a step was executed, a variable is there, or it is over."""
        if self._bell is None:
            self._bell = Bell()
        return self._bell

    @property
    def text_bell(self) -> Bell:
        """What rings then, and with every piece of text."""
        if self._text_bell is None:
            self._text_bell = Bell()
        return self._text_bell

    def ring(self) -> None:
        """Wake whoever waits for anything of it."""
        if self._bell is not None:
            self._bell.ring()
        if self._text_bell is not None:
            self._text_bell.ring()

    def ring_text(self) -> None:
        """Wake whoever waits for text."""
        if self._text_bell is not None:
            self._text_bell.ring()

    def observe(self, *, whole: bool = False) -> None:
        """Note that somebody knows of the error; whole: somebody outside of the body."""
        self.observed = True
        self.seen_outside |= whole

    def check(self, *, whole: bool = False) -> None:
        """Raise the error, if there is one, with the traceback it had when it came; whole: as `observe`'s."""
        if self.error is not None:
            self.observe(whole=whole)
            raise self.error.with_traceback(self._trace)

    def find(self, name: str, *, whole: bool) -> Variable | None:
        """Give a variable that is there, or None if it may still come.

        whole: the program may yet ask for it, as long as it runs.  Raises KeyError, or the error the stream failed
        with, if it never will be there.
        """
        over = self.over  # looked at first: what was declared before the end is found behind it
        variable = self.named(name)
        if variable is not None and variable.ready:
            return variable
        if over:
            self.check(whole=whole)
        if variable is None and (over or not whole):
            known = ", ".join(map(repr, self.variables)) or "none"
            raise KeyError(f"no variable {name!r} was asked for; known: {known}")
        if over:
            raise Aborted(f"{self.name} ended before {name!r} was there")
        return None

    def named(self, name: Any) -> Variable | None:
        """Give a variable that was asked for; "x[1]" is the second of several texts that `x` was asked for."""
        variable = self.variables.get(name)
        if variable is None and isinstance(name, str) and name.endswith("]"):
            whole, _, index = name[:-1].rpartition("[")
            several = self.variables.get(whole)
            if several is not None and index.isdecimal() and int(index) < len(several.parts):
                return several.parts[int(index)]
        return variable

    async def settled(self, name: str, *, whole: bool) -> Variable:
        """Wait until a variable is there; raises as `find` does."""
        with awaiting(None if whole else self.track, name):
            while (variable := self.find(name, whole=whole)) is None:
                await self.bell.wait()
        return variable

    def written(self, variable: Variable, seen: int) -> str:
        """Give what is there of a variable's text behind its first `seen` characters."""
        if variable.parts:
            variable = variable.parts[0]  # of several texts, the one the program goes on with
        if variable.heard is not None:
            return variable.heard[seen:]
        if variable.ready:
            return str(variable.value)[seen:]
        if variable.start is None or not self.begun:
            return ""
        return self.transcript.text[variable.start + seen :]

    async def caught_up(self) -> None:
        """Wait until everything appended up to now is executed, or the stream is over."""
        target = self.submitted
        with awaiting(self.track, "text"):
            while self.executed < target and not self.over:
                await self.bell.wait()

    async def concluded(self) -> None:
        """Wait until the stream is over."""
        while not self.over:
            await self.bell.wait()

    async def left(self) -> None:
        """Wait until nothing of it is left."""
        while not (self.gone or (self.over and self.supervisor is None)):
            await self.bell.wait()
