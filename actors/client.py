"""What asks an engine's dispatcher for generations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import msgspec

from .answer import Answer
from .backend import Prompt
from .healing import Healing
from .leases import Leases
from .leaving import leave
from .messages import Compile, Submit
from .reader import Reader
from .sampling import SamplingParams
from .tenancy import cache_namespace
from .texts import Texts
from .waker import Waker
from .wires import Wires

__all__ = ["Client"]


class Client:
    """Number requests, and give what comes of them."""

    def __init__(self, wires: Wires, texts: Texts, leases: Leases) -> None:
        self._wires = wires
        self._texts = texts
        self._leases = leases
        self._numbers = count(1)
        self._vocabulary: int | None = None
        self._waker: Waker | None = None
        self._stop_ids: dict[str, int] = {}

    async def start(self, vocabulary: int, stops: Sequence[str]) -> None:
        """Learn the vocabulary's size and the stop strings of the template, once the engine's actors are there.

        A stop string may be one special token, which is in no text: its id stops too.
        """
        self._vocabulary = vocabulary
        self._waker = Waker()
        self._stop_ids = await self._texts.single_tokens(stops)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are.  Raises RuntimeError before `start`."""
        if self._vocabulary is None:
            raise RuntimeError("the engine is not running: use it inside `async with Engine(...) as engine:`")
        return self._vocabulary

    def stream(
        self,
        prompt: Prompt | str | bytes | Sequence[int],
        sampling: SamplingParams,
        *,
        tag: str,
        tenant: str,
        salt: str,
    ) -> Answer:
        """Stream one generation; see `Engine.generate`."""
        return Answer(self._wires, partial(self._prepare, prompt, sampling, tag=tag, tenant=tenant, salt=salt))

    async def _prepare(
        self,
        prompt: Prompt | str | bytes | Sequence[int],
        sampling: SamplingParams,
        *,
        tag: str,
        tenant: str,
        salt: str,
        patient: bool,
    ) -> tuple[Submit, Healing | None]:
        """Put a request together.  patient: its reader wants to be woken only at the end."""
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
        reader = Reader(next(self._numbers), self._waker, patient=patient)
        submit = Submit(
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
        return submit, healing

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
        leave(self._wires, request)

    def _with_stop_ids(self, sampling: SamplingParams) -> SamplingParams:
        more = [token for stop, token in self._stop_ids.items() if stop in sampling.stop]
        return msgspec.structs.replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *more))
