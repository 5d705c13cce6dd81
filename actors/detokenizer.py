"""The detokenizer: one batch of tokens a step in, one batch of text deltas out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from .core import Actor
from .live_texts import LiveTexts
from .messages import (
    Close,
    Delta,
    Deltas,
    Finished,
    LiveRequests,
    Open,
    Stopped,
    ToDetokenizer,
    Tokens,
)
from .passing import Ordinary
from .text_output import Output
from .text_stream import Behind, TokenText, first_characters
from .wires import Wires

__all__ = ["Detokenizer"]


class Detokenizer(Actor[ToDetokenizer]):
    """Turn each step's Tokens into Deltas; find stops and tell the scheduler whose step it is.

    Tokens carry their index in the output: a repeat (a replay after a crash) is dropped, a gap (a message lost with a
    crash of this actor) ends that request with an error and no other.
    """

    def __init__(self, wires: Wires, make_text: Callable[[bool], TokenText]) -> None:
        self._wires = wires
        self._make_text = make_text
        self._ordinary = {skip: Ordinary(make_text(skip)) for skip in (False, True)}
        self._live = LiveTexts(self._ordinary[False].passing(frozenset()), self._output)

    async def __aenter__(self) -> Self:
        for opened in await self._wires.dispatcher.ask(LiveRequests()):
            self._live.open(opened)
        return self

    async def receive(self, message: ToDetokenizer) -> None:
        match message:
            case Open():
                self._live.open(message)
            case Close(request):
                self._live.close(request)
            case Tokens():
                await self._step(message)

    def _output(self, opened: Open) -> Output:
        skip = opened.sampling.skip_special_tokens
        text = self._make_text(skip)
        text.follow(np.frombuffer(opened.before, np.int32).tolist())
        if opened.sampling.begin:
            text = Behind(text, len(opened.sampling.begin))
        passing = self._ordinary[skip].passing(first_characters(opened.sampling.stop))
        return Output(opened, text, passing)

    async def _step(self, step: Tokens) -> None:
        live, finished = self._live, {end.request: end for end in step.finished}
        for request, cached in step.cached.items():
            if (output := live.get(request)) is not None:
                output.cached_tokens = cached
        first = {
            request: Delta(input_logprobs=found) for request, found in step.input_logprobs.items() if request in live
        }
        requests, deltas, said, stopped = self._take(step, finished)
        last: dict[int, Delta] = {}
        for request, end in finished.items():
            if (output := live.close(request)) is not None:
                last[request] = output.close(end, step.next_logprobs.get(request, b""))
        if stopped:
            await self._wires.schedulers[step.replica].tell(Stopped(tuple(stopped)))
        told, news = (*first, *requests, *last), (*first.values(), *deltas, *last.values())
        if told:
            await self._wires.dispatcher.tell(Deltas(told, news, *said))

    def _take(
        self, step: Tokens, finished: dict[int, Finished]
    ) -> tuple[Sequence[int], Sequence[Delta], tuple[bytes, bytes], Sequence[int]]:
        """Take a step's tokens: give the news they are, by request, once more packed for the ledger, and which
        requests have found a stop in them.

        What ends by its tokens is taken out of `finished`.
        """
        offsets, tokens = np.frombuffer(step.offsets, np.int32), np.frombuffer(step.tokens, np.int32)
        requests, deltas, others = self._live.pass_by(
            step.requests, offsets, tokens, {*finished, *step.logprobs}, step.replica
        )
        stopped: list[int] = []
        unwanted: set[int] = set()
        even = True  # each token is told by itself, and no other
        for index, offset, token in zip(others, offsets[others].tolist(), tokens[others].tolist(), strict=True):
            request = requests[index]
            output = self._live.to_feed(request)
            if output is None:  # stopped or closed here; the scheduler's last step in flight does not know yet
                unwanted.add(index)
                continue
            if offset > output.seen:
                delta = output.lose(request, offset)
            elif offset < output.seen or (finished and _is_dropped(finished.get(request), offset)):
                unwanted.add(index)
                continue
            else:
                delta = output.take(token, step.logprobs.get(request))
                self._live.fed(output)
            deltas[index] = delta
            even &= delta.tokens == (token,)
            if delta.finish is not None:
                self._live.close(request)
                if finished.pop(request, None) is None:
                    stopped.append(request)
        if unwanted:
            requests = [request for index, request in enumerate(requests) if index not in unwanted]
            deltas = [delta for index, delta in enumerate(deltas) if index not in unwanted]
            even = False
        return requests, deltas, (step.requests, step.tokens) if even else _packed(requests, deltas), stopped


def _packed(requests: Sequence[int], deltas: Sequence[Delta]) -> tuple[bytes, bytes]:
    """Pack whose each token of some deltas is, int64, and the tokens, int32."""
    whose = [request for request, delta in zip(requests, deltas, strict=True) for _ in delta.tokens]
    tokens = [token for delta in deltas for token in delta.tokens]
    return np.array(whose, np.int64).tobytes(), np.array(tokens, np.int32).tobytes()


def _is_dropped(end: Finished | None, offset: int) -> bool:
    """Whether a token is no part of the text: one that ends it."""
    return end is not None and offset >= end.completion_tokens - end.drop
