"""What lasts over an actor's lives: its mailbox, its factory, who watches it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from .actor import Actor
from .life import Life
from .local import LocalRef
from .mailbox import Mailbox
from .message import Down
from .ref import Ref
from .statistics import Statistics

if TYPE_CHECKING:
    from .supervisor import Supervisor

__all__ = ["Child", "Restart"]

Restart = Literal["permanent", "transient", "temporary"]


class Child:
    """Keep one place in a supervisor, through restarts, until it has ended for good."""

    __slots__ = (
        "_ended", "_factory", "_prune_at", "_watchers", "branch", "cleanup", "ending", "life", "lives", "mailbox",
        "ref", "restart", "starting", "supervisor",
    )  # fmt: skip

    def __init__(
        self, supervisor: Supervisor, factory: Callable[[], Actor[Any]], name: str, restart: Restart, bound: int,
        branch: Supervisor | None = None,
    ) -> None:  # fmt: skip
        self.supervisor = supervisor
        self.mailbox = Mailbox(name, bound, supervisor.home)
        self.restart: Restart = restart
        self.lives = 0  # begun so far
        self.branch = branch  # the nested supervisor, if that is what lives here
        self.cleanup = supervisor.cleanup + (supervisor.grace if branch is not None else 0.0)
        self.life: Life | None = None
        self.starting = False  # the first start is not yet done
        self.ending = False  # asked to end for good
        self._factory: Callable[[], Actor[Any]] | None = factory
        self._watchers: dict[Ref[Any], None] | None = None
        self._prune_at = 64
        self._ended: dict[Callable[[], None], None] | None = None
        self.ref: Ref[Any] = supervisor.home.make_ref(self, self.mailbox)  # until it has ended for good

    @property
    def name(self) -> str:
        return self.mailbox.name

    @property
    def restarts(self) -> int:
        return max(0, self.lives - 1)

    def statistics(self) -> list[Statistics]:
        """Count what it has done so far, and then, of a nested supervisor, what its children have."""
        below = [] if self.branch is None else self.branch.statistics()
        return [self.ref.statistics(), *below]

    def pause(self, grace: float | None) -> asyncio.Task[None] | None:
        """End the life at hand, after `grace` seconds at most or now, and give its task; there may be another life."""
        life = self.life
        if life is None:
            return None
        life.paused = True
        if grace is None:
            life.cancel()
        else:
            life.stop(grace)
        return life.task

    def launch(self) -> Life:
        """Begin a life; raises what the factory raises."""
        self.lives += 1
        factory = self._factory
        assert factory is not None, "a temporary actor lives once"
        if self.restart == "temporary":
            self._factory = None  # lets go of what it holds, which may lead back here
        self.life = Life(self, factory())
        return self.life

    def life_ended(self, life: Life, error: BaseException | None) -> None:
        """Fail the asks that died with a life, and let the supervisor decide what comes next."""
        self.life = None
        self.mailbox.abandon_taken(error, describe(error))
        self.supervisor.life_ended(self, life, error)

    def finish(self, reason: str, cause: BaseException | None = None) -> None:
        """End for good: close the mailbox, tell the watchers and those who wait."""
        if self.mailbox.closed:
            return
        self.supervisor.children.pop(self, None)
        self.mailbox.close(cause, reason)
        if self.branch is not None:
            self.branch.finish_children(reason)
        down = Down(self.name, reason)
        for watcher in self._watchers or ():
            watcher.notify(down)
        for ended in list(self._ended or ()):
            ended()
        self._watchers = self._ended = None
        del self.ref  # it refers to this: in a circle, both would stay until the collector comes

    def request_stop(self) -> None:
        """End for good, after the message at hand, cancelled when the supervisor's grace has passed."""
        self._request_end(self.supervisor.grace)

    def request_cancel(self) -> None:
        """End for good, now."""
        self._request_end(None)

    def _request_end(self, grace: float | None) -> None:
        if self.mailbox.closed:
            return
        self.ending = True
        if self.life is None:
            self.finish("stopped")
        elif grace is None:
            self.life.cancel()
        else:
            self.life.stop(grace)

    def watch(self, watcher: Ref[Any]) -> None:
        if self.mailbox.closed:
            watcher.notify(Down(self.name, self.mailbox.reason))
            return
        if self._watchers is None:
            self._watchers = {}
        self._watchers[watcher] = None
        if len(self._watchers) >= self._prune_at:  # a long life sees many watchers come and go
            self._watchers = {other: None for other in self._watchers if not _has_ended(other)}
            self._prune_at = max(64, 2 * len(self._watchers))

    def when_ended(self, ended: Callable[[], None]) -> None:
        """Call `ended` once, at home, when this has ended for good; now if it has."""
        if self.mailbox.closed:
            ended()
            return
        if self._ended is None:
            self._ended = {}
        self._ended[ended] = None

    def forget(self, ended: Callable[[], None]) -> None:
        if self._ended is not None:
            self._ended.pop(ended, None)

    def is_current_task(self) -> bool:
        """Whether the caller runs inside this actor."""
        if self.life is None:
            return False
        try:
            return asyncio.current_task() is self.life.task
        except RuntimeError:  # a thread without a loop
            return False


def describe(error: BaseException | None) -> str:
    """Put an end into words, for Down."""
    if error is None:
        return "stopped"
    return f"{type(error).__name__}: {error}"


def report_crash(child: Child, error: BaseException, outcome: str) -> None:
    """Log a crash with its traceback: an error must not pass silently because a restart covers it."""
    logger = logging.getLogger("callboard.actors.core")
    logger.warning("actor %r crashed (%s): %s", child.name, describe(error), outcome, exc_info=error)


def _has_ended(ref: Ref[Any]) -> bool:
    return isinstance(ref, LocalRef) and ref.statistics().ended
