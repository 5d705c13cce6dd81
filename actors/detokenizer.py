"""The detokenizer: one batch of tokens a step in, one batch of text deltas out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

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
from .text_stream import Behind, TextStream, TokenText
from .wires import Wires

__all__ = ["Detokenizer"]


class _Output:
    """What is known of one live request's output."""

    __slots__ = ("cached_tokens", "logprobs", "prompt_tokens", "sent", "stream", "tokens")

    def __init__(self, opened: Open, text: TokenText) -> None:
        self.stream = TextStream(text, opened.sampling.stop, opened.sampling.stop_regex)
        self.prompt_tokens = opened.prompt_tokens
        self.cached_tokens = 0
        self.tokens: list[int] = np.frombuffer(opened.output, np.int32).tolist()
        self.logprobs: list[TokenLogprob] = []  # aligned with the end of `tokens`
        self.sent = len(self.tokens)
        for token in self.tokens:
            self.stream.feed(token)


class Detokenizer(Actor[ToDetokenizer]):
    """Turn each step's Tokens into Deltas; find stops and tell the scheduler.

    Tokens carry their index in the output: a repeat (a replay after a crash) is dropped, a gap (a message lost with a
    crash of this actor) ends that request with an error and no other.
    """

    def __init__(self, wires: Wires, make_text: Callable[[bool], TokenText]) -> None:
        self._wires = wires
        self._make_text = make_text
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
        text = self._make_text(opened.sampling.skip_special_tokens)
        text.follow(np.frombuffer(opened.before, np.int32).tolist())
        if opened.sampling.begin:
            text = Behind(text, len(opened.sampling.begin))
        self._outputs[opened.request] = _Output(opened, text)

    async def _step(self, step: Tokens) -> None:
        news: dict[int, Delta] = {}
        stopped: list[int] = []
        finished = {end.request: end for end in step.finished}
        for request, cached in step.cached.items():
            if (output := self._outputs.get(request)) is not None:
                output.cached_tokens = cached
        requests = np.frombuffer(step.requests, np.int64).tolist()
        offsets = np.frombuffer(step.offsets, np.int32).tolist()
        tokens = np.frombuffer(step.tokens, np.int32).tolist()
        for request, offset, token in zip(requests, offsets, tokens, strict=True):
            if (output := self._outputs.get(request)) is None:
                continue  # stopped or closed here; the scheduler's last step in flight does not know yet
            end = finished.get(request)
            dropped = end is not None and offset >= end.completion_tokens - end.drop
            delta = self._token(output, request, offset, token, dropped, step.logprobs.get(request))
            if delta is None:
                continue
            sofar = news.get(request)
            news[request] = delta if sofar is None else _behind(sofar, delta)
            if delta.finish is not None:
                self._outputs.pop(request)
                finished.pop(request, None)
                if end is None:
                    stopped.append(request)
        for request, logprobs in step.input_logprobs.items():
            if request in self._outputs:
                known = news.get(request, Delta())
                news[request] = Delta(
                    text=known.text, tokens=known.tokens, logprobs=known.logprobs, input_logprobs=logprobs
                )
        for request, end in finished.items():
            if (output := self._outputs.pop(request, None)) is not None:
                row = step.next_logprobs.get(request, b"")
                news[request] = _last(output, end, news.get(request, Delta()), row)
        if stopped:
            await self._wires.scheduler.tell(Stopped(tuple(stopped)))
        if news:
            await self._wires.dispatcher.tell(Deltas(tuple(news), tuple(news.values())))

    def _token(
        self, output: _Output, request: int, offset: int, token: int, dropped: bool, logprob: TokenLogprob | None
    ) -> Delta | None:
        known = len(output.tokens)
        if offset < known:
            return None
        if offset > known:
            message = f"tokens {known} to {offset - 1} of request {request} were lost when the detokenizer restarted"
            return Delta(finish=Finish(reason="error", message=message, prompt_tokens=output.prompt_tokens))
        if dropped:
            return None
        output.tokens.append(token)
        if logprob is not None:
            output.logprobs.append(logprob)
        piece = output.stream.feed(token)
        if piece.matched is None:
            if output.sent == known and piece.tokens == known + 1 and not output.logprobs:  # as nearly always
                output.sent = known + 1
                return Delta(text=piece.text, tokens=(token,))
            return _delta(output, piece.text, piece.tokens, None)
        finish = Finish(
            reason="stop",
            matched=piece.matched,
            prompt_tokens=output.prompt_tokens,
            cached_tokens=output.cached_tokens,
            completion_tokens=known + 1,
            kept_tokens=piece.tokens,
            tail=piece.tail,
        )
        return _delta(output, piece.text, piece.tokens, finish)


def _behind(known: Delta, more: Delta) -> Delta:
    """Put one token's news behind those of the same request in the same step: grammars force several."""
    return Delta(
        text=known.text + more.text,
        tokens=known.tokens + more.tokens,
        logprobs=known.logprobs + more.logprobs,
        finish=more.finish,
    )


def _delta(output: _Output, text: str, upto: int, finish: Finish | None) -> Delta:
    """Give the tokens that are wholly shown and were not sent yet, with their log-probabilities."""
    start, output.sent = output.sent, max(output.sent, upto)
    first = len(output.tokens) - len(output.logprobs)  # the index of the first token with a log-probability
    logprobs = tuple(output.logprobs[max(0, start - first) : max(0, output.sent - first)])
    return Delta(text=text, tokens=tuple(output.tokens[start : output.sent]), logprobs=logprobs, finish=finish)


def _last(output: _Output, end: Finished, known: Delta, next_logprobs: bytes) -> Delta:
    """Close an output the scheduler has ended; text that was held back comes with it."""
    piece = output.stream.finish()
    matched = piece.matched if piece.matched is not None else end.matched
    finish = Finish(
        reason=end.reason,
        matched=matched,
        message=end.message,
        prompt_tokens=output.prompt_tokens,
        cached_tokens=end.cached_tokens,
        completion_tokens=end.completion_tokens,
        retractions=end.retractions,
        kept_tokens=piece.tokens,
        tail=piece.tail,
    )
    rest = _delta(output, piece.text, piece.tokens, finish)
    return Delta(
        text=known.text + rest.text,
        tokens=known.tokens + rest.tokens,
        logprobs=known.logprobs + rest.logprobs,
        input_logprobs=known.input_logprobs,
        next_logprobs=next_logprobs,
        finish=finish,
    )
