"""The stream of one program's state: a job that executes what the program says, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import anyio

from ..actors.errors import Aborted
from ..actors.recorder import TRACK
from .expression import RoleBegin, RoleEnd, RoleText
from .film import frame_urls
from .generating import generate
from .pausing import go_on, pause, watch
from .script import Branches, Choose, Concatenate, Generate, ScopeClose, ScopeOpen, ShowImage, ShowVideo
from .stream_state import StreamState
from .tracks import step_told
from .variable import Choice

__all__ = ["Stream"]


class Stream(StreamState):
    """Execute a program's steps against its backend.

    One that was made lies idle until `start`; what is appended before waits in `steps`.
    """

    __slots__ = ()

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Come to life under the backend's programs; SupervisorClosed if it is not open."""
        await self.backend.programs.begin(self)

    async def end_and_wait(self) -> None:
        """Say that nothing more comes, and wait until all is executed and every branch has ended."""
        self.submit_end()
        await self.left()

    def submit_end(self) -> None:
        """Say that nothing more comes."""
        if not self.ended:
            self.ended = True
            self.look()

    async def cancel_and_wait(self, error: BaseException) -> None:
        """End now, for `error`, and wait until nothing of it is left, branches included."""
        self.cancel_nowait(error)
        await self.left()

    def cancel_nowait(self, error: BaseException) -> None:
        """End now; generations under way are aborted, and branches end too."""
        if not self.over:
            self.break_off(error)
            if self.supervisor is not None:
                self.stop(self.supervisor.grace)  # and if a backend swallows that, again

    def break_off(self, error: BaseException) -> None:
        """Be over for `error`, unless it is over already, and cancel the step at hand."""
        if not self.over:
            self.fail(error)
            if self._task is not None:
                self._task.cancel()

    def interrupt(self) -> None:
        """Cancel the step at hand; if it has not begun, it is over."""
        if self._task is not None:
            self._task.cancel()
        elif not self.over:
            self.fail(Aborted(f"{self.name} ended early"))

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

    async def run(self) -> None:
        """Execute what is said until the end, a failure or a cancellation."""
        failure: BaseException | None = None
        task = asyncio.current_task(self.loop)
        try:
            if not self.over and (acting := self._act()) is not None:  # it may have been cancelled before it began
                await acting
                del acting  # it has ended, and is an object less for the collector
            self._task = task
            if self.track is not None:
                TRACK.set(self.track)  # for what this task asks the backend for
            while not self.over:
                if (steps := self.steps) is None:
                    await (self._conclude() if self.ended else self._wait_for_more())
                    continue
                go_on(self)
                self.steps = None
                steps.reverse()
                while steps:  # not iterated: an iterator would be one object more for the collector, while this waits
                    step = steps.pop()
                    if (waiting := self._begin(step)) is not None:
                        if self.track is None:
                            await waiting
                        else:
                            with self.track.doing(*step_told(self, step)):
                                await waiting
                        if self.over:  # cancelled, and the backend has swallowed it
                            break
                    self.executed += 1
                self.ring()
        except asyncio.CancelledError:
            if not self.over:  # not by cancel_nowait, but by the supervisor
                raise
            assert task is not None
            task.uncancel()
        except Exception as error:
            failure = error
        finally:
            self._task = None
            if not self.gone:  # else a second task has executed it, while this one performed the body
                if not self.over:
                    self.fail(failure or Aborted(f"{self.name} ended early: its backend was closed, or cancelled it"))
                if self.forks:
                    await self._end_branches()
                self._leave()
            if self.task is task:  # else a body is still performed in it
                self.leave()

    def _act(self) -> Awaitable[None] | None:
        """Give what is to be done in its task before it executes, if anything."""
        return None

    def _leave(self) -> None:
        """Be gone, and let go of what leads back here: then no garbage collection is needed to free it."""
        self.gone = True
        self._idle = None
        if self.track is not None:
            self.track.end(self.error)
        go_on(self)
        for kin in self.forks:
            self.forget(kin)
        self._give_up_leases()
        self.ring()

    def _give_up_leases(self) -> None:
        """Have nothing kept for it any more."""
        for lease in (self.lease, *self.inherited) if self.lease else self.inherited:
            self.backend.release(lease)

    async def _wait_for_more(self) -> None:
        """Wait until more is said, or it is to end; if that takes long, the program waits on the outside world."""
        if self.stopping:
            raise Aborted(f"{self.name} ended early: its backend was closed")
        watch(self)
        self._idle = self.loop.create_future()
        await self._idle
        self._idle = None
        if self.steps is None and not self.ended and not self.stopping:
            await pause(self)

    def _begin(self, step: Any) -> Awaitable[None] | None:
        """Execute a step, or give what executes it, for it waits."""
        kind, transcript = type(step), self.transcript
        if kind is str:
            transcript.say(step)
        elif kind is RoleText:
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
        """Tokenize the constant text said since the last generation, together, once, if the backend has a tokenizer."""
        transcript, foreseen = self.transcript, self.foreseen
        if text := transcript.tail:
            beginning = not transcript.tokens
            if foreseen is not None and foreseen[:2] == (text, beginning):
                tokens = foreseen[2]
            else:
                tokens = await self.backend.encode(text, beginning=beginning)
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
        self.ring()

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
