"""Whatever a program does, it ends, leaves nothing behind, and its readers agree: random ones, in virtual time.

In a simulation a program that would wait for ever is a Deadlock, which says who waits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard.actors.backend import Prompt, Scores
from callboard.actors.core import simulate
from callboard.actors.messages import Delta, Finish
from callboard.actors.sampling import SamplingParams

NAMES = ("u", "v", "w")
SEEDS = range(260)


class Boom(Exception):
    """Raised by the backend, or by a body."""


EXPECTED = (Boom, cb.Aborted, cb.GenerationFailed, cb.InvalidRequest, KeyError, TimeoutError, RuntimeError)


class Moody(cb.NullBackend):
    """Say some text, after some time, or fail."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.fails = dice.choice([0.0, 0.0, 0.02, 0.1])
        self.live = 0

    async def generate(self, prompt: Prompt, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        self.live += 1
        try:
            for _ in range(self.dice.randint(0, 4)):
                await self.take_time()
                yield Delta(text=self.dice.choice(["a", "b ", "é", "😀"]))
            yield Delta(finish=Finish(reason="stop"))
        finally:
            self.live -= 1

    async def score(self, prompt: Prompt, continuations: Any, *, unconditional: bool = False) -> Scores:
        await self.take_time()
        return await super().score(prompt, continuations, unconditional=unconditional)

    async def take_time(self) -> None:
        if self.dice.random() < 0.6:
            await asyncio.sleep(2 * self.dice.random())
        if self.dice.random() < self.fails:
            raise Boom


class Player:
    """Do what a body may do with a state, in a random order, as long as nothing fails."""

    def __init__(self, backend: Moody) -> None:
        self.backend = backend
        self.dice = backend.dice
        self.program: Any = cb.function(self.body)

    async def body(self, s: Any, depth: int, count: int) -> None:
        for _ in range(count):
            step = self.dice.choice([*self.flat(s), *(self.deep(s, depth) if depth < 3 else ())])
            await step()

    def flat(self, s: Any) -> list[Any]:
        return [
            self.of(s.append, "x ", "", "y\n"),
            self.of(lambda name: s.append(cb.gen(name)), *NAMES),
            self.of(lambda count: s.append("z" + cb.gen("u", n=count)), None, 2, 3),
            self.of(lambda name: s.append(cb.select(name, ["p", "q"])), *NAMES),
            self.of(lambda name: s.set_var(name, 5), *NAMES),
            lambda: s.aget(self.name()),
            lambda: s.aget_meta_info(self.name(), timeout=self.dice.choice([None, 0.5])),
            s.wait,
            s.aerror,
            lambda: self.read(s.text_async_iter(self.dice.choice([None, *NAMES, ["u", "v"]]))),
            lambda: self.in_time(s.wait),
            self.fail,
        ]

    def deep(self, s: Any, depth: int) -> list[Any]:
        async def scope() -> None:
            with s.var_scope(self.name()):
                await self.body(s, depth + 1, 1)

        async def another() -> None:
            await self.program.arun(depth + 2, 2, backend=self.backend)

        async def owned() -> None:
            async with self.program.astream(depth + 2, 2, backend=self.backend) as state:
                await self.dice.choice([state.atext, lambda: state.aget("u"), lambda: asyncio.sleep(0.5)])()

        async def left_alone() -> None:
            state = await self.program.arun(depth + 2, 2, backend=self.backend, stream=True)
            self.dice.choice([state.cancel, lambda: None])()

        async def batch() -> None:
            on_error = self.dice.choice(["raise", "return"])
            await self.program.arun_batch([(depth + 2, 1)] * 3, backend=self.backend, on_error=on_error)

        return [scope, another, owned, left_alone, batch, *[lambda: self.fork(s, depth)] * 4]

    async def fork(self, s: Any, depth: int) -> None:
        forks = s.fork(self.dice.randint(1, 3), on_error=self.dice.choice(["raise", "cancel", "collect"]))
        if self.dice.random() < 0.5:
            async with asyncio.TaskGroup() as group:
                for branch in forks:
                    group.create_task(self.body(branch, depth + 1, self.dice.randint(0, 3)))
        else:
            for branch in forks:
                await self.body(branch, depth + 1, self.dice.randint(0, 2))
        if self.dice.random() < 0.2:
            forks[0].cancel()
        await self.dice.choice([
            forks.ajoin, lambda: forks.ajoin("concate_and_append"), forks.afirst, forks.aerrors,
            lambda: self.read(forks.as_completed()), lambda: self.read(forks.text_async_iter(self.name())),
            lambda: self.in_time(forks.ajoin), lambda: asyncio.sleep(0),
        ])()  # fmt: skip

    # --- parts of it -----------------------------------------------------------------------------------------------

    def name(self) -> str:
        return self.dice.choice(NAMES)

    def of(self, act: Any, *choices: Any) -> Any:
        async def step() -> None:
            act(self.dice.choice(choices))

        return step

    async def read(self, chunks: Any) -> None:
        async for _ in chunks:
            if self.dice.random() < 0.3:
                break

    async def in_time(self, wait: Any) -> None:
        with anyio.move_on_after(self.dice.random()):
            await wait()

    async def fail(self) -> None:
        if self.dice.random() < 0.2:
            raise Boom


async def play(player: Player) -> None:
    """Run a program in one of the ways there are."""
    dice, backend, program = player.dice, player.backend, player.program
    count = dice.randint(1, 6)
    match dice.choice(["run", "cancel", "stream", "batch"]):
        case "run":
            await program.arun(0, count, backend=backend)
        case "cancel":
            with anyio.move_on_after(4 * dice.random()):
                await program.arun(0, count, backend=backend)
        case "stream":
            state = await program.arun(0, count, backend=backend, stream=True)
            early, late = state.text_async_iter(), state.text_async_iter()
            text = "".join([chunk async for chunk in early])
            assert text == "".join([chunk async for chunk in late]) == await state.atext()
        case _:
            await program.arun_batch([(0, count)] * 4, backend=backend, on_error=dice.choice(["raise", "return"]))


async def session(seed: int) -> None:
    strays: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strays.append(context))
    async with Moody(random.Random(seed)) as backend:
        for _ in range(3):
            try:
                await play(Player(backend))
            except* EXPECTED as group:
                _verify(group)
        await asyncio.sleep(100)  # nobody owns what was started with stream=True
        assert backend.live == 0
        assert backend.programs.statistics() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert strays == []


def _verify(group: BaseExceptionGroup[Any]) -> None:
    """Of RuntimeErrors only one is to be expected: a branch, or a program, had ended when its body said more."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _verify(error)
        elif type(error) is RuntimeError:
            assert "has ended; nothing more" in str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_ends_and_leaves_nothing(seed: int) -> None:
    simulate.run(lambda: session(seed), seed=seed)
