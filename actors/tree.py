"""The tree of one engine: which actors there are, who supervises them, and in which order they start."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio.to_thread
import numpy as np

from .core import Supervisor
from .detokenizer import Detokenizer
from .dispatcher import Dispatcher, DispatcherOptions
from .engine_options import EngineLimits, EngineOptions, find_device
from .grammar import Grammar, GrammarCache
from .messages import StepDone
from .scheduler import Scheduler, SchedulerOptions
from .text_stream import token_text
from .tokenizer import Tokenizer, load_vocabulary
from .wires import Wires
from .worker import Describe, Worker, WorkerOptions

__all__ = ["Tree"]


class Tree:
    """Build the actors of an engine in a block, and end them with it.

        root         one_for_one
        |- core      one_for_all    worker, scheduler: KV pool and radix tree share one fate
        |- dispatch  one_for_one    dispatcher
        |- text      one_for_one    tokenizer, grammar, detokenizer
        `- programs  temporary      streams and fork groups

    The worker starts first: what it loads tells the others the limits.  The scheduler starts last of the pipeline,
    when everybody it speaks to is there; the programs, which speak to all, stop first.
    """

    root: Supervisor
    programs: Supervisor
    limits: EngineLimits

    def __init__(self, options: EngineOptions, folder: Path, wires: Wires, seed: int) -> None:
        self._options = options
        self._folder = folder
        self._wires = wires
        self._seed = seed
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.root = await stack.enter_async_context(Supervisor("engine", restarts=5, within=30.0))
            await self._start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _start(self) -> None:
        found = await anyio.to_thread.run_sync(find_device, self._options)
        options = self._options = self._options.on(*found)
        wires = self._wires
        vocabulary = await anyio.to_thread.run_sync(load_vocabulary, self._folder)
        grammars = GrammarCache(self._folder)
        core = await self.root.supervise("core", strategy="one_for_all", restarts=3, within=10.0)
        wires.worker = await core.spawn(
            lambda: Worker(self._worker_options(), report=self._report, grammars=grammars),
            name="worker",
        )
        loaded = await wires.worker.ask(Describe())
        self.joins = loaded.joins and options.prefix_cache
        self.limits = EngineLimits(
            architecture=loaded.architecture,
            context_length=min(loaded.context_length, loaded.kv_slots),
            vocabulary=loaded.vocabulary,
            kv_slots=loaded.kv_slots,
            max_rows=loaded.max_rows,
            device=loaded.device,
            dtype=loaded.dtype,
            kv_dtype=loaded.kv_dtype,
            kv_scales=loaded.kv_scales,
        )
        deep = 4 * options.max_queued + 1024  # nobody in the ring of tokens may ever wait for room
        dispatch = await self.root.supervise("dispatch")
        wires.dispatcher = await dispatch.spawn(
            lambda: Dispatcher(
                wires,
                DispatcherOptions(
                    live=options.max_queued,
                    context_length=self.limits.context_length,
                    eos=np.asarray(loaded.eos_ids, np.int32).tobytes(),
                    seed=self._seed,
                ),
            ),
            name="dispatcher",
            mailbox=deep,
        )
        text = await self.root.supervise("text")
        wires.tokenizer = await text.spawn(lambda: Tokenizer(vocabulary), name="tokenizer", mailbox=deep)
        wires.grammar = await text.spawn(lambda: Grammar(grammars), name="grammar")
        make_text = token_text(vocabulary)
        wires.detokenizer = await text.spawn(lambda: Detokenizer(wires, make_text), name="detokenizer", mailbox=deep)
        wires.scheduler = await core.spawn(
            lambda: Scheduler(
                self._scheduler_options(),
                worker=wires.worker,
                detokenizer=wires.detokenizer,
                dispatcher=wires.dispatcher,
                recorded=wires.recorded,
            ),
            name="scheduler",
            mailbox=deep,
        )
        self.programs = await self.root.supervise("programs")

    def _report(self, done: StepDone) -> None:
        self._wires.scheduler.post(done)  # from the worker's thread; the scheduler is there before any step is

    def _worker_options(self) -> WorkerOptions:
        options = self._options
        assert options.max_rows is not None, "filled in for the device"
        assert options.chunk_tokens is not None, "filled in for the device"
        return WorkerOptions(
            folder=str(self._folder),
            device=options.device,
            dtype=options.dtype,
            kv_dtype=options.kv_dtype,
            max_rows=options.max_rows,
            context_length=options.context_length,
            kv_slots=options.kv_slots,
            mem_fraction=options.mem_fraction,
            chunk_tokens=options.chunk_tokens,
            attention=options.attention,
            load_format=options.load_format,
            fast_forward=options.fast_forward,
            deterministic=options.deterministic,
            threads=options.threads,
        )

    def _scheduler_options(self) -> SchedulerOptions:
        options = self._options
        assert options.max_rows is not None, "filled in for the device"
        assert options.chunk_tokens is not None, "filled in for the device"
        return SchedulerOptions(
            slots=self.limits.kv_slots,
            rows=options.max_rows,
            chunk_tokens=options.chunk_tokens,
            policy=options.policy,
            in_flight=options.in_flight,
            prefix_cache=options.prefix_cache,
            # Whoever comes meanwhile waits for one such step: on the embedded model's CPU a few milliseconds.
            eager_tokens=(32 if options.device == "cpu" else 256) if options.eager else 0,
            # A CPU attends row by row, and so does what must not depend on a row's company.
            share_attention=options.share_attention and options.device != "cpu" and not options.deterministic,
            # A CPU pays for every token, so a short wait for few of them pays too (figures in bench/LOG.md).
            share_tokens=4 if options.device == "cpu" else 16,
            weights=options.weights,
        )

    def unready(self) -> str:
        """Say why requests would not be taken now, or nothing."""
        for name in ("worker", "scheduler", "dispatcher", "tokenizer", "detokenizer"):
            if getattr(self._wires, name).statistics().ended:
                return f"the {name} has ended"
        queued = self._wires.scheduler.statistics().queued
        return f"{queued} messages wait for the scheduler" if queued > self._options.max_queued else ""
