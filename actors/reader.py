"""A reader: where one request's deltas wait, merged, for whoever asked for them."""

from __future__ import annotations

import asyncio
from typing import Self

import msgspec

from .errors import Aborted, GenerationFailed
from .messages import Delta, Finish

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


class Reader:
    """Iterate over a request's deltas.  A slow reader gets fewer, larger ones: what waits is one delta.

    Lives in the loop of the engine.  The last delta, and only it, has `finish`.  A request that failed raises
    GenerationFailed, one that somebody aborted raises Aborted, at every wait from then on.
    """

    __slots__ = ("_ended", "_error", "_news", "_over", "_waiter", "request")

    def __init__(self, request: int) -> None:
        self.request = request
        self._news: list[Delta] = []  # the last one may have `finish`
        self._error: Exception | None = None
        self._ended = False
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether the terminal event has arrived (it may still wait to be read)."""
        return self._ended

    def push(self, delta: Delta) -> None:
        """Add news; whatever comes behind the terminal event is ignored."""
        if self._ended:
            return
        if (finish := delta.finish) is not None:
            self._ended = True
            self._error = failure(finish)
            if self._error is not None:
                delta = msgspec.structs.replace(delta, finish=None)
        if delta.text or delta.tokens or delta.input_logprobs or delta.finish is not None:
            self._news.append(delta)
        self._wake()

    def fail(self, error: Exception) -> None:
        """End with an error, unless it has ended."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        while not self._news:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    def _take(self) -> Delta:
        news = self._news
        if len(news) == 1:  # a reader that keeps up
            delta = news.pop()
        else:
            self._news = []
            delta = _merged(news)
        self._over = delta.finish is not None
        return delta


def _merged(news: list[Delta]) -> Delta:
    return Delta(
        text="".join([delta.text for delta in news]),
        tokens=tuple([token for delta in news for token in delta.tokens]),
        logprobs=tuple([logprob for delta in news for logprob in delta.logprobs]),
        input_logprobs=tuple([logprob for delta in news for logprob in delta.input_logprobs]),
        finish=news[-1].finish,
    )
