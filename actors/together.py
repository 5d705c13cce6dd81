"""Several jobs at once, whose failure looks like one job's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio

__all__ = ["together"]


async def together(jobs: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run jobs side by side; the first failure ends them all, and is raised as it is, in no group of errors."""
    failures: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def run(job: Callable[[], Awaitable[None]]) -> None:
            try:
                await job()
            except Exception as error:  # raised below, bare; a cancellation goes through
                failures.append(error)
                group.cancel_scope.cancel()

        for job in jobs:
            group.start_soon(run, job)
    if failures:
        raise failures[0]
