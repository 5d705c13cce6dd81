"""The stream of one program's state: an actor that executes what the program says, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from types import TracebackType
from typing import Any

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

__all__ = ["MAILBOX", "Stream"]

MAILBOX = 4096
"""How many appends may wait for a stream to execute them."""


class Stream(Actor[ToStream]):
    """Execute a program's steps against its backend.

    Everything here belongs to the backend's loop.  A stream that was made lies idle until `start`; what is appended
    before goes into `early`.  It is `over` once it executed its End, or failed: then `error` holds why, and every
    waiter raises it.
    """

    def __init__(self, name: str, backend: Backend, defaults: Defaults, parent: Stream | None = None) -> None:
        self.name = name
        self.backend = backend
        self.defaults = defaults
        self.transcript = Transcript() if parent is None else parent.transcript  # a branch gets its own at its start
        self.variables: dict[str, Variable] = {} if parent is None else dict(parent.variables)
        self.bell = Bell()
        self.text_bell = Bell()
        self.submitted = 0 if parent is None else 1  # appends so far; a branch's start counts as one
        self.executed = 0  # of them
        self.ended = False  # no more may be appended
        self.over = False
        self.error: BaseException | None = None
        self.observed = False  # somebody has seen the error
        self.branches: list[Stream] = []
        self.address: Ref[ToStream] | None = None
        self.early: list[ToStream] | None = []
        self.loop = asyncio.get_running_loop()
        self.begun = parent is None  # what it was branched from is there
        self.performer: Ref[Any] | None = None  # who runs the body, if that is not the caller
        self.returned: Any = None  # what the body returned
        self._scope: anyio.CancelScope | None = None
        self._trace: TracebackType | None = None

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Come to life under the backend's programs; SupervisorClosed if it is not open."""
        programs = self.backend.programs
        ref = await programs.spawn(lambda: self, name=self.name, restart="temporary", mailbox=MAILBOX + 1)
        self.address = ref
        early, self.early = self.early, None
        for message in early or ():
            ref.post(message)  # there are at most MAILBOX and the End
        self.bell.ring()

    async def finish(self) -> None:
        """Say that nothing more comes, and wait until all is executed and every branch has ended."""
        if not self.ended and not self.over:
            self.ended = True
            self._post(End())
        while not self.over:
            await self.bell.wait()
        if self.address is not None:
            await self.address.join()

    async def cancel(self, error: BaseException) -> None:
        """End now, for `error`, and wait until nothing of it is left, branches included."""
        self.cancel_nowait(error)
        if self.address is not None:
            await self.address.join()

    def cancel_nowait(self, error: BaseException) -> None:
        """End now; generations under way are aborted."""
        self.fail(error)
        if self._scope is not None:
            self._scope.cancel()
        for branch in self.branches:
            branch.cancel_nowait(error)

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
        self.over = self.ended = True
        self.error = error
        self._trace = None if error is None else error.__traceback__
        self.bell.ring()
        self.text_bell.ring()

    def see_error(self) -> BaseException | None:
        """Give the error, if there is one; it counts as seen."""
        self.observed = True
        return self.error

    def check(self) -> None:
        """Raise the error, if there is one, with the traceback it had when it came."""
        if self.error is not None:
            self.observed = True
            raise self.error.with_traceback(self._trace)

    # --- being told ------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise the error if there is one, or RuntimeError after the end."""
        self.check()
        if self.ended:
            raise RuntimeError(f"{self.name} has ended; nothing more can be appended to it")

    def append(self, steps: tuple[Any, ...]) -> None:
        """Take steps to execute; there must be `has_room`."""
        self._post(Append(steps))
        self.submitted += 1

    @property
    def has_room(self) -> bool:
        """Whether one more append fits."""
        return self.submitted - self.executed < MAILBOX

    async def room(self) -> None:
        """Wait until one more append fits, or the stream is over."""
        while not self.has_room and not self.over:
            await self.bell.wait()

    def _post(self, message: ToStream) -> None:
        if self.address is not None:
            self.address.post(message)
        else:
            assert self.early is not None
            self.early.append(message)

    # --- executing -------------------------------------------------------------------------------------------------

    async def run(self, inbox: Inbox[ToStream]) -> None:
        """Execute until the End, a failure or a cancellation."""
        failure: BaseException | None = None
        with anyio.CancelScope() as self._scope:
            try:
                if not self.over:  # else it was cancelled before it began
                    await self._execute_all(inbox)
            except Stopped:
                failure = Aborted(f"{self.name} ended early: its backend was closed")
            except Exception as error:
                failure = error
            finally:
                self.fail(failure or Aborted(f"{self.name} ended early"))
                await self._leave(inbox)
        self._scope = None

    async def _leave(self, inbox: Inbox[ToStream]) -> None:
        """Let nothing live longer than this: neither branches nor messages nobody will read."""
        error = self.error
        for branch in self.branches:
            if not branch.over:
                branch.cancel_nowait(error or Aborted(f"{self.name} has ended"))
        if self.branches:
            with anyio.CancelScope(shield=True):
                for branch in self.branches:
                    if branch.address is not None:
                        await branch.address.join()
        if not inbox.stopping:
            inbox.drain()

    async def _execute_all(self, inbox: Inbox[ToStream]) -> None:
        transcript, bell, text_bell = self.transcript, self.bell, self.text_bell
        while True:
            for message, _ in await inbox.batch():
                if type(message) is not Append:
                    await self._end_branches()
                    self.fail(None)
                    return
                for step in message.steps:
                    if type(step) is str:
                        transcript.say(step)
                    elif (waiting := self._execute(step)) is not None:
                        await waiting
                self.executed += 1
                text_bell.ring()
                bell.ring()

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
        if transcript.tail:
            await self._settle_tail()
        tokenized = not transcript.tail
        generation = Generation()
        variable.origin = generation
        variable.start = transcript.length
        self.text_bell.ring()
        async with aclosing(self.backend.generate(transcript.prompt(), step.sampling)) as deltas:
            async for delta in deltas:
                generation.add(delta)
                if delta.text:
                    transcript.hear(delta.text)
                    self.text_bell.ring()
        finish = generation.finish
        if finish is None:
            raise GenerationFailed("the backend's stream was cut: it ended without saying how")
        if finish.reason == "abort":
            raise Aborted(finish.message or "the generation was aborted")
        if finish.reason == "error":
            raise GenerationFailed(finish.message or "the generation failed")
        text = "".join(generation.text)
        if tokenized and (transcript.tokens or generation.tokens):
            transcript.settle_output(generation.tokens, finish.kept_tokens, finish.tail)
        else:  # a backend without a tokenizer: the text is all there is
            transcript.tail += text
        generation.text.clear()
        variable.set(text)

    async def _choose(self, step: Choose) -> None:
        transcript, variable = self.transcript, step.variable
        scores = await self.backend.score(transcript.prompt(), step.choices)
        index = token_length_normalized(scores.scores)
        variable.origin = Choice(scores)
        variable.start = transcript.length
        text = step.choices[index]
        tail = transcript.tail
        transcript.say(text)
        if scores.settled and scores.settled[index]:
            transcript.settle(scores.settled[index])
        else:
            transcript.tail = tail + text
        variable.set(text)
        self.text_bell.ring()

    # --- branches --------------------------------------------------------------------------------------------------

    async def _branch(self, step: Branches) -> None:
        """Give each branch what was said so far; settled and prefilled first, so that they share it."""
        await self._settle_tail()
        if len(step.streams) > 1 and self.transcript.length:
            await self.backend.prefill(self.transcript.prompt())
        for branch in step.streams:
            branch.transcript = self.transcript.copy()
            branch.executed += 1
            branch.begun = True
            branch.text_bell.ring()
        for branch in step.streams:
            if not branch.over:
                await branch.start()

    async def _end_branches(self) -> None:
        """Wait for branches nobody joined; an error in one that nobody has seen becomes this stream's."""
        for branch in self.branches:
            await branch.finish()
        for branch in self.branches:
            if branch.error is not None and not branch.observed:
                raise branch.error

    # --- being waited for ------------------------------------------------------------------------------------------

    def find(self, name: str, *, whole: bool) -> Variable | None:
        """Give a variable that is there, or None if it may still come; callable from any thread.

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
        """Wait until everything appended up to now is executed; raises the stream's error."""
        await self.quiet_caught_up()
        self.check()

    async def quiet_caught_up(self) -> None:
        """Do what `caught_up` does, without raising."""
        target = self.submitted
        while self.executed < target and not self.over:
            await self.bell.wait()

    async def quiet_concluded(self) -> None:
        """Do what `concluded` does, without raising."""
        while not self.over:
            await self.bell.wait()

    async def concluded(self) -> None:
        """Wait until the stream is over; raises its error."""
        await self.quiet_concluded()
        self.check()
