"""The thread that owns a model: it takes steps in order and reports each; nobody else touches its tensors."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import perf_counter
from typing import Any

import torch

from ..messages import Step, StepDone
from .options import WorkerDescription
from .runner import Runner

__all__ = ["WorkerThread"]


class WorkerThread:
    """Build a runner and run steps in a thread of its own.

    build: called in the thread.  report: called there with each result.  failed: called there with what broke the
    thread, after which it runs nothing more.  All methods may be called from any thread.
    """

    def __init__(
        self,
        build: Callable[[], tuple[Runner, WorkerDescription]],
        report: Callable[[StepDone], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.ready: Future[WorkerDescription] = Future()
        self._build = build
        self._report = report
        self._failed = failed
        self._wake = threading.Condition()
        self._steps: deque[Step] = deque()
        self._epoch = 0
        self._cleared = 0
        self._ending = False
        self._counts: dict[str, Any] = {
            "steps": 0,
            "tokens_sampled": 0,
            "rows_failed": 0,
            "busy_s": 0.0,
            "forward_s": 0.0,
        }
        # A daemon, so that an interpreter that ends without leaving its blocks does not wait for it.
        self._thread = threading.Thread(target=self._live, name="callboard-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, step: Step) -> None:
        """Queue a step.  Before the first reset it is one meant for a worker before this one, and is dropped."""
        with self._wake:
            if not self._epoch:
                return
            self._steps.append(step)
            self._wake.notify()

    def reset(self) -> None:
        """Drop the queued steps and forget every row before the next one; a step at hand is not reported any more."""
        with self._wake:
            self._steps.clear()
            self._epoch += 1

    def end(self) -> None:
        """End once the step at hand is done."""
        with self._wake:
            self._ending = True
            self._wake.notify()

    def join(self) -> None:
        self._thread.join()

    def statistics(self) -> dict[str, Any]:
        with self._wake:
            return {**self._counts, "steps_queued": len(self._steps)}

    def _live(self) -> None:
        try:
            with torch.inference_mode():
                runner, description = self._build()
                self.ready.set_result(description)
                while (taken := self._take()) is not None:
                    self._run(runner, *taken)
        except BaseException as error:  # handed to the actor, whose crash it is
            if self.ready.done():
                self._failed(error)
            else:
                self.ready.set_exception(error)

    def _take(self) -> tuple[Step, int] | None:
        with self._wake:
            while not self._steps and not self._ending:
                self._wake.wait()
            return None if self._ending else (self._steps.popleft(), self._epoch)

    def _run(self, runner: Runner, step: Step, epoch: int) -> None:
        if epoch != self._cleared:
            runner.rows.clear()
            self._cleared = epoch
        started = perf_counter()
        done = runner.run(step)
        with self._wake:
            counts = self._counts
            counts["steps"] += 1
            counts["tokens_sampled"] += len(done.tokens) // 4
            counts["rows_failed"] += len(done.failures)
            counts["busy_s"] += perf_counter() - started
            counts["forward_s"] += done.forward_s
            current = epoch == self._epoch
        if current:
            self._report(done)
