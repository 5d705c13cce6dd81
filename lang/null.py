"""A backend without a model: to try programs, and to measure what the language itself costs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from ..actors.backend import Backend, Prompt, Scores
from ..actors.chat_template import ChatTemplate
from ..actors.core import Supervisor
from ..actors.errors import InvalidRequest
from ..actors.messages import Delta, Finish, Score
from ..actors.sampling import SamplingParams
from ..actors.stop_regex import StopSearch

__all__ = ["NullBackend"]

D = TypeVar("D")


class NullBackend(Backend):
    """Answer every generation with the same text, after `latency_s` seconds; the first choice is the likeliest.

    text: what to say, or a function from the Prompt to it.  A character counts as a token: max_tokens cuts the text,
    and so does a stop.  It has no tokenizer.
    """

    def __init__(
        self,
        *,
        latency_s: float = 0.0,
        text: str | Callable[[Prompt], str] = "null",
        chat_template: ChatTemplate | None = None,
    ) -> None:
        if not latency_s >= 0:
            raise InvalidRequest("latency_s", f"{latency_s!r} is not a number of seconds, 0 or more")
        self._naps = _Naps(latency_s)
        self.text = text
        self.chat_template = chat_template or ChatTemplate()
        self.generations = 0
        self._stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("this backend is entered already; make another one for another block")
        self._stack = AsyncExitStack()
        self.programs = await self._stack.enter_async_context(Supervisor("programs"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)

    def verify(self, sampling: SamplingParams) -> None:
        sampling.verify()

    async def encode(self, text: str, *, beginning: bool = True) -> bytes | None:  # noqa: ARG002
        return None

    def generate(self, prompt: Prompt, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        return _Answer(self, prompt, sampling)

    def answer(self, prompt: Prompt, sampling: SamplingParams) -> asyncio.Future[Delta]:
        """Give what is done with the answer when the time has passed; to be awaited at once."""
        self.generations += 1
        said = self.text if isinstance(self.text, str) else self.text(prompt)
        text, finish = _cut(said, prompt, sampling)
        return self._naps.sleep(Delta(text=text, finish=finish))

    def verify_image(self, url: str) -> None:  # noqa: ARG002
        return None

    def verify_choices(self, continuations: Sequence[str], *, unconditional: bool = False) -> None:  # noqa: ARG002
        return None

    async def score(self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False) -> Scores:
        await self._naps.sleep(None)
        scores = tuple(
            Score(text=text, tokens=(0,), logprobs=(-1.0 - index,), unconditional=(0.0,) if unconditional else ())
            for index, text in enumerate(continuations)
        )
        return Scores(scores=scores, settled=(), prompt_tokens=len(prompt.text))


class _Answer(AsyncGenerator[Delta, None]):
    """Say one thing: an asynchronous generator of one delta, without a frame that waits."""

    __slots__ = ("_asked",)

    def __init__(self, backend: NullBackend, prompt: Prompt, sampling: SamplingParams) -> None:
        self._asked: tuple[NullBackend, Prompt, SamplingParams] | None = (backend, prompt, sampling)

    def __anext__(self) -> asyncio.Future[Delta]:  # type: ignore[override]  # awaited, it is what a coroutine would be
        asked, self._asked = self._asked, None
        if asked is None:
            raise StopAsyncIteration
        backend, prompt, sampling = asked
        return backend.answer(prompt, sampling)

    async def asend(self, value: None) -> Delta:  # noqa: ARG002
        return await self.__anext__()

    async def athrow(self, *error: Any) -> Delta:
        self._asked = None
        raise error[0]


class _Naps:
    """Let many tasks of one loop sleep equally long: whoever lay down first rises first, so one timer is enough."""

    __slots__ = ("_asleep", "_dreams", "_rising", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asleep: deque[asyncio.Future[Any]] = deque()  # the next to rise first
        self._dreams: deque[Any] = deque()  # what each is to be told then; beside, for a pair each is an object more
        self._rising: deque[float] = deque()  # when each does

    def sleep(self, dream: D) -> asyncio.Future[D]:
        """Give what is done, with `dream`, when the time has passed; to be awaited at once."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[D] = loop.create_future()
        if not self._seconds:
            future.set_result(dream)
            return future
        if not self._asleep:
            loop.call_later(self._seconds, self._wake)
        self._asleep.append(future)
        self._dreams.append(dream)
        self._rising.append(loop.time() + self._seconds)
        return future

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        asleep, rising, now = self._asleep, self._rising, loop.time()
        while asleep and rising[0] <= now:
            future, dream = asleep.popleft(), self._dreams.popleft()
            rising.popleft()
            if not future.done():
                future.set_result(dream)
        if asleep:
            loop.call_at(rising[0], self._wake)


def _cut(text: str, prompt: Prompt, sampling: SamplingParams) -> tuple[str, Finish]:
    matched = None
    for stop in sampling.stop:
        if (place := text.find(stop)) >= 0:
            text, matched = text[:place], stop
    if sampling.stop_regex and (found := StopSearch(sampling.stop_regex).feed(text)) is not None:
        text, matched = text[: found.start], found.pattern
    long = len(text) > sampling.max_new_tokens
    if long:
        text, matched = text[: sampling.max_new_tokens], None
    finish = Finish(
        reason="length" if long else "stop",
        matched=matched,
        prompt_tokens=len(prompt.text),
        completion_tokens=len(text),
    )
    return text, finish
