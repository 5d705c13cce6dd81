"""Very many branches, and very many programs: each is an object, and none is a thread."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard import NullBackend

pytestmark = pytest.mark.anyio


@cb.function
def spread(s: Any, depth: int, width: int) -> None:
    """Fork, and fork in every branch, and so on; what the leaves say is gathered all the way up."""

    def grow(state: Any, left: int) -> None:
        with state.fork(width) as forks:
            for index, branch in enumerate(forks):
                branch += f"{index}."
                if left > 1:
                    grow(branch, left - 1)
                else:
                    branch += cb.gen("leaf")

    grow(s, depth)


async def test_forks_of_forks_of_forks_to_ten_thousand_branches() -> None:
    at_rest = threading.active_count()
    async with NullBackend(text=lambda prompt: prompt.text) as backend:
        with anyio.fail_after(120):
            state = await spread.arun(4, 10, backend=backend)
        assert backend.generations == 10_000
        assert backend.programs.statistics() == []
        assert threading.active_count() == at_rest
    leaves = state["leaf"]
    for a, b, c, d in ((0, 0, 0, 0), (9, 8, 7, 6), (3, 1, 4, 1)):
        assert leaves[a][b][c][d] == f"{a}.{b}.{c}.{d}."
    assert sum(len(third) for first in leaves for second in first for third in second) == 10_000


async def test_programs_that_wait_are_no_threads() -> None:
    go, waiting = anyio.Event(), 0

    @cb.function
    def plain(s: Any, number: int) -> int:
        s += f"{number}: " + cb.gen("x")
        return int(s["x"])

    class Slow(NullBackend):
        async def generate(self, prompt: Any, sampling: Any) -> Any:
            nonlocal waiting
            waiting += 1
            await go.wait()
            async for delta in super().generate(prompt, sampling):
                yield delta

    async with Slow(text="7") as backend, anyio.create_task_group() as group:
        at_rest = threading.active_count()
        batch = plain.arun_batch([(number,) for number in range(1000)], backend=backend)

        async def collect() -> None:
            states.extend(await batch)

        states: list[Any] = []
        with anyio.fail_after(60):
            group.start_soon(collect)
            while waiting < 1000:
                await anyio.lowlevel.checkpoint()
            assert threading.active_count() == at_rest
            go.set()
    assert [state.ret_value for state in states] == [7] * 1000
