"""Run the generations of one request, one or many; the first failure ends them all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager

import anyio
import msgspec

from ..backend import Prompt
from ..messages import Delta
from ..sampling import SamplingParams
from .pace import Pace
from .service import Completed, Service

__all__ = ["News", "Work", "complete", "merged", "stream"]

News = Sequence[tuple[int, Delta]]
"""What is new, by the index of its generation."""


class Work(msgspec.Struct, frozen=True):
    """One generation to run.  prompt: int32 token ids; the client's text is tokenized once, before.

    tenant, salt: on whose behalf, and what parts its cache further (`Engine.generate`).  lease, program: of a client's
    program (`Prompt`); 0 for none.
    """

    prompt: bytes
    sampling: SamplingParams
    tag: str
    tenant: str = ""
    salt: str = ""
    lease: int = 0
    program: int = 0


async def complete(service: Service, works: Sequence[Work]) -> list[Completed]:
    """Run all to their ends, side by side."""
    if len(works) == 1:
        return [await _complete(service, works[0], works[0].program)]
    results: list[Completed | None] = [None] * len(works)
    with _program(service, works) as program:

        async def one(index: int) -> None:
            results[index] = await _complete(service, works[index], program)

        await _all(len(works), one)
    return [result for result in results if result is not None]


@contextmanager
def _program(service: Service, works: Sequence[Work]) -> Iterator[int]:
    """Give the generations of one request a number, by which the scheduler knows for how many its client waits."""
    if works[0].program:  # the client has given one itself
        yield works[0].program
        return
    number = service.lease()
    try:
        yield number
    finally:
        service.release(number)


def _prompt(work: Work, program: int) -> Prompt | bytes:
    if not program:
        return work.prompt
    fresh = len(work.prompt) // 4  # all of it may be healed
    return Prompt(tokens=work.prompt, fresh=fresh, lease=work.lease, program=program)


async def _complete(service: Service, work: Work, program: int) -> Completed:
    return await service.complete(
        _prompt(work, program), work.sampling, tag=work.tag, tenant=work.tenant, salt=work.salt
    )


def _generate(service: Service, work: Work, program: int) -> AsyncGenerator[Delta, None]:
    return service.generate(_prompt(work, program), work.sampling, tag=work.tag, tenant=work.tenant, salt=work.salt)


async def stream(service: Service, works: Sequence[Work], tell: Callable[[News], Awaitable[None]], pace: Pace) -> None:
    """Run all and tell what is new: the first news at once, the rest by the beat of `pace`.

    While `tell` is busy or the stream rests, news waits merged: one delta a generation.
    """
    with pace.stream():
        if len(works) == 1:
            await _stream_one(service, works[0], tell, pace)
        else:
            with _program(service, works) as program:
                await _stream_many(service, works, tell, pace, program)


async def _stream_one(service: Service, work: Work, tell: Callable[[News], Awaitable[None]], pace: Pace) -> None:
    async with aclosing(_generate(service, work, work.program)) as deltas:
        async for delta in deltas:  # what comes while nobody asks merges in the engine's reader
            await tell(((0, delta),))
            if delta.finish is None:
                await pace.rest()


async def _stream_many(
    service: Service, works: Sequence[Work], tell: Callable[[News], Awaitable[None]], pace: Pace, program: int
) -> None:
    pending: dict[int, Delta] = {}
    ended = 0
    wake = anyio.Event()

    async def one(index: int) -> None:
        nonlocal ended
        async with aclosing(_generate(service, works[index], program)) as deltas:
            async for delta in deltas:
                waiting = pending.get(index)
                pending[index] = delta if waiting is None else merged(waiting, delta)
                wake.set()
        ended += 1
        wake.set()

    async def telling() -> None:
        nonlocal wake
        while pending or ended < len(works):
            if pending:
                news = tuple(pending.items())
                pending.clear()
                await tell(news)
                if ended < len(works):
                    await pace.rest()
            else:
                wake = anyio.Event()
                await wake.wait()

    await _all(len(works), one, telling)


def merged(first: Delta, second: Delta) -> Delta:
    """Give two deltas, one behind the other, as one."""
    return Delta(
        text=first.text + second.text,
        tokens=first.tokens + second.tokens,
        logprobs=first.logprobs + second.logprobs,
        input_logprobs=first.input_logprobs + second.input_logprobs,
        finish=second.finish,
    )


async def _all(
    count: int, one: Callable[[int], Awaitable[None]], beside: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run one(0) to one(count - 1), and `beside`; raise the first error, bare, once the others are cancelled."""
    failure: Exception | None = None

    async def guarded(work: Callable[[], Awaitable[None]], group: anyio.abc.TaskGroup) -> None:
        nonlocal failure
        try:
            await work()
        except Exception as error:  # raised below
            failure = failure or error
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for index in range(count):
            group.start_soon(guarded, lambda index=index: one(index), group)
        if beside is not None:
            group.start_soon(guarded, beside, group)
    if failure is not None:
        raise failure
