"""The actor that proves a constraint before its request is admitted."""

from __future__ import annotations

from types import TracebackType

import anyio
import anyio.to_thread

from ..core import Actor, Inbox, Reply
from ..errors import GenerationFailed, InvalidRequest
from ..messages import Compile, ToGrammar
from ..sampling import Constraint
from .cache import GrammarCache
from .limits import ProofLimits
from .prover import Prover
from .source import is_cheap

__all__ = ["Grammar"]


class Grammar(Actor[ToGrammar]):
    """Prove constraints in processes that can be killed, then compile them; an error goes to who asked.

    A few at a time; many who ask for the same one wait for the same proof.  A constraint that is kept, or is cheap,
    needs no process.
    """

    def __init__(self, cache: GrammarCache, limits: ProofLimits | None = None) -> None:
        self._cache = cache
        self._limits = limits or ProofLimits()
        self._threads = anyio.CapacityLimiter(2)
        self._room = anyio.Semaphore(self._limits.processes)
        self._idle: list[Prover] = []
        self._askers: dict[Constraint, list[Reply]] = {}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for prover in self._idle:
            await prover.close()

    async def run(self, inbox: Inbox[ToGrammar]) -> None:
        """Take what waits; compiles run side by side, in tasks that end with this actor."""
        async with anyio.create_task_group() as group:
            while True:
                for message, reply in await inbox.batch():
                    match message:
                        case Compile(constraint) if reply is not None:
                            if constraint in self._cache:
                                reply.answer(None)
                            elif (askers := self._askers.get(constraint)) is not None:
                                askers.append(reply)
                            else:
                                self._askers[constraint] = [reply]
                                group.start_soon(self._compile, constraint)

    async def _compile(self, constraint: Constraint) -> None:
        error: InvalidRequest | GenerationFailed | None = None
        try:
            grammar = None if is_cheap(constraint) else await self._prove(constraint)
            await anyio.to_thread.run_sync(self._cache.matcher, constraint, grammar, limiter=self._threads)
        except (InvalidRequest, GenerationFailed) as refused:
            error = refused
        for reply in self._askers.pop(constraint):
            if error is None:
                reply.answer(None)
            else:  # each asker its own: what is raised in two places mixes up two tracebacks
                reply.fail(_again(error))

    async def _prove(self, constraint: Constraint) -> str:
        async with self._room:
            prover = self._idle.pop() if self._idle else await self._new_prover()
            try:
                return await prover.prove(constraint)
            finally:
                self._idle.append(prover)  # it has no process if that died

    async def _new_prover(self) -> Prover:
        file = await anyio.to_thread.run_sync(self._cache.tokenizer_file, limiter=self._threads)
        return Prover(file, self._cache.limits, self._limits)


def _again(error: InvalidRequest | GenerationFailed) -> InvalidRequest | GenerationFailed:
    if isinstance(error, InvalidRequest):
        return InvalidRequest(error.field, str(error).removeprefix(f"{error.field}: "))
    return GenerationFailed(str(error))
