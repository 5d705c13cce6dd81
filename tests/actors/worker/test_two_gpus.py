"""Two replicas on two GPUs: each has its own device, graphs and memory, and both say what one says."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
import torch

from callboard.actors.engine import Engine
from callboard.actors.messages import Step

from ...support.asking import gather, greedy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
PROMPTS = [f"Question {number}: what comes behind {number * 7}, {'and ' * (number % 6)}why?" for number in range(24)]
GREEDY = greedy(48, ignore_eos=True)


async def said(engine: Engine) -> list[tuple[int, ...]]:
    with anyio.fail_after(300):
        return [done.tokens for done in await gather(engine, PROMPTS, GREEDY)]


async def test_two_gpus_say_what_one_says_each_with_graphs_of_its_own_also_when_one_of_them_dies() -> None:
    options = {"device": "cuda", "deterministic": True, "mem_fraction": 0.3, "max_rows": 32, "seed": 1}
    async with Engine("embedded", **options) as engine:
        wanted = await said(engine)
    before = torch.cuda.memory_allocated(1)
    async with Engine("embedded", replicas=2, **options) as engine:
        assert torch.cuda.memory_allocated(1) > before
        assert await said(engine) == wanted
        told = (await engine.statistics())["replicas"]
        assert min(one["scheduler"]["requests"] for one in told) > 8
        assert all(one["worker"]["graphs"] > 0 for one in told)
        assert await said(engine) == wanted, "now out of graphs from the first step on"
        engine._wires.workers[1].post(Step(number=0, decode_rows=b"bad"))
        assert await said(engine) == wanted
        with anyio.fail_after(120):
            while engine._wires.workers[1].statistics().restarts < 1:
                await anyio.lowlevel.checkpoint()
        assert engine._wires.workers[0].statistics().restarts == 0
