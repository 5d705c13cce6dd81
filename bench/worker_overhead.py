"""What a step costs outside the model: lay the step out, sample, tell the result.

The model is replaced by one that gives ready logits at once; everything else is the worker's own code.  Each kind of
row is measured at 1 and 32 rows, over a vocabulary of 4,096.  The machine may be shared, so it is the thread's CPU time
that counts, and the fastest tenth stands beside the median.  Then the GPU's runner, without a GPU: what the host does
for one more row that begins in a step, behind a prefix that all rows share.  `python bench/worker_overhead.py`
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from callboard.actors.messages import Begin, Extend, Step
from callboard.actors.sampling import SamplingParams
from callboard.actors.worker.device_draw import DeviceDraw
from callboard.actors.worker.device_runner import DeviceRunner
from callboard.actors.worker.rows import Rows
from callboard.actors.worker.runner import Runner

VOCABULARY, HIDDEN, STEPS = 4096, 64, 600
BEGINNING, PREFIX, ROUNDS = (1, 17, 64, 256), 64, 100
LIMITS_MS = {1: 0.4, 32: 1.0}
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "top-k 50": SamplingParams(temperature=0.8, top_k=50),
    "min-p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
    "penalties": SamplingParams(temperature=0.0, frequency_penalty=0.1, repetition_penalty=1.1),
    "bias of 10": SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(range(10), 1.0)),
    "5 top logprobs": SamplingParams(temperature=0.0, return_logprob=True, top_logprobs_num=5),
}


class NullAttention:
    pads = False

    def plan(self, *_: Any) -> None:
        return None


class NullModel:
    """Ready logits at once: normal with a deviation of 3, flatter than a trained model's, so top-p has more to sort."""

    def __init__(self) -> None:
        self.config = type("Config", (), {"vocabulary": VOCABULARY, "windows": (None,)})
        generator = torch.Generator().manual_seed(0)
        self._hidden = torch.zeros(1024, HIDDEN)
        self._logits = torch.randn(64, VOCABULARY, generator=generator) * 3.0
        self._out = {rows: torch.empty(rows, VOCABULARY) for rows in LIMITS_MS}

    def forward(self, tokens_T: torch.Tensor, *others: Any) -> torch.Tensor:
        wanted_N = others[-1]
        return self._hidden[: len(tokens_T if wanted_N is None else wanted_N)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._out[len(hidden)].copy_(self._logits[: len(hidden)])


def packed(values: Any) -> bytes:
    return np.asarray(values, np.int32).tobytes()


def measure(rows: int, sampling: SamplingParams) -> tuple[float, float]:
    """Give milliseconds a decode step: the fastest tenth's and the median's."""
    runner: Any = Runner(NullModel(), None, NullAttention(), Rows(64, 2048, VOCABULARY, torch.device("cpu")))  # type: ignore[arg-type]
    prompt, slots = packed([1, 2, 3]), packed([0, 1, 2])
    runner.run(
        Step(
            0, tuple(Extend(row, 0, prompt, slots, True, Begin(row, row, sampling, b"", prompt)) for row in range(rows))
        )
    )
    order, times = packed(range(rows)), []
    for number in range(STEPS):
        step = Step(number, (), order, packed([number] * rows))
        started = thread_time()
        runner.run(step)
        times.append(thread_time() - started)
    times.sort()
    return times[len(times) // 10] * 1e3, times[len(times) // 2] * 1e3


def begin_rows(sampling: SamplingParams) -> dict[int, float]:
    """Give microseconds of a forward in which so many rows begin with 4 tokens each: the fastest tenth's."""
    pool = type("Pool", (), {"entries": [torch.zeros(2, 16)], "dummy_slot": 1})()
    rows = Rows(max(BEGINNING), 2048, VOCABULARY, torch.device("cpu"), staged=True)
    model: Any = NullModel()
    model.logits = lambda hidden: torch.empty(len(hidden), VOCABULARY)
    runner: Any = DeviceRunner(model, pool, NullAttention(), rows, draw=DeviceDraw(rows), capture=False)  # type: ignore[arg-type]
    shared, tokens = packed(range(PREFIX)), packed([1, 2, 3, 4])
    found: dict[int, float] = {}
    for count in BEGINNING:
        begins = [Begin(row, 7919 * row, sampling, b"", b"", packed([2])) for row in range(count)]
        step = Step(
            0, tuple(Extend(row, PREFIX, tokens, tokens, True, begin, shared) for row, begin in enumerate(begins))
        )
        times: list[float] = []
        for _ in range(ROUNDS):
            started = thread_time()
            runner.forward(step)
            times.append(thread_time() - started)
            runner.forward(Step(1, (), b"", b"", packed(range(count))))
        times.sort()
        found[count] = times[ROUNDS // 10] * 1e6
    return found


def main() -> None:
    torch.set_num_threads(1)
    table = Table(title=f"A decode step outside the model, ms (vocabulary {VOCABULARY}, one thread)")
    for column in ("rows that are", "1 row, best tenth", "median", "32 rows, best tenth", "median"):
        table.add_column(column, justify="left" if column == "rows that are" else "right")
    figures: dict[str, Any] = {}
    with torch.inference_mode():
        for kind, sampling in KINDS.items():
            ones, many = measure(1, sampling), measure(32, sampling)
            figures[kind] = {
                "rows_1": {"best_tenth_ms": ones[0], "median_ms": ones[1]},
                "rows_32": {"best_tenth_ms": many[0], "median_ms": many[1]},
            }
            table.add_row(kind, *(f"{value:.2f}" for value in (*ones, *many)))
    table.add_row("limit", f"{LIMITS_MS[1]:.2f}", "", f"{LIMITS_MS[32]:.2f}", "")
    Console().print(table)
    begun = {kind: begin_rows(KINDS[kind]) for kind in ("greedy", "temperature", "top-p 0.9")}
    table = Table(title="A forward of the GPU's runner in which rows begin, us, and what one more row costs")
    for column in ("rows that are", *(str(count) for count in BEGINNING), "one more"):
        table.add_column(column, justify="left" if column == "rows that are" else "right")
    for kind, times in begun.items():
        more = (times[BEGINNING[-1]] - times[BEGINNING[0]]) / (BEGINNING[-1] - BEGINNING[0])
        table.add_row(kind, *(f"{times[count]:.0f}" for count in BEGINNING), f"{more:.1f}")
    Console().print(table)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": f"cpu, {platform.machine()}, {os.cpu_count()} cores, 1 thread",
        "load_average": os.getloadavg()[0],
        "vocabulary": VOCABULARY,
        "limits_ms": LIMITS_MS,
        "figures": figures,
        "begin_us": begun,
    }
    path = Path(__file__).parent / "results" / "worker_overhead.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
