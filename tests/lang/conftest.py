"""A backend that follows a script, and one without a model."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Self

import pytest

from callboard import NullBackend
from callboard.actors.backend import Backend, Prompt, Scores
from callboard.actors.chat_template import ChatTemplate
from callboard.actors.core import Supervisor
from callboard.actors.messages import Delta, Finish, Score
from callboard.actors.sampling import SamplingParams


def packed(text: str) -> bytes:
    return array("i", list(text.encode())).tobytes()


class ScriptedBackend(Backend):
    """Give one line of the script a generation.  A token is a byte.

    A line is a list of: text to say, a Delta to give, an error to raise, a function to await.  A line that is a Finish
    says how it ends; None cuts the stream.  It counts what is open, and remembers what it was asked.
    """

    def __init__(self, *lines: Any) -> None:
        self.lines = list(lines)
        self.chat_template = ChatTemplate()
        self.prompts: list[Prompt] = []
        self.samplings: list[SamplingParams] = []
        self.encoded: list[str] = []
        self.prefilled: list[Prompt] = []
        self.open = 0
        self.aborted = 0
        self.scores: dict[str, tuple[float, ...]] = {}
        self.dead: list[Any] = []

    async def __aenter__(self) -> Self:
        self.programs = await Supervisor("programs", dead_letter=self.dead.append).__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.programs.__aexit__(*error)

    def verify(self, sampling: SamplingParams) -> None:
        sampling.verify(vocabulary=256)

    async def encode(self, text: str, *, beginning: bool = True) -> bytes:
        self.encoded.append(text)
        return packed(text)

    async def prefill(self, prompt: Prompt) -> None:
        self.prefilled.append(prompt)

    async def generate(self, prompt: Prompt, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        line = self.lines.pop(0) if self.lines else ["said"]
        count, ended = 0, False
        self.open += 1
        try:
            for item in line if isinstance(line, list) else [line]:
                if isinstance(item, BaseException):
                    ended = True
                    raise item
                if item is None:
                    ended = True
                    return
                if isinstance(item, Finish):
                    ended = True
                    yield Delta(finish=item)
                    return
                if callable(item):
                    await item()
                elif isinstance(item, Delta):
                    count += len(item.tokens)
                    yield item
                else:
                    count += len(item.encode())
                    yield Delta(text=item, tokens=tuple(item.encode()))
            ended = True
            yield Delta(finish=Finish(reason="stop", completion_tokens=count, kept_tokens=count))
        finally:
            self.open -= 1
            self.aborted += not ended

    async def score(self, prompt: Prompt, continuations: Sequence[str]) -> Scores:
        self.prompts.append(prompt)
        scores = []
        for text in continuations:
            logprobs = self.scores.get(text, (-1.0,))
            scores.append(Score(text=text, tokens=tuple(range(len(logprobs))), logprobs=logprobs))
        return Scores(scores=tuple(scores), settled=tuple(packed(prompt.tail + text) for text in continuations))


@pytest.fixture
def scripted() -> type[ScriptedBackend]:
    return ScriptedBackend


@pytest.fixture
async def null() -> AsyncIterator[NullBackend]:
    async with NullBackend(text="Paris") as backend:
        yield backend


@pytest.fixture
def tokens_of() -> Callable[[str], bytes]:
    return packed


Wait = Callable[[], Awaitable[Any]]
