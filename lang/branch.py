"""One branch of a fork: a stream in a task of its parent's; and the branches it was made with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ..actors.errors import Aborted
from .ahead import Ahead
from .bell import Bell
from .stream import Stream
from .stream_state import StreamState
from .transcript import Mark, Transcript

__all__ = ["Branch", "Kin", "Mark"]

GRACE_S = 5.0
"""How long a cancelled branch may take before it is cancelled again, for a backend that swallows it."""


class Branch(Stream):
    """Execute what a branch says, in a task that its parent's stream owns; there are too many for an actor each.

    The parent's stream begins it, ends it when it ends itself, and does not leave before it is gone.
    """

    __slots__ = ("_kin", "called_off", "dismissed", "mark", "position_offset")

    def __init__(self, name: str, parent: StreamState, kin: Kin, position_offset: int) -> None:
        super().__init__(name, parent.backend, parent.defaults, parent)
        self._kin: Kin | None = kin  # until it is gone
        self.position_offset = position_offset
        self.mark = Mark()  # where it goes on from
        self.called_off = False  # ended by its owner or its kin, and for no failure of its own
        self.dismissed = False  # nobody wants what came of it

    def branch_off(self, transcript: Transcript, mark: Mark, ahead: Ahead | None) -> None:
        """Come to life, behind what was said so far."""
        self.transcript, self.mark, self.ahead = transcript, mark, ahead
        if self.backend.joins:
            transcript.jump(self.position_offset)
        self.executed += 1
        self.begun = True
        if self.track is not None:
            self.track.begin()
        self.task = self.loop.create_task(self.run(), name=self.name)
        self.ring()

    @property
    def joining(self) -> bool:
        """Whether the step at hand is its last, and a join waits for it that takes its KV as it is."""
        return self._kin is not None and self._kin.joining and self.executed + 1 == self.submitted

    def fail(self, error: BaseException | None) -> None:
        """Be over; the others of its fork may end for that."""
        if self.over:
            return
        kin = self._kin
        super().fail(error)
        if self.task is None:  # and so it never will begin, nor will those that were to go on from it
            for its_own in self.forks:
                its_own.cancel_nowait(error or Aborted(f"{self.name} has ended"))
            self._leave()
        if error is not None and not self.called_off and kin is not None:
            kin.note_failure(self, error)

    async def left(self) -> None:
        """Wait until nothing of it is left."""
        while not self.gone:
            await self.bell.wait()

    def give_up(self) -> None:
        """End now, for somebody who has no more use for it; the others go on, and a join leaves it out."""
        if self._kin is not None:
            self._kin.dismiss((self,))

    def _give_up_leases(self) -> None:
        """Have nothing kept for it any more, but for who joins it as it is."""
        kin = self._kin
        if kin is None or not kin.joining or self.error is not None:
            super()._give_up_leases()
        else:
            kin.leases += (self.lease, *self.inherited) if self.lease else self.inherited

    def _leave(self) -> None:
        super()._leave()
        kin, self._kin = self._kin, None
        if kin is not None:
            kin.note_gone()


class Kin:
    """The branches of one fork: what becomes of the others when one fails, and who waits for all of them.

    on_error: "raise" lets the others go on and raises at the join; "cancel" ends them at once; "collect" lets them
    go on and raises nothing.  joining: a join waits for them that takes their KV as it is.
    leases: of those that have ended since, for the join.
    """

    __slots__ = ("bell", "branches", "failed", "joining", "leases", "left", "on_error")

    def __init__(self, parent: StreamState, offsets: list[int], on_error: str) -> None:
        first = parent.branched
        parent.branched += len(offsets)
        self.on_error = on_error
        self.joining = False
        self.leases: tuple[int, ...] = ()
        self.failed: Branch | None = None  # the first that failed by itself
        self.bell = Bell()  # rung when the last is gone
        self.branches = tuple(
            Branch(f"{parent.name}/{first + index}", parent, self, offset) for index, offset in enumerate(offsets)
        )
        self.left = len(offsets)

    def begin(self, transcript: Transcript, ahead: Ahead | None = None) -> None:
        """Let each go on by itself from what was said so far."""
        mark = transcript.mark()
        for branch in self.branches:
            if not branch.over:
                branch.branch_off(transcript.copy(), mark, ahead)

    def submit_end(self) -> None:
        """Say that nothing more comes in any of them."""
        for branch in self.branches:
            branch.submit_end()

    def cancel_nowait(self, error: BaseException) -> None:
        """End all that still run, for an error that is known elsewhere."""
        for branch in self.branches:
            self._call_off(branch, error)

    def dismiss(self, branches: Iterable[Branch]) -> None:
        """End those that still run, for nobody wants what comes of them; a join leaves them out."""
        for branch in branches:
            if not branch.over:
                branch.dismissed = True
                self._call_off(branch, Aborted(f"{branch.name} was cancelled"))

    def _call_off(self, branch: Branch, error: BaseException) -> None:
        if not branch.over:
            branch.observed = branch.called_off = True
            branch.cancel_nowait(error)

    def note_failure(self, failed: Branch, error: BaseException) -> None:
        """Be told that one is over for an error of its own."""
        if self.failed is None:
            self.failed = failed
            if self.on_error == "cancel":
                reason = Aborted(f"cancelled with its fork, because {failed.name} failed: {error!r:.200}")
                reason.__cause__ = error
                self.cancel_nowait(reason)

    def note_gone(self) -> None:
        """Be told that nothing is left of one."""
        self.left -= 1
        if not self.left:
            self.bell.ring()

    async def gone(self) -> None:
        """Wait until nothing is left of any."""
        while self.left:
            await self.bell.wait()

    async def cleared(self) -> None:
        """Wait until nothing is left of any, all of them having been cancelled."""
        loop = asyncio.get_running_loop()
        while self.left:
            timer = loop.call_later(GRACE_S, self._cancel_again)
            try:
                await self.bell.wait()
            finally:
                timer.cancel()

    def _cancel_again(self) -> None:
        for branch in self.branches:
            if not branch.gone:
                branch.interrupt()
        self.bell.ring()

    def check(self, branch: Branch) -> None:
        """Raise the error of a branch, if it has one: if it was ended for another's failure, that one's."""
        if branch.called_off and self.failed is not None:
            self.failed.check()
        branch.check()

    def excuse(self, branch: StreamState, error: BaseException) -> BaseException | None:
        """Give what somebody who reads all of them should raise for the error of one; None if it simply has ended."""
        if branch.error is not error or not isinstance(branch, Branch):
            return error
        if branch.dismissed:
            return None
        if self.on_error == "collect":
            branch.observed = False  # whoever reads has not seen it
            return None
        if branch.called_off and self.failed is not None:
            self.failed.observed = True
            return self.failed.error
        return error

    def unseen(self) -> BaseException | None:
        """Give the first error, in the branches' order, that nobody has looked at."""
        return next((one.error for one in self.branches if one.error is not None and not one.observed), None)
