"""Asking an engine for several whole answers at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from callboard.actors.engine import Completion, Engine
from callboard.actors.errors import GenerationFailed
from callboard.actors.sampling import SamplingParams

__all__ = ["gather", "gather_survivors", "greedy"]


def greedy(tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=tokens, temperature=0, **more)


async def gather(engine: Engine, prompts: list[str], sampling: SamplingParams) -> list[Completion]:
    """Give the answers in the prompts' order."""
    done: dict[int, Completion] = {}

    async def run(index: int) -> None:
        done[index] = await engine.complete(prompts[index], sampling)

    async with anyio.create_task_group() as group:
        for index in range(len(prompts)):
            group.start_soon(run, index)
    return [done[index] for index in range(len(prompts))]


async def gather_survivors(
    engine: Engine, prompts: list[str], sampling: SamplingParams, meanwhile: Callable[[], Awaitable[None]]
) -> tuple[dict[str, str], list[str]]:
    """Give the texts, by their prompts, of what came to its end whatever happened meanwhile, and the others' errors."""
    texts: dict[str, str] = {}
    failed: list[str] = []

    async def run(prompt: str) -> None:
        try:
            texts[prompt] = (await engine.complete(prompt, sampling)).text
        except GenerationFailed as error:
            failed.append(str(error))

    async with anyio.create_task_group() as group:
        for prompt in prompts:
            group.start_soon(run, prompt)
        await meanwhile()
    return texts, failed
