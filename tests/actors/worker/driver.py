"""A scheduler by hand: gives out slots, sends one Step at a time, reads what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from callboard.actors.messages import Begin, Extend, Step, StepDone
from callboard.actors.sampling import SamplingParams
from callboard.actors.worker.options import WorkerOptions
from callboard.actors.worker.runner import Runner

VOCABULARY = 320  # 256 bytes, 2 ends, and ids that no token has
EOS = (256, 257)


def options(folder: Path, /, **changes: Any) -> WorkerOptions:
    return WorkerOptions(**{"folder": str(folder), "max_rows": 8, "context_length": 256, **changes})


def packed(values: Any) -> bytes:
    return np.asarray(values, np.int32).tobytes()


class Driver:
    """Give out slots in a shuffled order and send one Step at a time; remembers each row's slots."""

    def __init__(self, runner: Runner, slots: int = 512) -> None:
        self.runner = runner
        self.slots: dict[int, list[int]] = {}
        self.free = np.random.default_rng(0).permutation(slots).tolist()
        self.number = 0

    def take(self, row: int, count: int) -> list[int]:
        taken = [self.free.pop() for _ in range(count)]
        self.slots.setdefault(row, []).extend(taken)
        return taken

    def extend(
        self,
        row: int,
        tokens: list[int],
        sampling: SamplingParams | None = None,
        *,
        start: int = 0,
        sample: bool = True,
        prefix_slots: list[int] | None = None,
        targets: list[int] | None = None,
        targets_start: int = 0,
        seed: int | None = None,
        output: list[int] | None = None,
        context: list[int] | None = None,
    ) -> Extend:
        """Extend a row; with `sampling`, begin it first."""
        begin = None
        if sampling is not None:
            self.slots[row] = list(prefix_slots or [])
            begin = Begin(
                row, row if seed is None else seed, sampling, packed(output or []), packed(context or []), packed(EOS)
            )
        taken = self.take(row, len(tokens))
        return Extend(
            row,
            start,
            packed(tokens),
            packed(taken),
            sample,
            begin,
            packed(prefix_slots or []),
            packed(targets or []),
            targets_start,
        )

    def make(self, *extends: Extend, decode: tuple[int, ...] = (), retire: tuple[int, ...] = ()) -> Step:
        self.number += 1
        slots = [self.take(row, 1)[0] for row in decode]
        return Step(self.number, extends, packed(decode), packed(slots), packed(retire))

    def step(self, *extends: Extend, decode: tuple[int, ...] = (), retire: tuple[int, ...] = ()) -> StepDone:
        return self.runner.run(self.make(*extends, decode=decode, retire=retire))

    def generate(self, prompt: list[int], sampling: SamplingParams, count: int, **begin: Any) -> list[int]:
        """Run one request alone on row 0; its tokens."""
        tokens = read(self.step(self.extend(0, prompt, sampling, **begin)).tokens)
        while len(tokens) < count:
            tokens += read(self.step(decode=(0,)).tokens)
        self.step(retire=(0,))
        return tokens


def read(values: bytes) -> list[int]:
    return np.frombuffer(values, np.int32).tolist()


def floats(values: bytes) -> list[float]:
    return np.frombuffer(values, np.float32).tolist()
