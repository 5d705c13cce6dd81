"""The loop and thread where a tree of actors lives, and the door other threads come through."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

import anyio

from .errors import DeadLetter
from .local import LocalRef
from .ref import Ref

if TYPE_CHECKING:
    from .child import Child
    from .mailbox import Mailbox

__all__ = ["Home"]


class Home:
    """Hold what a whole tree of supervisors shares: its loop, its dead letters, its debug mode.

    Other threads run calls here through `call`. A call that was accepted always runs: what is still waiting when
    the tree closes runs then, and finds every actor ended.
    """

    __slots__ = (
        "_calls", "_dead_letter", "closed", "dead_letters", "debug", "fail", "lock", "loop", "make_ref", "make_scope",
        "thread",
    )  # fmt: skip

    def __init__(
        self, dead_letter: Callable[[DeadLetter], None] | None, debug: bool, fail: Callable[[BaseException], None]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        self.lock = Lock()
        # A simulated loop brings refs of its own, which drop, delay and crash.
        self.make_ref: Callable[[Child, Mailbox], Ref[Any]] = getattr(self.loop, "make_ref", LocalRef)
        # The class of the scopes anyio makes here: anyio.CancelScope() looks for its backend anew each time.
        self.make_scope: Callable[[], anyio.CancelScope] = type(anyio.CancelScope())
        self.debug = debug
        self.closed = False
        self.dead_letters = 0
        self.fail = fail
        self._dead_letter = dead_letter
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def call(self, function: Callable[..., None], *arguments: Any) -> bool:
        """Run function(*arguments) on the home loop soon, from any thread; False if the tree is closed."""
        with self.lock:
            return self.call_locked(function, *arguments)

    def call_locked(self, function: Callable[..., None], *arguments: Any) -> bool:
        """Do what `call` does, for a caller that holds `lock`."""
        if self.closed:
            return False
        self._calls.append((function, arguments))
        if len(self._calls) == 1:  # one wake-up for all calls that come before it
            self.loop.call_soon_threadsafe(self._run_calls)
        return True

    def _run_calls(self) -> None:
        with self.lock:
            calls = list(self._calls)
            self._calls.clear()
        for function, arguments in calls:
            function(*arguments)

    def close(self) -> None:
        """Accept no more calls, and run those accepted so far."""
        with self.lock:
            self.closed = True
        self._run_calls()

    def bury(self, letter: DeadLetter) -> None:
        """Count a dead letter and show it to the callback; if that raises, the tree's root fails with its error."""
        if get_ident() != self.thread and self.call(self.bury, letter):
            return
        self.dead_letters += 1
        if self._dead_letter is None:
            return
        try:
            self._dead_letter(letter)
        except Exception as error:
            self.fail(error)
