"""What asks an engine's dispatcher for generations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from itertools import count
from typing import Any

import msgspec

from .backend import Prompt
from .healing import Healing
from .leases import Leases
from .messages import Abort, Compile, Delta, Finish, Submit
from .reader import Reader
from .sampling import SamplingParams
from .tenancy import cache_namespace
from .texts import Texts
from .wires import Wires

__all__ = ["Client"]


class Client:
    """Number requests, submit them, and give what comes of them; whoever stops reading aborts."""

    def __init__(self, wires: Wires, texts: Texts, leases: Leases) -> None:
        self._wires = wires
        self._texts = texts
        self._leases = leases
        self._numbers = count(1)
        self._vocabulary: int | None = None
        self._stop_ids: dict[str, int] = {}

    async def start(self, vocabulary: int, stops: Sequence[str]) -> None:
        """Learn the vocabulary's size and the stop strings of the template, once the engine's actors are there.

        A stop string may be one special token, which is in no text: its id stops too.
        """
        self._vocabulary = vocabulary
        self._stop_ids = await self._texts.single_tokens(stops)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are.  Raises RuntimeError before `start`."""
        if self._vocabulary is None:
            raise RuntimeError("the engine is not running: use it inside `async with Engine(...) as engine:`")
        return self._vocabulary

    async def stream(
        self,
        prompt: Prompt | str | bytes | Sequence[int],
        sampling: SamplingParams,
        *,
        tag: str,
        tenant: str,
        salt: str,
    ) -> AsyncGenerator[Delta, None]:
        """Stream one generation; see `Engine.generate`."""
        sampling.verify(vocabulary=self.vocabulary)
        namespace = cache_namespace(tenant, salt)
        if self._stop_ids:
            sampling = self._with_stop_ids(sampling)
        tokens = await self._texts.read(prompt, self.vocabulary)
        healing: Healing | None = None
        if sampling.heal and (healing := await self._texts.heal(prompt, tokens)) is not None:
            tokens, sampling = tokens[: -4 * healing.taken], healing.sampling(sampling)
        if (constraint := sampling.constraint) is not None:
            await self._wires.grammar.ask(Compile(constraint))
        told = prompt if isinstance(prompt, Prompt) else Prompt(tokens=tokens)
        self._leases.look(told.lease, namespace)
        reader = Reader(next(self._numbers))
        recorded = self._wires.recorded.asked(reader.request)
        finish: Finish | None = None
        try:
            await self._wires.dispatcher.ask(
                Submit(
                    reader.request,
                    tokens,
                    sampling,
                    reader,
                    tag,
                    lease=told.lease,
                    released=self._leases.released(),
                    joins=told.joins,
                    program=told.program,
                    tenant=tenant,
                    namespace=namespace,
                    joining=told.joining,
                )
            )
            async for delta in reader:
                finish = delta.finish
                yield delta if healing is None else await healing.read(delta)
        finally:
            if recorded:
                self._wires.recorded.answered(reader.request, finish)
            if not reader.over:  # left early, at whatever point: an abort behind the submit always finds it
                self.leave(reader.request)

    async def look_ahead(self, prompt: bytes, reader: Any) -> int:
        """Ask for the log-probabilities of every token behind a prompt; see `Engine.look_ahead`."""
        request = next(self._numbers)
        try:
            await self._wires.dispatcher.ask(
                Submit(request, prompt, SamplingParams(max_new_tokens=0), reader, next_logprobs=True)
            )
        except BaseException:
            self.leave(request)
            raise
        return request

    def leave(self, request: int) -> None:
        """End a request that nobody waits for any more; one that is over is ignored."""
        self._wires.dispatcher.post(Abort(request, "its reader left"))

    def _with_stop_ids(self, sampling: SamplingParams) -> SamplingParams:
        more = [token for stop, token in self._stop_ids.items() if stop in sampling.stop]
        return msgspec.structs.replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *more))
