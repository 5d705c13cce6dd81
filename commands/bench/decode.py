"""callboard bench decode: what a step takes in which nothing happens but decoding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import anyio

from ...actors.sampling import SamplingParams
from .limits import decode_seconds
from .workload import Workload

if TYPE_CHECKING:
    from .setting import Setting

__all__ = ["Point", "measure_decode", "parse_point", "print_decode"]

_SETTLING = 8  # steps between the last prompt and the first that counts


@dataclass(frozen=True, slots=True)
class Point:
    """So many rows that all decode, each behind so many tokens."""

    rows: int
    context: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.context}"


def parse_point(text: str) -> Point:
    """Read ROWSxCONTEXT, as 64x1024.  Raises ValueError that says how it is written."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if match is None:
        raise ValueError(f"at is {text!r}; write ROWSxCONTEXT, as 64x1024")
    return Point(int(match[1]), int(match[2]))


async def measure_decode(setting: Setting, point: Point, *, steps: int = 256) -> dict[str, Any]:
    """Let rows decode together and measure `steps` of their steps.

    Raises ValueError if the engine has no room for so many rows of that length.
    """
    engine = setting.engine
    outputs = _outputs(setting, point, steps)
    requests = Workload(point.rows, (point.context, point.context), (outputs, outputs)).requests(
        engine.limits.vocabulary
    )
    await engine.flush()
    window = _Window(point.rows, steps)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_new_tokens=outputs)
    found: dict[str, Any] = {}
    async with anyio.create_task_group() as group:

        async def run(number: int, prompt: bytes) -> None:
            deltas = engine.generate(prompt, sampling)
            async for delta in deltas:
                if not window.counts(number, len(delta.tokens)):
                    break
            async for _ in deltas:  # what counting costs is no part of a step
                pass

        for number, request in enumerate(requests):
            group.start_soon(run, number, request.prompt)
        found = await _watch(setting, point, window)
        group.cancel_scope.cancel()
    return found


async def _watch(setting: Setting, point: Point, window: _Window) -> dict[str, Any]:
    """Wait for the window, and tell what happened in it."""
    engine = setting.engine
    await window.open.wait()
    given = sum(window.given)
    begun, before, spent = perf_counter(), await engine.statistics(), thread_time()
    await window.closed.wait()
    loop_s = thread_time() - spent
    after, ended = await engine.statistics(), perf_counter()
    tokens = point.rows * point.context + given + point.rows * window.steps // 2  # attended to in the middle
    return _line(setting, point, tokens, (ended - begun, loop_s), before, after)


class _Window:
    """The time in which every row decodes.  open: all have begun; closed: `steps` tokens a row later."""

    def __init__(self, rows: int, steps: int) -> None:
        self.given = [0] * rows
        self.open = anyio.Event()
        self.closed = anyio.Event()
        self.steps = steps
        self._waiting = rows
        self._watched = 0
        self._end = 0

    def counts(self, number: int, tokens: int) -> bool:
        """Count a row's tokens, and tell whether to go on: once the window is open, one row tells for all."""
        had = self.given[number]
        self.given[number] += tokens
        if not had and tokens:
            self._waiting -= 1
        if self._waiting:
            return True
        if not self._end:  # the last to begin is the one to watch
            self._watched, self._end = number, self.given[number] + _SETTLING
        if number == self._watched and self.given[number] >= self._end:
            if not self.open.is_set():
                self.open.set()
                self._end = self.given[number] + self.steps
            else:
                self.closed.set()
        return number == self._watched or not self.open.is_set()


def _outputs(setting: Setting, point: Point, steps: int) -> int:
    """Tell how many tokens a row must give so that the first row still runs when the last has been measured."""
    engine = setting.engine
    limits = engine.limits
    chunk = engine.options.on("cpu" if limits.device == "cpu" else limits.device).chunk_tokens
    assert chunk is not None, "filled in for the device"
    prompts = -(-point.rows * point.context // max(1, chunk // 4))
    outputs = prompts + 2 * _SETTLING + steps + 64
    length = point.context + outputs
    if limits.replicas > 1:
        raise ValueError(f"replicas is {limits.replicas}; steps that decode are measured of one")
    if point.rows > limits.max_rows or length > limits.context_length or point.rows * length > limits.kv_slots:
        raise ValueError(
            f"at is {point}: {point.rows} rows of {length} tokens, outputs included, are needed; this engine has "
            f"{limits.max_rows} rows, a context of {limits.context_length} and {limits.kv_slots} slots"
        )
    return outputs


def _line(
    setting: Setting,
    point: Point,
    tokens: int,
    taken: tuple[float, float],
    before: dict[str, Any],
    after: dict[str, Any],
) -> dict[str, Any]:
    """Put a line together.

    taken: seconds, and how many of them the event loop's thread worked, where all actors but the worker live.
    """
    seconds, loop_s = taken

    def grown(part: str, name: str) -> Any:
        return after[part][name] - before[part][name]

    steps = max(1, grown("worker", "steps"))
    recent = after["worker"]["recent"]
    limit = decode_seconds(setting.config, setting.element_bytes, tokens, setting.rates)
    return {
        "at": str(point),
        "steps": steps,
        "ms_a_step": 1e3 * seconds / steps,
        "device_ms_a_step": 1e3 * grown("worker", "forward_s") / steps,
        "limit_ms": 1e3 * limit,
        "share": limit * steps / seconds,
        "tokens_a_second": point.rows * steps / seconds,
        "busy": grown("worker", "forward_s") / seconds,
        "busy_p50": recent["busy_p50"],
        "busy_p90": recent["busy_p90"],
        "gap_us_p50": recent["gap_us_p50"],
        "gap_us_p90": recent["gap_us_p90"],
        "device_ms_p50": recent["device_ms_p50"],
        "device_ms_p90": recent["device_ms_p90"],
        "loop_us_a_step": 1e6 * loop_s / steps,
        "scheduler_us_a_step": 1e6 * grown("scheduler", "host_seconds") / steps,
        "launch_us_a_step": 1e6 * grown("worker", "launch_s") / steps,
        "collect_us_a_step": 1e6 * grown("worker", "collect_s") / steps,
    }


def print_decode(line: dict[str, Any], *, first: bool) -> None:
    """Print a line of the table, below its head if it is the first."""
    if first:
        print(f"{'rows x context':>14} {'ms/step':>8} {'device':>8} {'limit':>8} {'share':>6} {'tok/s':>8} {'busy':>6} "
              f"{'gap p50':>8} {'p90 us':>7} {'loop us':>7} {'sched us':>8} {'launch':>7} {'collect':>7}")  # fmt: skip
    print(f"{line['at']:>14} {line['ms_a_step']:>8.3f} {line['device_ms_a_step']:>8.3f} {line['limit_ms']:>8.3f} "
f"{line['share']:>6.0%} {line['tokens_a_second']:>8,.0f} {line['busy']:>6.1%} {line['gap_us_p50']:>8.1f} "
          f"{line['gap_us_p90']:>7.1f} {line['loop_us_a_step']:>7.0f} {line['scheduler_us_a_step']:>8.0f} "
          f"{line['launch_us_a_step']:>7.0f} {line['collect_us_a_step']:>7.0f}", flush=True)  # fmt: skip
