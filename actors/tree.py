"""The tree of one engine: which actors there are, who supervises them, and in which order they start."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio.to_thread
import numpy as np

from .core import Ref, Supervisor
from .detokenizer import Detokenizer
from .dispatcher import Dispatcher, DispatcherOptions
from .engine_options import EngineLimits, EngineOptions, divided_threads, find_device
from .grammar import Grammar, GrammarCache
from .messages import StepDone
from .recorded import Recorded
from .scheduler import Scheduler, SchedulerOptions
from .text_stream import token_text
from .together import together
from .tokenizer import Tokenizer, load_vocabulary
from .wires import Wires
from .worker import Describe, Worker, WorkerDescription, WorkerOptions

__all__ = ["Tree"]


class Tree:
    """Build the actors of an engine in a block, and end them with it.

        root         one_for_one
        |- core      one_for_all    worker, scheduler: KV pool and radix tree share one fate; one each a replica
        |- dispatch  one_for_one    dispatcher
        |- text      one_for_one    tokenizer, grammar, detokenizer
        `- programs  temporary      streams and fork groups

    The workers start first: what they load tells the others the limits.  The schedulers start last of the pipeline,
    when everybody they speak to is there; the programs, which speak to all, stop first.
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
        threads = await anyio.to_thread.run_sync(divided_threads, options)
        cores = [
            await self.root.supervise(self._named("core", replica), strategy="one_for_all", restarts=3, within=10.0)
            for replica in range(options.replicas)
        ]
        described = await self._start_workers(cores, grammars, threads)
        self.joins = described[0].joins and options.prefix_cache
        self._slots = [one.kv_slots for one in described]
        self.limits = _limits(described)
        deep = 4 * options.max_queued + 1024  # nobody in the ring of tokens may ever wait for room
        dispatch = await self.root.supervise("dispatch")
        dispatcher_options = self._dispatcher_options(described[0].eos_ids)
        wires.dispatcher = await dispatch.spawn(
            lambda: Dispatcher(wires, dispatcher_options), name="dispatcher", mailbox=deep
        )
        text = await self.root.supervise("text")
        wires.tokenizer = await text.spawn(lambda: Tokenizer(vocabulary), name="tokenizer", mailbox=deep)
        wires.grammar = await text.spawn(lambda: Grammar(grammars), name="grammar")
        make_text = token_text(vocabulary)
        wires.detokenizer = await text.spawn(lambda: Detokenizer(wires, make_text), name="detokenizer", mailbox=deep)
        wires.schedulers = []
        for replica, core in enumerate(cores):
            make = partial(self._scheduler, replica)
            wires.schedulers.append(await core.spawn(make, name=self._named("scheduler", replica), mailbox=deep))
        self.programs = await self.root.supervise("programs")

    def _named(self, name: str, replica: int) -> str:
        """Name a part of a replica; where there is one, without its number."""
        return name if self._options.replicas == 1 else f"{name} {replica}"

    async def _start_workers(
        self, cores: Sequence[Supervisor], grammars: GrammarCache, threads: int | None
    ) -> list[WorkerDescription]:
        """Start the replicas' workers, all loading at once, and give what they say of themselves."""
        refs: dict[int, Ref[Any]] = {}

        async def start(replica: int) -> None:
            options = self._worker_options(replica, threads)
            report = partial(self._report, replica)
            refs[replica] = await cores[replica].spawn(
                lambda: Worker(options, report=report, grammars=grammars), name=self._named("worker", replica)
            )

        await together(partial(start, replica) for replica in range(len(cores)))
        self._wires.workers = [refs[replica] for replica in range(len(cores))]
        return [await worker.ask(Describe()) for worker in self._wires.workers]

    def _report(self, replica: int, done: StepDone) -> None:
        self._wires.schedulers[replica].post(done)  # from the worker's thread; it is there before any step is

    def _scheduler(self, replica: int) -> Scheduler:
        wires = self._wires
        return Scheduler(
            self._scheduler_options(replica),
            worker=wires.workers[replica],
            detokenizer=wires.detokenizer,
            dispatcher=wires.dispatcher,
            recorded=Recorded(wires.recorded.tracks, replica),
        )

    def _dispatcher_options(self, eos_ids: Sequence[int]) -> DispatcherOptions:
        return DispatcherOptions(
            live=self._options.max_queued,
            context_length=self.limits.context_length,
            eos=np.asarray(eos_ids, np.int32).tobytes(),
            seed=self._seed,
            replicas=self.limits.replicas,
            slots=self.limits.kv_slots,
        )

    def _worker_options(self, replica: int, threads: int | None) -> WorkerOptions:
        options = self._options
        assert options.max_rows is not None, "filled in for the device"
        assert options.chunk_tokens is not None, "filled in for the device"
        return WorkerOptions(
            folder=str(self._folder),
            device=options.device_of(replica),
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
            threads=threads,
        )

    def _scheduler_options(self, replica: int) -> SchedulerOptions:
        options = self._options
        assert options.max_rows is not None, "filled in for the device"
        assert options.chunk_tokens is not None, "filled in for the device"
        return SchedulerOptions(
            slots=self._slots[replica],
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
            replica=replica,
            replicas=options.replicas,
        )

    def unready(self) -> str:
        """Say why requests would not be taken now, or nothing."""
        wires = self._wires
        for ref in (*wires.workers, *wires.schedulers, wires.dispatcher, wires.tokenizer, wires.detokenizer):
            if ref.statistics().ended:
                return f"the {ref.name} has ended"
        queued = min(scheduler.statistics().queued for scheduler in wires.schedulers)
        return f"{queued} messages wait for the scheduler" if queued > self._options.max_queued else ""


def _limits(described: Sequence[WorkerDescription]) -> EngineLimits:
    """Give what holds for every replica: they have one model, and may have room for unequal numbers of tokens."""
    first, slots = described[0], min(one.kv_slots for one in described)
    return EngineLimits(
        architecture=first.architecture,
        context_length=min(first.context_length, slots),
        vocabulary=first.vocabulary,
        kv_slots=slots,
        max_rows=first.max_rows,
        device=first.device,
        dtype=first.dtype,
        kv_dtype=first.kv_dtype,
        kv_scales=first.kv_scales,
        replicas=len(described),
    )
