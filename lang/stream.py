"""The stream of one program's state: an actor that executes what the program says, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio

from ..actors.core import Actor, Inbox, Stopped
from ..actors.errors import Aborted
from ..actors.recorder import TRACK
from .expression import RoleBegin, RoleEnd, RoleText
from .film import frame_urls
from .generating import generate
from .pausing import go_on, pause, tokenize, watch
from .script import (
    Append,
    Branches,
    Choose,
    Concatenate,
    End,
    Generate,
    Rest,
    ScopeClose,
    ScopeOpen,
    ShowImage,
    ShowVideo,
    ToStream,
)
from .stream_state import StreamState
from .tracks import step_told
from .variable import Choice

__all__ = ["Stream"]


class Stream(StreamState, Actor[ToStream]):
    """Execute a program's steps against its backend.

    One that was made lies idle until `start`; what is appended before waits in `steps`.
    """

    __slots__ = ()

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Come to life under the backend's programs; SupervisorClosed if it is not open."""
        # Three messages at most wait at a time: one Append, which takes in what comes behind it, a Rest and the End.
        address = await self.backend.programs.spawn(lambda: self, name=self.name, restart="temporary", mailbox=3)
        if not self.gone:  # else it has ended already
            self.address = address

    async def finish(self) -> None:
        """Say that nothing more comes, and wait until all is executed and every branch has ended."""
        self.submit_end()
        await self.left()

    def submit_end(self) -> None:
        """Say that nothing more comes."""
        if not self.ended:
            self.ended = True
            if self.listening:
                self.wake()

    def wake(self) -> None:
        """Look at what was appended, or at the end; called while it is `listening`."""
        self.ref.post(End() if self.ended else Append(self.steps or []))

    def rest(self) -> None:
        """Look whether the program waits on the outside world; called while it is `listening`."""
        self.timer = None
        if self.steps is None and not self.ended:
            self.ref.post(Rest())

    async def cancel(self, error: BaseException) -> None:
        """End now, for `error`, and wait until nothing of it is left, branches included."""
        self.cancel_nowait(error)
        await self.left()

    def cancel_nowait(self, error: BaseException) -> None:
        """End now; generations under way are aborted, and branches end too."""
        if not self.over:
            self.break_off(error)
            if self.address is not None:
                self.address.stop_nowait()  # and if a backend swallows that, after its supervisor's grace

    def break_off(self, error: BaseException) -> None:
        """Be over for `error`, unless it is over already, and cancel the step at hand."""
        if not self.over:
            self.fail(error)
            if self._task is not None:
                self._task.cancel()

    def request_cancel(self) -> None:
        """End now, from whatever thread, for somebody who has no more use for it."""
        if not self.over:
            try:
                self.loop.call_soon_threadsafe(self.give_up)
            except RuntimeError:  # its loop is closed, and it has ended with it
                return

    def give_up(self) -> None:
        """End now, for somebody who has no more use for it."""
        self.cancel_nowait(Aborted(f"{self.name} was cancelled"))
        if self.performer is not None:
            self.performer.stop_nowait()

    # --- executing -------------------------------------------------------------------------------------------------

    async def run(self, inbox: Inbox[ToStream] | None) -> None:
        """Execute until the End, a failure or a cancellation.  inbox: None for a branch, which has none."""
        failure: BaseException | None = None
        self._task = asyncio.current_task()
        if self.track is not None:
            TRACK.set(self.track)  # for what this task asks the backend for
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
            if not self.over:
                self.fail(failure or Aborted(f"{self.name} ended early"))
            if self.forks:
                await self._end_branches()
            if inbox is not None:
                inbox.discard()  # what nobody will execute is not a dead letter: its readers are told
                del self.ref
            self._leave()

    def _leave(self) -> None:
        """Be gone, and let go of what leads back here: then no garbage collection is needed to free it."""
        self.gone = True
        self.address = None
        if self.track is not None:
            self.track.end(self.error)
        go_on(self)
        if self.lease:
            self.backend.release(self.lease)
        self.bell.ring()

    async def _execute_all(self, inbox: Inbox[ToStream] | None) -> None:
        assert inbox is not None
        if self.steps is not None:  # said before it looked: most programs never send it a message
            await self._execute(self.steps)
            if self.over:
                return
        if self.ended and self.steps is None:
            await self._conclude()
            return
        self.listening = True
        if self.steps is not None:
            self.ref.post(Append(self.steps))
        if self.ended:
            self.ref.post(End())
        while True:
            watch(self)
            for message, _ in await inbox.batch():
                if type(message) is Append:
                    await self._execute(message.steps)
                elif type(message) is Rest:
                    await pause(self)
                else:
                    await self._conclude()
                if self.over:
                    return

    async def _execute(self, steps: list[Any]) -> None:
        """Execute steps, until it is over."""
        go_on(self)
        self.steps = None
        transcript = self.transcript
        steps.reverse()
        while steps:  # not iterated: an iterator would be one object more for the collector, for as long as this waits
            step = steps.pop()
            if type(step) is str:
                transcript.say(step)
            elif (waiting := self._begin(step)) is not None:
                if self.track is None:
                    await waiting
                else:
                    with self.track.doing(*step_told(self, step)):
                        await waiting
                if self.over:  # cancelled, and the backend has swallowed it
                    return
            self.executed += 1
        self.text_bell.ring()
        self.bell.ring()

    def _begin(self, step: Any) -> Coroutine[Any, Any, None] | None:
        """Execute a step, or give what executes it, for it waits."""
        kind, transcript = type(step), self.transcript
        if kind is RoleText:
            transcript.say_message(step.role, step.text, self.backend.chat_template)
        elif kind is RoleBegin:
            transcript.begin_role(step.role, self.backend.chat_template)
        elif kind is RoleEnd:
            transcript.end_role()
        elif kind is Generate:
            return generate(self, step)
        elif kind is Choose:
            return self._choose(step)
        elif kind is ScopeOpen:
            step.variable.start = transcript.length
        elif kind is ScopeClose:
            step.variable.set(transcript.text[step.variable.start :])
        elif kind is ShowImage:
            transcript.show(step.url, self.backend.chat_template.image_token)
        elif kind is ShowVideo:
            return self._show_video(step)
        elif kind is Branches:
            return self._branch(step)
        elif kind is Concatenate:
            return self._concatenate(step)
        else:
            raise AssertionError(f"no such step: {step!r}")
        return None

    async def settle_tail(self) -> None:
        """Tokenize the constant text said since the last generation, together, once."""
        transcript = self.transcript
        if transcript.tail:
            tokens = await tokenize(self)
            self.foreseen = None
            if tokens is not None:
                transcript.settle(tokens)

    async def _show_video(self, step: ShowVideo) -> None:
        for url in await anyio.to_thread.run_sync(frame_urls, step.path, step.frames):  # decoding blocks
            self.transcript.show(url, self.backend.chat_template.image_token)

    async def _choose(self, step: Choose) -> None:
        transcript, variable = self.transcript, step.variable
        if transcript.ends_in_join:  # a token of the prompt's own must see all of it
            await self.settle_tail()
            transcript.close_join()
        prompt, method = self.leased_prompt(), step.method
        if method.unconditional:
            scores = await self.backend.score(prompt, step.choices, unconditional=True)
        else:
            scores = await self.backend.score(prompt, step.choices)
        variable.origin = choice = Choice(scores, method)
        index = choice.index
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
        await self.settle_tail()
        self.transcript.close_join()
        if len(step.kin.branches) > 1 and self.transcript.length:
            await self.backend.prefill(self.leased_prompt())
        ahead = self.ahead
        if ahead is not None and ahead.sampling.temperature:  # drawn once: branches would all get the same draw
            ahead = None
        step.kin.begin(self.transcript, ahead)

    async def _concatenate(self, step: Concatenate) -> None:
        """Say what branches said, in the tokens that they have; side by side, nothing of it is computed again."""
        transcript = self.transcript
        if step.side_by_side and step.branches:
            for stream in (self, *step.branches):
                await stream.settle_tail()
            transcript.join([(one.transcript, one.mark, one.position_offset) for one in step.branches])
            return
        for branch in step.branches:
            if len(branch.transcript.tokens) > branch.mark.token_bytes:
                await self.settle_tail()
            transcript.take(branch.transcript, *branch.mark[:3])

    async def _conclude(self) -> None:
        """Be over, once branches nobody joined are; an error in one that nobody has seen becomes this stream's."""
        for kin in self.forks:
            kin.submit_end()
        for kin in self.forks:
            await kin.gone()
        for kin in self.forks:
            if (error := kin.unseen()) is not None:
                raise error
        self.fail(None)

    async def _end_branches(self) -> None:
        """Let no branch live longer than this."""
        for kin in self.forks:
            kin.cancel_nowait(self.error or Aborted(f"{self.name} has ended"))
        with anyio.CancelScope(shield=True):
            for kin in self.forks:
                await kin.cleared()
