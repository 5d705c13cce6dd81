"""One batch of tokens in, one batch of deltas out; stops, repeats, gaps and restarts harm nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from callboard.actors.core import Message, Supervisor
from callboard.actors.detokenizer import Detokenizer
from callboard.actors.messages import (
    Close,
    Delta,
    Deltas,
    Finished,
    LiveRequests,
    Open,
    Stopped,
    TokenLogprob,
    Tokens,
)
from callboard.actors.sampling import SamplingParams
from callboard.actors.text_stream import token_text
from callboard.actors.wires import Wires

from .collector import Collector, until
from .vocabularies import byte_level

pytestmark = pytest.mark.anyio
TOKENIZER = byte_level()


class Stage:
    """A detokenizer between a collecting dispatcher and a collecting scheduler."""

    def __init__(self) -> None:
        self.wires = Wires()
        self.told: list[Message] = []
        self.scheduler: list[Message] = []
        self.live: list[Open] = []

    def deltas(self, request: int) -> list[Delta]:
        return [
            delta
            for message in self.told
            if isinstance(message, Deltas)
            for number, delta in zip(message.requests, message.deltas, strict=True)
            if number == request
        ]

    def text(self, request: int) -> str:
        return "".join(delta.text for delta in self.deltas(request))

    async def send(self, message: Message) -> None:
        await self.wires.detokenizer.tell(message)
        await until(lambda: self.wires.detokenizer.statistics().queued == 0)

    async def last(self, request: int) -> Delta:
        await until(lambda: any(delta.finish for delta in self.deltas(request)))
        return self.deltas(request)[-1]


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    async with Supervisor("test", restarts=10) as supervisor:
        made.wires.dispatcher = await supervisor.spawn(
            lambda: Collector(made.told, {LiveRequests: made.live}), name="dispatcher"
        )
        made.wires.schedulers = [await supervisor.spawn(lambda: Collector(made.scheduler), name="scheduler")]
        made.wires.detokenizer = await supervisor.spawn(
            lambda: Detokenizer(made.wires, token_text(TOKENIZER)), name="detokenizer"
        )
        yield made


def tokens(step: dict[int, tuple[int, int]], **more) -> Tokens:
    """Pack one step: request -> (offset, token)."""
    return Tokens(
        step=0,
        requests=np.asarray(list(step), np.int64).tobytes(),
        offsets=np.asarray([offset for offset, _ in step.values()], np.int32).tobytes(),
        tokens=np.asarray([token for _, token in step.values()], np.int32).tobytes(),
        **more,
    )


async def feed(made: Stage, request: int, ids: list[int], start: int = 0) -> None:
    for offset, token in enumerate(ids, start):
        await made.send(tokens({request: (offset, token)}))


async def test_text_arrives_and_ends_once() -> None:
    ids = TOKENIZER.encode("naïve café 😀").ids
    async with stage() as made:
        await made.send(Open(1, SamplingParams(), 5))
        await feed(made, 1, ids[:-1])
        end = Finished(1, "length", cached_tokens=3, completion_tokens=len(ids))
        await made.send(tokens({1: (len(ids) - 1, ids[-1])}, finished=(end,)))
        last = await made.last(1)
        assert made.text(1) == "naïve café 😀"
        assert last.finish is not None
        assert (last.finish.reason, last.finish.prompt_tokens, last.finish.cached_tokens) == ("length", 5, 3)
        assert last.finish.kept_tokens == len(ids)
        assert [token for delta in made.deltas(1) for token in delta.tokens] == ids
        assert sum(delta.finish is not None for delta in made.deltas(1)) == 1


async def test_an_end_token_is_no_text() -> None:
    ids = TOKENIZER.encode("Paris").ids
    stop = TOKENIZER.token_to_id("<|im_end|>")
    async with stage() as made:
        await made.send(Open(1, SamplingParams(skip_special_tokens=False), 5))
        await feed(made, 1, ids)
        end = Finished(1, "stop", matched=stop, completion_tokens=len(ids) + 1, drop=1)
        await made.send(tokens({1: (len(ids), stop)}, finished=(end,)))
        last = await made.last(1)
        assert made.text(1) == "Paris"
        assert last.finish is not None
        assert (last.finish.matched, last.finish.kept_tokens) == (stop, len(ids))


async def test_a_stop_string_ends_the_request_here_and_the_scheduler_is_told() -> None:
    ids = TOKENIZER.encode("one. STOP two").ids
    async with stage() as made:
        await made.send(Open(1, SamplingParams(stop=("STOP",)), 5))
        await made.send(Open(2, SamplingParams(), 5))
        for offset, token in enumerate(ids):
            await made.send(tokens({1: (offset, token), 2: (offset, token)}))
        last = await made.last(1)
        assert made.text(1) == "one. "
        assert last.finish is not None
        assert (last.finish.reason, last.finish.matched) == ("stop", "STOP")
        await until(lambda: made.scheduler == [Stopped((1,))])
        await made.send(tokens({}, finished=(Finished(2, "length"),)))
        await made.last(2)
        assert made.text(2) == "one. STOP two"


async def test_a_stop_expression_ends_the_request_too() -> None:
    ids = TOKENIZER.encode("one. STOP two").ids
    async with stage() as made:
        await made.send(Open(1, SamplingParams(stop_regex=(r"S[A-Z]+\s",)), 5))
        await feed(made, 1, ids)
        last = await made.last(1)
        assert made.text(1) == "one. "
        assert last.finish is not None
        assert (last.finish.reason, last.finish.matched) == ("stop", r"S[A-Z]+\s")
        assert TOKENIZER.decode(ids[: last.finish.kept_tokens]) + last.finish.tail == "one. "
        await until(lambda: made.scheduler == [Stopped((1,))])


async def test_log_probabilities_stay_with_their_tokens() -> None:
    ids = TOKENIZER.encode("abSTOx").ids
    async with stage() as made:
        await made.send(Open(1, SamplingParams(stop=("STOP",), return_logprob=True), 5))
        for offset, token in enumerate(ids):
            await made.send(tokens({1: (offset, token)}, logprobs={1: TokenLogprob(token, -float(offset))}))
        await made.send(tokens({}, finished=(Finished(1, "length"),)))
        await made.last(1)
        pairs = [(t, lp.token) for delta in made.deltas(1) for t, lp in zip(delta.tokens, delta.logprobs, strict=True)]
        assert pairs == [(token, token) for token in ids]


async def test_a_repeat_after_a_replay_is_dropped() -> None:
    ids = TOKENIZER.encode("The capital of France").ids
    async with stage() as made:
        await made.send(Open(1, SamplingParams(), 5))
        await feed(made, 1, ids[:3])
        await feed(made, 1, ids[1:], start=1)
        await made.send(tokens({}, finished=(Finished(1, "length"),)))
        await made.last(1)
        assert made.text(1) == "The capital of France"


async def test_a_gap_ends_that_request_and_no_other() -> None:
    ids = TOKENIZER.encode("The capital").ids
    async with stage() as made:
        for request in (1, 2):
            await made.send(Open(request, SamplingParams(), 5))
        await made.send(tokens({1: (3, ids[0]), 2: (0, ids[0])}))
        last = await made.last(1)
        assert last.finish is not None
        assert last.finish.reason == "error"
        assert "tokens 0 to 2 of request 1 were lost" in last.finish.message
        assert [delta.finish for delta in made.deltas(2)] == [None]
        await until(lambda: made.scheduler == [Stopped((1,))])


async def test_after_a_crash_it_takes_up_what_is_live_and_goes_on_in_the_middle_of_a_character() -> None:
    ids = TOKENIZER.encode("ab 😀!").ids
    cut = len(ids) - 3
    async with stage() as made:
        await made.send(Open(1, SamplingParams(), 5))
        await feed(made, 1, ids[:cut])
        made.live.append(Open(1, SamplingParams(), 5, np.asarray(ids[:cut], np.int32).tobytes()))
        await made.wires.detokenizer.tell(Tokens(step=1, requests=b"not eight"))
        await until(lambda: made.wires.detokenizer.statistics().restarts == 1)
        await feed(made, 1, ids[cut:], start=cut)
        await made.send(tokens({}, finished=(Finished(1, "length"),)))
        await made.last(1)
        assert made.text(1) == "ab 😀!"


async def test_input_log_probabilities_come_with_the_end_of_a_prefill() -> None:
    logprobs = (TokenLogprob(4, -1.5),)
    async with stage() as made:
        await made.send(Open(1, SamplingParams(max_new_tokens=0), 5))
        await made.send(Tokens(step=1, input_logprobs={1: logprobs}, finished=(Finished(1, "length"),)))
        await made.last(1)
        (together,) = (message for message in made.told if isinstance(message, Deltas))
        assert [delta.input_logprobs for delta in together.deltas if delta.input_logprobs] == [logprobs]


async def test_input_log_probabilities_are_told_before_an_end_that_the_first_token_brings() -> None:
    logprobs = (TokenLogprob(4, -1.5),)
    (token,) = TOKENIZER.encode("!").ids
    async with stage() as made:
        await made.send(Open(1, SamplingParams(stop=("!",)), 5))
        end = Finished(1, "length", completion_tokens=1)
        await made.send(tokens({1: (0, token)}, input_logprobs={1: logprobs}, finished=(end,)))
        last = await made.last(1)
        assert last.finish is not None
        assert last.finish.matched == "!"
        assert [delta.input_logprobs for delta in made.deltas(1)] == [logprobs, ()]


async def test_a_closed_request_is_forgotten() -> None:
    async with stage() as made:
        await made.send(Open(1, SamplingParams(), 5))
        await made.send(Close(1))
        await made.send(tokens({1: (0, 5)}))
        assert made.told == [LiveRequests()]
