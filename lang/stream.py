"""The stream of one program's state: an actor that executes what the program says, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from threading import get_ident
from types import TracebackType
from typing import Any, Self

import anyio

from ..actors.backend import Backend
from ..actors.core import Actor, Inbox, Ref, Stopped
from ..actors.errors import Aborted, GenerationFailed
from .bell import Bell
from .choices import token_length_normalized
from .expression import RoleBegin, RoleEnd
from .sampling_arguments import Defaults
from .script import Append, Branches, Choose, End, Generate, ScopeClose, ScopeOpen, ToStream
from .transcript import Transcript
from .variable import Choice, Generation, Variable

__all__ = ["AHEAD", "Stream"]

AHEAD = 4096
"""How many steps a program may run ahead of its stream."""


class Stream(Actor[ToStream]):
    """Execute a program's steps against its backend.

    Everything here belongs to the backend's loop, but for `find`, `written`, `check` and what they read, which may be
    called from anywhere.  A stream that was made lies idle until `start`; what is appended before waits in `steps`.
    It is `over` once it executed its End, or failed: then `error` holds why, and every waiter raises it.
    """

    def __init__(self, name: str, backend: Backend, defaults: Defaults, parent: Stream | None = None) -> None:
        self.name = name
        self.backend = backend
        self.defaults = defaults
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
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
        self.executed = 0  # steps
        self.over = False
        self.gone = False  # and neither its task nor a branch is left
        self.error: BaseException | None = None
        self.observed = False  # somebody has seen the error
        self.returned: Any = None  # what the body returned
        # Who is concerned.
        self.bell = Bell()
        self.text_bell = Bell()
        self.address: Ref[ToStream] | None = None
        self.performer: Ref[Any] | None = None  # who runs the body, if that is not the caller
        self.branches: tuple[Stream, ...] = ()
        self._task: asyncio.Task[Any] | None = None
        self._trace: TracebackType | None = None

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Come to life under the backend's programs; SupervisorClosed if it is not open."""
        # Two messages at most wait at a time: one Append, which takes in what comes behind it, and the End.
        self.address = await self.backend.programs.spawn(self._itself, name=self.name, restart="temporary", mailbox=2)
        if self.steps is not None:
            self.address.post(Append(self.steps))
        if self.ended and not self.over:
            self.address.post(End())

    def _itself(self) -> Self:
        return self

    async def finish(self) -> None:
        """Say that nothing more comes, and wait until all is executed and every branch has ended."""
        if not self.ended:
            self.ended = True
            if self.address is not None:
                self.address.post(End())
        while not (self.gone or (self.over and self.address is None)):
            await self.bell.wait()

    async def cancel(self, error: BaseException) -> None:
        """End now, for `error`, and wait until nothing of it is left, branches included."""
        self.cancel_nowait(error)
        await self.left()

    async def left(self) -> None:
        """Wait until nothing of it is left."""
        while not (self.gone or (self.over and self.address is None)):
            await self.bell.wait()

    def cancel_nowait(self, error: BaseException) -> None:
        """End now; generations under way are aborted, and branches end too."""
        if self.over:
            return
        self.fail(error)
        if self.address is not None:
            if self._task is not None:
                self._task.cancel()
            self.address.stop_nowait()  # and if a backend swallows that, after its supervisor's grace

    def request_cancel(self) -> None:
        """End now, from whatever thread, for somebody who has no more use for it."""

        def end() -> None:
            self.cancel_nowait(Aborted(f"{self.name} was cancelled"))
            if self.performer is not None:
                self.performer.stop_nowait()

        if not self.over:
            try:
                self.loop.call_soon_threadsafe(end)
            except RuntimeError:  # its loop is closed, and it has ended with it
                return

    def fail(self, error: BaseException | None) -> None:
        """Be over, for `error` unless there is one already, and wake whoever waits."""
        if self.over:
            return
        self.ended = True
        self.error = error
        self._trace = None if error is None else error.__traceback__
        self.over = True
        self.bell.ring()
        self.text_bell.ring()

    # --- being told ------------------------------------------------------------------------------------------------

    def append(self, steps: tuple[Any, ...] | list[Any]) -> None:
        """Take steps to execute, in the stream's loop; nothing waits."""
        self.submitted += len(steps)
        if self.steps is not None:
            self.steps.extend(steps)
            return
        self.steps = list(steps)
        if self.address is not None:
            self.address.post(Append(self.steps))

    @property
    def has_room(self) -> bool:
        """Whether the program may run further ahead."""
        return self.submitted - self.executed < AHEAD

    async def room(self) -> None:
        """Wait until it may, or the stream is over."""
        while not self.has_room and not self.over:
            await self.bell.wait()

    def check_open(self) -> None:
        """Raise the error if there is one, or RuntimeError after the end."""
        if self.ended:
            self.check()
            raise RuntimeError(f"{self.name} has ended; nothing more can be appended to it")

    # --- executing -------------------------------------------------------------------------------------------------

    async def run(self, inbox: Inbox[ToStream]) -> None:
        """Execute until the End, a failure or a cancellation."""
        failure: BaseException | None = None
        self._task = asyncio.current_task()
        try:
            if not self.over:  # else it was cancelled before it began
                await self._execute_all(inbox)
        except Stopped:
            failure = Aborted(f"{self.name} ended early: its backend was closed")
        except asyncio.CancelledError:
            if not self.over:  # not by cancel_nowait, but by the supervisor
                raise
            assert self._task is not None
            self._task.uncancel()
        except Exception as error:
            failure = error
        finally:
            self._task = None
            self.fail(failure or Aborted(f"{self.name} ended early"))
            if self.branches:
                await self._end_branches()
            if not inbox.stopping:
                inbox.drain()  # what nobody will execute is not a dead letter
            self.gone = True
            self.bell.ring()

    async def _execute_all(self, inbox: Inbox[ToStream]) -> None:
        transcript = self.transcript
        while True:
            for message, _ in await inbox.batch():
                if type(message) is not Append:
                    await self._await_branches()
                    self.fail(None)
                    return
                self.steps = None
                for step in message.steps:
                    if type(step) is str:
                        transcript.say(step)
                    elif (waiting := self._execute(step)) is not None:
                        await waiting
                        if self.over:  # cancelled, and the backend has swallowed it
                            return
                    self.executed += 1
                self.text_bell.ring()
                self.bell.ring()

    def _execute(self, step: Any) -> Coroutine[Any, Any, None] | None:
        """Execute a step, or give what executes it, for it waits."""
        kind, transcript = type(step), self.transcript
        if kind is RoleBegin:
            transcript.begin_role(step.role, self.backend.chat_template)
        elif kind is RoleEnd:
            transcript.end_role()
        elif kind is Generate:
            return self._generate(step)
        elif kind is Choose:
            return self._choose(step)
        elif kind is ScopeOpen:
            step.variable.start = transcript.length
        elif kind is ScopeClose:
            step.variable.set(transcript.text[step.variable.start :])
        elif kind is Branches:
            return self._branch(step)
        else:
            raise AssertionError(f"no such step: {step!r}")
        return None

    async def _settle_tail(self) -> None:
        """Tokenize the constant text said since the last generation, together, once."""
        transcript = self.transcript
        if transcript.tail:
            tokens = await self.backend.encode(transcript.tail, beginning=not transcript.tokens)
            if tokens is not None:
                transcript.settle(tokens)

    async def _generate(self, step: Generate) -> None:
        transcript, variable = self.transcript, step.variable
        await self._settle_tail()
        tokenized = not transcript.tail
        variable.origin = generation = Generation()
        variable.start = start = transcript.length
        self.text_bell.ring()
        self.bell.ring()
        deltas = self.backend.generate(transcript.prompt(), step.sampling)
        try:
            async for delta in deltas:
                generation.add(delta)
                if delta.text:
                    transcript.hear(delta.text)
                    self.text_bell.ring()
        finally:
            await deltas.aclose()
        finish = generation.finish
        if finish is None:
            raise GenerationFailed("the backend's stream was cut: it ended without saying how")
        if finish.reason == "abort":
            raise Aborted(finish.message or "the generation was aborted")
        if finish.reason == "error":
            raise GenerationFailed(finish.message or "the generation failed")
        text = transcript.text[start:]
        if generation.tokens is not None and tokenized:
            transcript.settle_output(generation.tokens, finish.kept_tokens, finish.tail)
        else:  # nothing came, or the backend has no tokenizer and the text is all there is
            transcript.tail += text
        variable.set(text)
        self.bell.ring()

    async def _choose(self, step: Choose) -> None:
        transcript, variable = self.transcript, step.variable
        scores = await self.backend.score(transcript.prompt(), step.choices)
        index = token_length_normalized(scores.scores)
        variable.origin = Choice(scores)
        variable.start = transcript.length
        transcript.say(step.choices[index])
        if scores.settled and scores.settled[index]:
            transcript.settle(scores.settled[index])  # what stood before the choice is in it
        variable.set(step.choices[index])
        self.text_bell.ring()
        self.bell.ring()

    # --- branches --------------------------------------------------------------------------------------------------

    async def _branch(self, step: Branches) -> None:
        """Give each branch what was said so far; settled and prefilled first, so that they share it."""
        await self._settle_tail()
        if len(step.streams) > 1 and self.transcript.length:
            await self.backend.prefill(self.transcript.prompt())
        for branch in step.streams:
            if not branch.over:
                branch.transcript = self.transcript.copy()
                branch.executed += 1
                branch.begun = True
                await branch.start()
                branch.bell.ring()
                branch.text_bell.ring()

    async def _await_branches(self) -> None:
        """Wait for branches nobody joined; an error in one that nobody has seen becomes this stream's."""
        for branch in self.branches:
            await branch.finish()
        for branch in self.branches:
            if branch.error is not None and not branch.observed:
                raise branch.error

    async def _end_branches(self) -> None:
        """Let no branch live longer than this."""
        for branch in self.branches:
            branch.cancel_nowait(self.error or Aborted(f"{self.name} has ended"))
        with anyio.CancelScope(shield=True):
            for branch in self.branches:
                await branch.left()

    # --- being waited for ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error, if there is one, with the traceback it had when it came."""
        if self.error is not None:
            self.observed = True
            raise self.error.with_traceback(self._trace)

    def find(self, name: str, *, whole: bool) -> Variable | None:
        """Give a variable that is there, or None if it may still come.

        whole: the program may yet ask for it, as long as it runs.  Raises KeyError, or the error the stream failed
        with, if it never will be there.
        """
        over = self.over  # looked at first: what was declared before the end is found behind it
        variable = self.variables.get(name)
        if variable is not None and variable.ready:
            return variable
        if over:
            self.check()
        if variable is None and (over or not whole):
            known = ", ".join(map(repr, self.variables)) or "none"
            raise KeyError(f"no variable {name!r} was asked for; known: {known}")
        if over:
            raise Aborted(f"{self.name} ended before {name!r} was there")
        return None

    async def settled(self, name: str, *, whole: bool) -> Variable:
        """Wait until a variable is there; raises as `find` does."""
        while (variable := self.find(name, whole=whole)) is None:
            await self.bell.wait()
        return variable

    def written(self, variable: Variable, seen: int) -> str:
        """Give what is there of a variable's text behind its first `seen` characters."""
        if variable.ready:
            return str(variable.value)[seen:]
        if variable.start is None or not self.begun:
            return ""
        return self.transcript.text[variable.start + seen :]

    async def caught_up(self) -> None:
        """Wait until everything appended up to now is executed, or the stream is over."""
        target = self.submitted
        while self.executed < target and not self.over:
            await self.bell.wait()

    async def concluded(self) -> None:
        """Wait until the stream is over."""
        while not self.over:
            await self.bell.wait()
