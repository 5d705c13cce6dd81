"""What a worker has done, and how busy its device is: over the whole run, over the last second, over recent steps."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

__all__ = ["StepMeter"]

_KEPT = 4096  # steps; more than a second holds
_RECENT = 256  # steps whose spread is told


class StepMeter:
    """Count steps and keep when the last ones ended.  A step costs it about a microsecond.

    clock: seconds.  It begins with the first step or with `begin`.  Not safe for threads: whoever owns it has a lock.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._steps = 0
        self._tokens = 0
        self._failures = 0
        self._busy_s = self._device_s = self._launch_s = self._collect_s = 0.0
        self._seen = 0.0  # until when the device's work is counted
        self._ended = np.zeros(_KEPT)
        self._spans = np.zeros(_KEPT)
        self._gaps = np.zeros(_KEPT)
        self._outputs = np.zeros(_KEPT)
        self._prompts = np.zeros(_KEPT)

    def begin(self) -> None:
        """Let time count from now on, until when nothing could run."""
        self._begun = self._clock()

    def done(
        self,
        *,
        started: float,
        device_s: float,
        gap_s: float = 0.0,
        launch_s: float = 0.0,
        collect_s: float = 0.0,
        prompt_tokens: int = 0,
        tokens: int = 0,
        failures: int = 0,
    ) -> None:
        """Count a step that has just ended.

        started: when the host took it up.  device_s: what the device worked on it.  gap_s: how long the device had
        nothing to do before it.  launch_s, collect_s: what the host's threads worked for it.  prompt_tokens,
        tokens: computed and sampled.
        """
        now = self._clock()
        if self._begun is None:
            self._begun = started
        at = self._steps % _KEPT
        self._ended[at] = now
        self._spans[at] = device_s
        self._gaps[at] = gap_s
        self._prompts[at] = prompt_tokens
        self._outputs[at] = tokens
        self._steps += 1
        self._tokens += tokens
        self._failures += failures
        self._busy_s += now - max(started, self._seen)
        self._device_s += device_s
        self._launch_s += launch_s
        self._collect_s += collect_s
        self._seen = now

    def statistics(self) -> dict[str, Any]:
        """Tell counts and seconds since the start, and shares and percentiles of what is not long ago.

        busy_s: between a step's start and its result, overlaps counted once.  forward_s: the device's own time.
        """
        now = self._clock()
        wall_s = 0.0 if self._begun is None else now - self._begun
        return {
            "steps": self._steps,
            "tokens_sampled": self._tokens,
            "rows_failed": self._failures,
            "busy_s": self._busy_s,
            "forward_s": self._device_s,
            "launch_s": self._launch_s,
            "collect_s": self._collect_s,
            "wall_s": wall_s,
            "device_busy": min(1.0, self._device_s / wall_s) if wall_s > 0 else 0.0,
            "last_second": self._last_second(now),
            "recent": self._recent(),
        }

    def _last_second(self, now: float) -> dict[str, Any]:
        count = min(self._steps, _KEPT)
        ended, spans = self._ended[:count], self._spans[:count]
        since = ended - (now - 1.0)  # of a step's time, what lies within the second
        within = np.clip(np.minimum(spans, since), 0.0, None)
        ours = since > 0
        return {
            "steps": int(np.count_nonzero(ours)),
            "device_busy": min(1.0, float(within.sum())),
            "prompt_tokens": int(self._prompts[:count][ours].sum()),
            "output_tokens": int(self._outputs[:count][ours].sum()),
        }

    def _recent(self) -> dict[str, Any]:
        """Tell how long the last steps took, how long the device waited before them, and the share it worked."""
        count = min(self._steps, _RECENT)
        if not count:
            return {"steps": 0}
        at = np.arange(self._steps - count, self._steps) % _KEPT
        spans, gaps = self._spans[at], self._gaps[at]
        both = spans + gaps
        shares = np.divide(spans, both, out=np.zeros(count), where=both > 0)
        told: dict[str, Any] = {"steps": count}
        for name, values in (("device_ms", 1e3 * spans), ("gap_us", 1e6 * gaps), ("busy", shares)):
            ordered = np.sort(values)  # numpy's percentiles take ten times as long, and steps wait meanwhile
            for percent in (10, 50, 90):
                told[f"{name}_p{percent}"] = float(ordered[percent * (count - 1) // 100])
        return told
