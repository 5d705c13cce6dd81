"""A reader: where one request's deltas wait, merged, for whoever asked for them."""

from __future__ import annotations

import asyncio
from typing import Self

import msgspec

from .errors import Aborted, GenerationFailed
from .messages import Delta, Finish
from .waker import Sleeper, Waker

__all__ = ["Reader", "failure"]


def failure(finish: Finish) -> Exception | None:
    """Give the error a terminal event is to its reader: None if the request ended well."""
    match finish.reason:
        case "error":
            return GenerationFailed(finish.message)
        case "abort":
            return Aborted(finish.message or "the request was aborted")
        case _:
            return None


class Reader(Sleeper):
    """Iterate over a request's deltas.  A slow reader gets fewer, larger ones: what waits is one delta.

    Lives in the loop of the engine.  The last delta, and only it, has `finish`.  A request that failed raises
    GenerationFailed, one that somebody aborted raises Aborted, at every wait from then on.

    waker: what wakes its owner; readers that have one in common are woken together.  patient: its owner wants to be
    woken only at the end.  news: the first of what waits, if anything does; several: all of it, if that is more; the
    last may have `finish`.  over: whether the terminal event has arrived (it may still wait to be read).
    """

    __slots__ = ("_error", "_patient", "news", "over", "request", "several")

    def __init__(self, request: int, waker: Waker | None = None, *, patient: bool = False) -> None:
        super().__init__(Waker() if waker is None else waker)
        self.request = request
        self.over = False
        self.news: Delta | None = None
        self.several: list[Delta] | None = None
        self._patient = patient
        self._error: Exception | None = None

    def push(self, delta: Delta) -> None:
        """Add news; whatever comes behind the terminal event is ignored."""
        if delta.finish is not None or self.over:
            self._end(delta)
        elif delta.text or delta.tokens or delta.input_logprobs:
            if self.news is None:  # a reader that keeps up
                self.news = delta
            else:
                self._add(delta)
            if self.sleeps and not self._patient:
                self.sleeps = False
                self.waker.wake(self)

    def _add(self, delta: Delta) -> None:
        if self.several is not None:
            self.several.append(delta)
        elif self.news is not None:
            self.several = [self.news, delta]
        else:
            self.news = delta

    def _end(self, delta: Delta) -> None:
        """Know the end, unless it is known; an error is told behind what came with it."""
        if self.over or delta.finish is None:
            return
        self.over = True
        self._error = failure(delta.finish)
        if self._error is not None:
            delta = msgspec.structs.replace(delta, finish=None)
        if delta.text or delta.tokens or delta.input_logprobs or delta.finish is not None:
            self._add(delta)
        self.wake()

    def fail(self, error: Exception) -> None:
        """End with an error, unless it has ended."""
        if not self.over:
            self.over = True
            self._error = error
            self.wake()

    # --- what is said to the request itself (core.Asker) -----------------------------------------------------------

    def done(self) -> bool:
        return self.over

    def cancelled(self) -> bool:
        return self.over

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.waker.loop

    def set_result(self, result: None, /) -> None:
        """Know that the request is admitted."""

    def set_exception(self, exception: Exception, /) -> None:
        """Know that it is refused, or that nobody is there to admit it."""
        self.fail(exception)

    # --- reading ---------------------------------------------------------------------------------------------------

    def end(self) -> Exception:
        """Give what to raise where it is over and there is no news."""
        return StopAsyncIteration() if self._error is None else self._error

    def take(self) -> Delta:
        """Give all that waits, as one delta; only where there is news."""
        news, self.news = self.news, None
        if self.several is not None:
            news, self.several = _merged(self.several), None
        assert news is not None, "there is news"
        return news

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while self.news is None:
            if self.over:
                raise self.end()
            await self.sleep()
        return self.take()


def _merged(news: list[Delta]) -> Delta:
    return Delta(
        text="".join([delta.text for delta in news]),
        tokens=tuple([token for delta in news for token in delta.tokens]),
        logprobs=tuple([logprob for delta in news for logprob in delta.logprobs]),
        input_logprobs=tuple([logprob for delta in news for logprob in delta.input_logprobs]),
        finish=news[-1].finish,
    )
