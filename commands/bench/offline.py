"""callboard bench offline: requests handed to the engine all at once, in process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ...actors.sampling import SamplingParams
from .limits import ideal_seconds
from .sharing import Sharing, sharing_told
from .workload import Request, Thoughts, Workload

if TYPE_CHECKING:
    from ...actors.engine import Engine
    from .setting import Setting

__all__ = ["Measured", "measure_offline", "print_offline", "run_workload", "warm_up"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run gave.  seconds: from the first request sent to the last token received.

    first_s: the mean time to a request's first token.  device_s: seconds that the device worked.  host_s: what the
    scheduler took; launch_s, collect_s: what the worker took beside waiting.  sharing: what requests had in common.
    """

    requests: int
    inputs: int
    outputs: int
    seconds: float
    first_s: float
    steps: int
    device_s: float
    host_s: float
    launch_s: float
    collect_s: float
    retractions: int
    sharing: Sharing

    @property
    def output_rate(self) -> float:
        return self.outputs / self.seconds

    @property
    def input_rate(self) -> float:
        return self.inputs / self.seconds

    @property
    def busy(self) -> float:
        """The share of the time that the device worked; of several replicas', their sum."""
        return self.device_s / self.seconds


async def measure_offline(
    setting: Setting, workload: Workload | Thoughts, *, rounds: int = 1, temperature: float = 0.0
) -> dict[str, Any]:
    """Run a workload some times and tell the best, beside the least time it could take."""
    requests = workload.requests(setting.engine.limits.vocabulary)
    runs = [await run_workload(setting.engine, requests, temperature=temperature) for _ in range(rounds)]
    best = min(runs, key=lambda run: run.seconds)
    replicas = setting.engine.limits.replicas
    ideal = ideal_seconds(setting.config, setting.element_bytes, requests, setting.rates) / replicas
    steps = max(1, best.steps)
    return {
        "workload": str(workload),
        "seconds": best.seconds,
        "output_tokens_a_second": best.output_rate,
        "input_tokens_a_second": best.input_rate,
        "limit_seconds": ideal,
        "share": ideal / best.seconds,
        "busy": best.busy / replicas,
        "steps": best.steps,
        "first_token_s": best.first_s,
        "device_ms_a_step": 1e3 * best.device_s / steps,
        "scheduler_us_a_step": 1e6 * best.host_s / steps,
        "launch_us_a_step": 1e6 * best.launch_s / steps,
        "collect_us_a_step": 1e6 * best.collect_s / steps,
        "retractions": best.retractions,
        **best.sharing.figures(),
    }


def print_offline(line: dict[str, Any], *, first: bool) -> None:
    """Print a line of the table, below its head if it is the first."""
    if first:
        print(f"{'workload':>28} {'out tok/s':>10} {'in tok/s':>10} {'seconds':>8} {'share':>6} {'busy':>6} "
              f"{'ms/step':>8} {'sched us':>8} {'launch us':>9} {'coll us':>8} {'first s':>8}")  # fmt: skip
    print(f"{line['workload']:>28} {line['output_tokens_a_second']:>10,.0f} {line['input_tokens_a_second']:>10,.0f} "
          f"{line['seconds']:>8.2f} {line['share']:>6.0%} {line['busy']:>6.1%} {line['device_ms_a_step']:>8.3f} "
          f"{line['scheduler_us_a_step']:>8.0f} {line['launch_us_a_step']:>9.0f} {line['collect_us_a_step']:>8.0f} "
          f"{line['first_token_s']:>8.3f}", flush=True)  # fmt: skip
    if told := sharing_told(line):
        print(f"{'':>28} {told}", flush=True)


async def warm_up(engine: Engine) -> None:
    """Let every size of batch run once, from the largest down, so that nothing is compiled or captured later."""
    rows = engine.limits.max_rows * engine.limits.replicas
    longest = min(64, engine.limits.context_length // 2)
    workload = Workload(rows, (8, 8), (1, 1)).requests(engine.limits.vocabulary, seed=1 << 30)
    requests = [
        Request(request.prompt, 4 + number * longest // rows + 2 * (number < 8) * number)
        for number, request in enumerate(workload)
    ]
    await _complete(engine, requests, SamplingParams(temperature=0.0, ignore_eos=True))
    await engine.flush()


async def run_workload(engine: Engine, requests: list[Request], *, temperature: float = 0.0) -> Measured:
    """Run requests that arrive at once; every one gives exactly its number of tokens."""
    await engine.flush()
    before = await engine.statistics()
    begun = perf_counter()
    firsts = await _complete(engine, requests, SamplingParams(temperature=temperature, ignore_eos=True))
    seconds = perf_counter() - begun
    after = await engine.statistics()

    def grown(part: str, name: str) -> Any:
        return after[part][name] - before[part][name]

    return Measured(
        requests=len(requests),
        inputs=sum(request.inputs for request in requests),
        outputs=sum(request.outputs for request in requests),
        seconds=seconds,
        first_s=sum(first - begun for first in firsts) / len(firsts),
        steps=grown("worker", "steps"),
        device_s=grown("worker", "forward_s"),
        host_s=grown("scheduler", "host_seconds"),
        launch_s=grown("worker", "launch_s"),
        collect_s=grown("worker", "collect_s"),
        retractions=grown("scheduler", "retractions"),
        sharing=Sharing.between(before, after),
    )


async def _complete(engine: Engine, requests: list[Request], sampling: SamplingParams) -> list[float]:
    """Run requests to their ends, each once its parent has its own; give when each had its first token."""
    firsts = [0.0] * len(requests)
    below: dict[int | None, list[int]] = {}  # by the parent
    for number, request in enumerate(requests):
        below.setdefault(request.parent, []).append(number)

    async def one(number: int, before: bytes) -> None:
        request = requests[number]
        prompt = before + request.prompt
        given: list[int] = []
        async for delta in engine.generate(prompt, msgspec.structs.replace(sampling, max_new_tokens=request.outputs)):
            if delta.tokens and not given:
                firsts[number] = perf_counter()
            given += delta.tokens
        if len(given) != request.outputs:
            raise RuntimeError(f"request {number} gave {len(given)} tokens instead of {request.outputs}")
        if number in below:
            begin(number, prompt + np.array(given, np.int32).tobytes())

    def begin(parent: int | None, before: bytes) -> None:
        for number in below[parent]:
            group.create_task(one(number, before))

    async with asyncio.TaskGroup() as group:  # anyio's takes 12 us more for each task, in which the device stands still
        begin(None, b"")
    return firsts
