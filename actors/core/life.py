"""One life of an actor: from its factory's object to the end of that object's task."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import anyio

from .actor import Actor
from .errors import ActorDied, Stopped
from .inbox import Inbox

if TYPE_CHECKING:
    from .child import Child

__all__ = ["Life", "wait_for_task"]


class Life:
    """Run one actor object in one task, with a cancel scope of its own.

    The task is no child of an anyio task group, because a group's spawn costs more than all the rest of a life;
    the supervisor plays the group's part: it never leaves its block before every life's task is done. So outer
    cancel scopes do not reach in here either, and the supervisor cancels lives in its own order.
    """

    __slots__ = ("_actor", "_cause", "_scope", "_started", "_timer", "child", "inbox", "paused", "task")

    def __init__(self, child: Child, actor: Actor[Any]) -> None:
        self.child = child
        self.inbox: Inbox[Any] = Inbox(child.mailbox)
        self.paused = False  # the supervisor ended this life and goes on from there itself
        self._started: asyncio.Future[None] | None = None
        self._actor: Actor[Any] | None = actor
        self._scope = child.mailbox.home.make_scope()
        self._timer: asyncio.TimerHandle | None = None
        self._cause: BaseException | None = None
        actor.ref = child.ref
        self.task = child.mailbox.home.loop.create_task(self._live(), name=child.mailbox.name)

    def expect_start(self) -> asyncio.Future[None] | None:
        """Return what tells when `__aenter__` is done; None if the actor has none, so that it cannot fail."""
        assert self._actor is not None
        if type(self._actor).__aenter__ is not Actor.__aenter__:
            self._started = self.child.mailbox.home.loop.create_future()
        return self._started

    def stop(self, grace: float) -> None:
        """Let the message at hand finish, then end; cancel after `grace` seconds."""
        self.inbox.stop()
        self.cancel_after(grace)

    def cancel_after(self, grace: float) -> None:
        if grace == math.inf or self.task.done():
            return
        loop = self.child.mailbox.home.loop
        if self._timer is not None:
            if self._timer.when() <= loop.time() + grace:
                return
            self._timer.cancel()
        self._timer = loop.call_later(grace, self.cancel)

    def cancel(self) -> None:
        """Cancel the life; cleaning up still has its time."""
        self._scope.cancel()  # first: woken by a stop, it would end as one that was asked to
        self.inbox.stop()

    def crash(self, cause: BaseException) -> None:
        """End the life wherever it is, as if `cause` had been raised there: for simulated faults."""
        self._cause = cause
        self._scope.cancel()

    async def _live(self) -> None:
        """Set up, run, clean up, then tell the child how it ended."""
        actor = self._actor
        assert actor is not None
        error: BaseException | None = None
        entered = False
        try:
            with self._scope:
                try:
                    await actor.__aenter__()
                    entered = True
                    self._report_start()
                    await actor.run(self.inbox)
                except asyncio.CancelledError as caught:
                    error = caught
                    raise
        except Stopped:
            pass
        except BaseExceptionGroup as caught:  # a task group inside `run` wraps what is raised in it
            error = caught.split(Stopped)[1]
        except BaseException as caught:
            error = caught
        if entered and type(actor).__aexit__ is not Actor.__aexit__:
            error = await self._clean_up(actor, error)
        self._end(error)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error

    async def _clean_up(self, actor: Actor[Any], error: BaseException | None) -> BaseException | None:
        """Call `__aexit__` with its own time limit; return the error the life ends with."""
        seconds = self.child.cleanup
        try:
            with anyio.move_on_after(seconds) as limit:
                await actor.__aexit__(None if error is None else type(error), error, _traceback(error))
        except BaseException as caught:
            return caught
        if limit.cancelled_caught and (error is None or isinstance(error, asyncio.CancelledError)):
            return TimeoutError(f"cleaning up took more than {seconds:g} s")
        return error

    def _end(self, error: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.inbox.end()
        if self._cause is not None:
            error = self._cause
        elif isinstance(error, asyncio.CancelledError) and self._scope.cancel_called:
            error = None  # as told to; any other cancellation came from nowhere we know and is a crash
        self._actor = None  # frees the object although the task may be kept
        self.child.life_ended(self, error)

    def _report_start(self) -> None:
        if self._started is not None:
            if not self._started.done():
                self._started.set_result(None)
            self.child.starting = False

    def fail_start(self, error: BaseException) -> bool:
        """Raise at whoever waits for the start; False if nobody does, or the start is done."""
        if self._started is None or self._started.done():
            return False
        if isinstance(error, asyncio.CancelledError):  # raised there, it would look like a cancellation of theirs
            error = ActorDied(self.child.name, error)
        self._started.set_exception(error)
        return True


def _traceback(error: BaseException | None) -> Any:
    return None if error is None else error.__traceback__


async def wait_for_task(task: asyncio.Task[None]) -> None:
    """Wait until a task is done, whatever came of it; cancelling the wait leaves the task alone."""
    if not task.done():
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: asyncio.Task[None]) -> None:
            if not future.done():
                future.set_result(None)

        task.add_done_callback(done)
        try:
            await future
        finally:
            task.remove_done_callback(done)
