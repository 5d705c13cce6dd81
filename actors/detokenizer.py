"""The detokenizer: one batch of tokens a step in, one batch of text deltas out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self
from weakref import WeakValueDictionary

import numpy as np

from .core import Actor
from .messages import (
    Close,
    Delta,
    Deltas,
    Finish,
    Finished,
    LiveRequests,
    Open,
    Stopped,
    ToDetokenizer,
    TokenLogprob,
    Tokens,
)
from .text_stream import Behind, TextStream, TokenText, first_characters
from .wires import Wires

__all__ = ["Detokenizer"]


class _Ordinary(dict[int, Delta | None]):
    """The news that a token is which has its text wherever it stands, one object for all requests; else None."""

    def __init__(self, text: TokenText) -> None:
        super().__init__()
        self._text = text

    def __missing__(self, token: int) -> Delta | None:
        text = self._text.alone(token)
        delta = self[token] = None if text is None else Delta(text=text, tokens=(token,))
        return delta


class _Unstopped(dict[int, Delta | None]):
    """Of all that news, that of tokens in which no stop may begin; else None.  firsts: what stops begin with."""

    def __init__(self, ordinary: _Ordinary, firsts: frozenset[str]) -> None:
        super().__init__()
        self._ordinary = ordinary
        self._firsts = firsts

    def __missing__(self, token: int) -> Delta | None:
        delta = self._ordinary[token]
        self[token] = delta = None if delta is None or not self._firsts.isdisjoint(delta.text) else delta
        return delta


class _Output(TextStream):
    """The text of one live request, and what of its tokens is still to be told.

    # tokens:   [0, sent)       the client has them
    #           [sent, seen)    `_untold`: not wholly shown yet; `_logprobs` are those of its last ones

    passing: the news of tokens that need not be fed, as long as there are any: whoever lets one pass counts it in
    `seen`.
    """

    __slots__ = ("_logprobs", "_news_of", "_untold", "cached_tokens", "passing", "prompt_tokens")

    def __init__(self, opened: Open, text: TokenText, news_of: Mapping[int, Delta | None]) -> None:
        super().__init__(text, opened.sampling.stop, opened.sampling.stop_regex)
        self._news_of = news_of
        self._untold: tuple[int, ...] = ()
        self._logprobs: tuple[TokenLogprob, ...] = ()
        self.prompt_tokens = opened.prompt_tokens
        self.cached_tokens = 0
        for token in np.frombuffer(opened.output, np.int32).tolist():
            self.feed(token)
        self.passing = news_of if self.is_quiet() else None

    def take(self, token: int, logprob: TokenLogprob | None) -> Delta:
        """Feed the next token; give what is new by it."""
        text = self.feed(token)
        self.passing = self._news_of if self.is_quiet() else None
        self._untold += (token,)
        if logprob is not None:
            self._logprobs += (logprob,)
        if self.matched is None:
            return self._news(text, None)
        finish = Finish(
            reason="stop",
            matched=self.matched,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.seen,
            kept_tokens=self.whole,
            tail=self.tail,
        )
        return self._news(text, finish)

    def close(self, end: Finished, next_logprobs: bytes) -> Delta:
        """Close an output the scheduler has ended; text that was held back comes with it."""
        text = self.finish()
        finish = Finish(
            reason=end.reason,
            matched=end.matched if self.matched is None else self.matched,
            message=end.message,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=end.cached_tokens,
            completion_tokens=end.completion_tokens,
            retractions=end.retractions,
            kept_tokens=self.whole,
            tail=self.tail,
        )
        return self._news(text, finish, next_logprobs)

    def lose(self, request: int, offset: int) -> Delta:
        """End a request that the scheduler goes on with at `offset`, further than what is known of it."""
        known = self.seen
        message = f"tokens {known} to {offset - 1} of request {request} were lost when the detokenizer restarted"
        return Delta(finish=Finish(reason="error", message=message, prompt_tokens=self.prompt_tokens))

    def _news(self, text: str, finish: Finish | None, next_logprobs: bytes = b"") -> Delta:
        """Give text, and the tokens that are wholly shown and were not sent yet, with their log-probabilities."""
        sent = self.seen - len(self._untold)
        count = max(0, self.whole - sent)
        told = max(0, count - (len(self._untold) - len(self._logprobs)))  # of those that are held the last have one
        tokens, self._untold = self._untold[:count], self._untold[count:]
        logprobs, self._logprobs = self._logprobs[:told], self._logprobs[told:]
        return Delta(text=text, tokens=tokens, logprobs=logprobs, next_logprobs=next_logprobs, finish=finish)


class Detokenizer(Actor[ToDetokenizer]):
    """Turn each step's Tokens into Deltas; find stops and tell the scheduler.

    Tokens carry their index in the output: a repeat (a replay after a crash) is dropped, a gap (a message lost with a
    crash of this actor) ends that request with an error and no other.
    """

    def __init__(self, wires: Wires, make_text: Callable[[bool], TokenText]) -> None:
        self._wires = wires
        self._make_text = make_text
        self._ordinary = {skip: _Ordinary(make_text(skip)) for skip in (False, True)}
        self._unstopped: WeakValueDictionary[tuple[bool, frozenset[str]], _Unstopped] = WeakValueDictionary()
        self._outputs: dict[int, _Output] = {}

    async def __aenter__(self) -> Self:
        for opened in await self._wires.dispatcher.ask(LiveRequests()):
            self._open(opened)
        return self

    async def receive(self, message: ToDetokenizer) -> None:
        match message:
            case Open():
                if message.request not in self._outputs:
                    self._open(message)
            case Close(request):
                self._outputs.pop(request, None)
            case Tokens():
                await self._step(message)

    def _open(self, opened: Open) -> None:
        skip = opened.sampling.skip_special_tokens
        text = self._make_text(skip)
        text.follow(np.frombuffer(opened.before, np.int32).tolist())
        if opened.sampling.begin:
            text = Behind(text, len(opened.sampling.begin))
        self._outputs[opened.request] = _Output(
            opened, text, self._news_of(skip, first_characters(opened.sampling.stop))
        )

    def _news_of(self, skip: bool, firsts: frozenset[str]) -> Mapping[int, Delta | None]:
        """Give the news of tokens that pass by requests with such stops; theirs is kept while one of them is live."""
        if not firsts:
            return self._ordinary[skip]
        if (news_of := self._unstopped.get((skip, firsts))) is None:
            news_of = self._unstopped[skip, firsts] = _Unstopped(self._ordinary[skip], firsts)
        return news_of

    async def _step(self, step: Tokens) -> None:
        outputs, logprobs = self._outputs, step.logprobs
        told: list[int] = []
        news: list[Delta] = []
        stopped: list[int] = []
        finished = {end.request: end for end in step.finished}
        for request, cached in step.cached.items():
            if (output := outputs.get(request)) is not None:
                output.cached_tokens = cached
        for request, found in step.input_logprobs.items():
            if request in outputs:
                told.append(request)
                news.append(Delta(input_logprobs=found))
        requests = np.frombuffer(step.requests, np.int64).tolist()
        offsets = np.frombuffer(step.offsets, np.int32).tolist()
        tokens = np.frombuffer(step.tokens, np.int32).tolist()
        fed = {*finished, *logprobs}
        for request, offset, token in zip(requests, offsets, tokens, strict=True):
            if (output := outputs.get(request)) is None:
                continue  # stopped or closed here; the scheduler's last step in flight does not know yet
            known = output.seen
            if (
                offset == known
                and output.passing is not None
                and request not in fed
                and (delta := output.passing[token]) is not None
            ):
                output.seen = known + 1
            elif offset > known:
                delta = output.lose(request, offset)
            elif offset < known or _is_dropped(finished.get(request), offset):
                continue
            else:
                delta = output.take(token, logprobs.get(request))
            told.append(request)
            news.append(delta)
            if delta.finish is not None:
                del outputs[request]
                if finished.pop(request, None) is None:
                    stopped.append(request)
        for request, end in finished.items():
            if (output := outputs.pop(request, None)) is not None:
                told.append(request)
                news.append(output.close(end, step.next_logprobs.get(request, b"")))
        if stopped:
            await self._wires.scheduler.tell(Stopped(tuple(stopped)))
        if news:
            await self._wires.dispatcher.tell(Deltas(tuple(told), tuple(news)))


def _is_dropped(end: Finished | None, offset: int) -> bool:
    """Whether a token is no part of the text: one that ends it."""
    return end is not None and offset >= end.completion_tokens - end.drop
