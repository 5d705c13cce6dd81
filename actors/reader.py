"""A reader: where one request's deltas wait, merged, for whoever asked for them."""

from __future__ import annotations

import asyncio
from typing import Self

from .errors import Aborted, GenerationFailed
from .messages import Delta, Finish, TokenLogprob

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

    __slots__ = ("_error", "_finish", "_input_logprobs", "_logprobs", "_over", "_text", "_tokens", "_waiter", "request")

    def __init__(self, request: int) -> None:
        self.request = request
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._input_logprobs: list[TokenLogprob] = []
        self._finish: Finish | None = None
        self._error: Exception | None = None
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether the terminal event has arrived (it may still wait to be read)."""
        return self._finish is not None or self._error is not None

    def push(self, delta: Delta) -> None:
        """Add news; whatever comes behind the terminal event is ignored."""
        if self.over:
            return
        if delta.text:
            self._text.append(delta.text)
        self._tokens.extend(delta.tokens)
        self._logprobs.extend(delta.logprobs)
        self._input_logprobs.extend(delta.input_logprobs)
        if (finish := delta.finish) is not None:
            self._error = failure(finish)
            if self._error is None:
                self._finish = finish
        self._wake()

    def fail(self, error: Exception) -> None:
        """End with an error, unless it has ended."""
        if not self.over:
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
        while not (self._text or self._tokens or self._input_logprobs or self.over):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None and not (self._text or self._tokens or self._input_logprobs):
            raise self._error
        return self._take()

    def _take(self) -> Delta:
        delta = Delta(
            text="".join(self._text),
            tokens=tuple(self._tokens),
            logprobs=tuple(self._logprobs),
            input_logprobs=tuple(self._input_logprobs),
            finish=self._finish,
        )
        self._over = self._finish is not None
        self._text, self._tokens, self._logprobs, self._input_logprobs = [], [], [], []
        return delta
