"""The threads that own a model: one launches steps in order, one collects and reports each; nobody else touches its
tensors.

On a CPU a step is over when it is launched, and one thread does both.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import thread_time
from typing import Any

import torch

from ..messages import Step, StepDone
from .meter import StepMeter
from .options import WorkerDescription
from .runner import Pass, Runner

__all__ = ["WorkerThread"]


class WorkerThread:
    """Build a runner and run steps in threads of their own.

    build: called in the launching thread.  report: called with each result.  failed: called with what broke a thread,
    after which nothing runs any more.  All methods may be called from any thread.
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
        self._runner: Runner | None = None
        self._wake = threading.Condition()
        self._steps: deque[Step] = deque()
        self._launched: deque[tuple[Pass, int]] = deque()
        self._changed = threading.Condition()  # of what is launched
        self._epoch = 0
        self._cleared = 0
        self._ending = False
        self._broken = False
        self._meter = StepMeter()
        # Daemons, so that an interpreter that ends without leaving its blocks does not wait for them.
        self._thread = threading.Thread(target=self._live, name="callboard-worker", daemon=True)
        self._collector: threading.Thread | None = None

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
        """End once the steps at hand are done."""
        with self._wake:
            self._ending = True
            self._wake.notify()

    def join(self) -> None:
        self._thread.join()

    def statistics(self) -> dict[str, Any]:
        with self._wake:
            told = {**self._meter.statistics(), "steps_queued": len(self._steps)}
        return told if self._runner is None else {**told, **self._runner.statistics()}

    # --- launching -------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            with torch.inference_mode():
                self._runner, description = self._build()
                if self._runner.overlaps:
                    self._collector = threading.Thread(target=self._collect, name="callboard-collector", daemon=True)
                    self._collector.start()
                with self._wake:
                    self._meter.begin()
                self.ready.set_result(description)
                while (taken := self._take()) is not None:
                    self._launch(self._runner, *taken)
        except BaseException as error:  # handed to the actor, whose crash it is
            self._break(error)
        finally:
            self._end_collector()
            if self._runner is not None:
                self._runner.end()

    def _take(self) -> tuple[Step, int] | None:
        with self._wake:
            while not self._steps and not self._ending:
                self._wake.wait()
            return None if self._ending else (self._steps.popleft(), self._epoch)

    def _launch(self, runner: Runner, step: Step, epoch: int) -> None:
        if epoch != self._cleared:
            self._settle()
            runner.rows.clear()
            self._cleared = epoch
        begun = thread_time()
        running = runner.forward(step)
        running.prompt_tokens = sum(len(extend.tokens) for extend in step.extends) // 4
        if not runner.overlaps:
            runner.sample(running)
            self._finish(runner, running, epoch)
            return
        running.launch_s = thread_time() - begun
        if running.waits:
            self._settle()
        begun = thread_time()
        runner.sample(running)
        running.launch_s += thread_time() - begun
        with self._changed:
            self._launched.append((running, epoch))
            self._changed.notify_all()

    def _settle(self) -> None:
        """Wait until everything launched is collected: its tokens are known then."""
        with self._changed:
            while self._launched and not self._broken:
                self._changed.wait()

    # --- collecting ------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Collect launched passes in order; a pass stays in the queue until it is reported."""
        try:
            with torch.inference_mode():
                while (found := self._oldest()) is not None:
                    assert self._runner is not None
                    self._finish(self._runner, *found)
                    with self._changed:
                        self._launched.popleft()
                        self._changed.notify_all()
        except BaseException as error:  # handed to the actor, whose crash it is
            self._break(error)

    def _oldest(self) -> tuple[Pass, int] | None:
        with self._changed:
            while not self._launched and not self._broken:
                self._changed.wait()
            return None if self._broken else self._launched[0]

    def _finish(self, runner: Runner, running: Pass, epoch: int) -> None:
        begun = thread_time()
        done = runner.collect(running)
        collect_s = thread_time() - begun - running.waited_s
        with self._wake:
            self._meter.done(
                started=running.started,
                device_s=done.forward_s,
                gap_s=running.gap_s,
                launch_s=running.launch_s,
                collect_s=collect_s,
                prompt_tokens=running.prompt_tokens,
                tokens=len(done.tokens) // 4,
                failures=len(done.failures),
            )
            current = epoch == self._epoch
        if current:
            self._report(done)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _break(self, error: BaseException) -> None:
        """Let both threads end, and tell the first reason."""
        with self._changed:
            first, self._broken = not self._broken, True
            self._changed.notify_all()
        self.end()
        if not first:
            return
        if self.ready.done():
            self._failed(error)
        else:
            self.ready.set_exception(error)

    def _end_collector(self) -> None:
        if self._collector is None:
            return
        self._settle()
        with self._changed:
            self._broken = True
            self._changed.notify_all()
        self._collector.join()
