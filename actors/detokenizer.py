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
    """What is known of one live request's output.

    # [0, known - len(held))    the client has these tokens
    # [.., known)               `held`: not wholly shown yet; `logprobs` are those of its last ones
    """

    __slots__ = ("cached_tokens", "held", "known", "logprobs", "prompt_tokens", "stream")

    def __init__(self, opened: Open, text: TokenText) -> None:
        self.stream = TextStream(text, opened.sampling.stop, opened.sampling.stop_regex)
        self.prompt_tokens = opened.prompt_tokens
        self.cached_tokens = 0
        self.held: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        output = np.frombuffer(opened.output, np.int32).tolist()
        self.known = len(output)
        for token in output:
            self.stream.feed(token)

    def take(self, token: int, logprob: TokenLogprob | None) -> Delta:
        """Take the next token; give what is new by it."""
        stream = self.stream
        text = stream.feed(token)
        self.known += 1
        if stream.whole == self.known and logprob is None and not self.held:  # as nearly always; behind a match never
            return Delta(text=text, tokens=(token,))
        self.held.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if stream.matched is None:
            return self._let_go(text, None)
        finish = Finish(
            reason="stop",
            matched=stream.matched,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.known,
            kept_tokens=stream.whole,
            tail=stream.tail,
        )
        return self._let_go(text, finish)

    def finish(self, end: Finished) -> Delta:
        """Close an output the scheduler has ended; text that was held back comes with it."""
        stream = self.stream
        text = stream.finish()
        finish = Finish(
            reason=end.reason,
            matched=end.matched if stream.matched is None else stream.matched,
            message=end.message,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=end.cached_tokens,
            completion_tokens=end.completion_tokens,
            retractions=end.retractions,
            kept_tokens=stream.whole,
            tail=stream.tail,
        )
        return self._let_go(text, finish)

    def lose(self, request: int, offset: int) -> Delta:
        """End a request that the scheduler goes on with at `offset`, further than what is known of it."""
        message = f"tokens {self.known} to {offset - 1} of request {request} were lost when the detokenizer restarted"
        return Delta(finish=Finish(reason="error", message=message, prompt_tokens=self.prompt_tokens))

    def _let_go(self, text: str, finish: Finish | None) -> Delta:
        """Give text, and the tokens that are wholly shown and were not sent yet, with their log-probabilities."""
        sent = self.known - len(self.held)
        count = max(0, self.stream.whole - sent)
        first = len(self.held) - len(self.logprobs)  # the first of those held that has one
        tokens, logprobs = tuple(self.held[:count]), tuple(self.logprobs[: max(0, count - first)])
        del self.held[:count], self.logprobs[: len(logprobs)]
        return Delta(text=text, tokens=tokens, logprobs=logprobs, finish=finish)


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
        outputs, logprobs = self._outputs, step.logprobs
        news: dict[int, Delta] = {}
        stopped: list[int] = []
        finished = {end.request: end for end in step.finished}
        for request, cached in step.cached.items():
            if (output := outputs.get(request)) is not None:
                output.cached_tokens = cached
        requests = np.frombuffer(step.requests, np.int64).tolist()
        offsets = np.frombuffer(step.offsets, np.int32).tolist()
        tokens = np.frombuffer(step.tokens, np.int32).tolist()
        for request, offset, token in zip(requests, offsets, tokens, strict=True):
            if (output := outputs.get(request)) is None:
                continue  # stopped or closed here; the scheduler's last step in flight does not know yet
            if offset > output.known:
                delta = output.lose(request, offset)
            elif offset < output.known or (finished and _is_dropped(finished.get(request), offset)):
                continue
            else:
                delta = output.take(token, logprobs.get(request))
            news[request] = _behind(news[request], delta) if request in news else delta
            if delta.finish is not None:
                del outputs[request]
                if finished.pop(request, None) is None:
                    stopped.append(request)
        for request, found in step.input_logprobs.items():
            if request in outputs:
                news[request] = _behind(Delta(input_logprobs=found), news.get(request, Delta()))
        for request, end in finished.items():
            if (output := outputs.pop(request, None)) is not None:
                row = step.next_logprobs.get(request, b"")
                news[request] = _behind(news.get(request, Delta()), output.finish(end), row)
        if stopped:
            await self._wires.scheduler.tell(Stopped(tuple(stopped)))
        if news:
            await self._wires.dispatcher.tell(Deltas(tuple(news), tuple(news.values())))


def _is_dropped(end: Finished | None, offset: int) -> bool:
    """Whether a token is no part of the text: one that ends it."""
    return end is not None and offset >= end.completion_tokens - end.drop


def _behind(known: Delta, more: Delta, next_logprobs: bytes = b"") -> Delta:
    """Put news behind those of the same request in the same step: grammars force several tokens."""
    return Delta(
        text=known.text + more.text,
        tokens=known.tokens + more.tokens,
        logprobs=known.logprobs + more.logprobs,
        input_logprobs=known.input_logprobs,
        next_logprobs=next_logprobs,
        finish=more.finish,
    )
