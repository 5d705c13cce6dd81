"""An engine on behalf of one tenant, for the programs of a service that has several."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .backend import Backend, Prompt, Scores
from .messages import Delta
from .sampling import SamplingParams
from .tenancy import cache_namespace

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Tenant"]


class Tenant(Backend):
    """Run programs on a running engine on behalf of a tenant; `Engine.tenant` makes one, as many as one likes.

    What it asks for takes turns with what others ask for, and shares the cache with that of the same name and salt
    alone.  It has nothing of its own to enter or to leave, and is of no use once the engine has ended.
    """

    def __init__(self, engine: Engine, name: str, salt: str = "") -> None:
        self._engine = engine
        self._name, self._salt = name, salt
        self._namespace = cache_namespace(name, salt)
        self.chat_template, self.programs, self.limits = engine.chat_template, engine.programs, engine.limits
        self.knows_texts, self.binds_answers = engine.knows_texts, engine.binds_answers
        self.eager, self.joins = engine.eager, engine.joins

    async def __aenter__(self) -> NoReturn:
        raise RuntimeError("a tenant is not entered: use it inside its engine's `async with` block")

    def verify(self, sampling: SamplingParams) -> None:
        self._engine.verify(sampling)

    async def encode(self, text: str, *, beginning: bool = True) -> bytes:
        return await self._engine.encode(text, beginning=beginning)

    async def token_texts(self, tokens: Sequence[int]) -> list[str]:
        return await self._engine.token_texts(tokens)

    def generate(self, prompt: Prompt, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        return self._engine.generate(prompt, sampling, tenant=self._name, salt=self._salt)

    def verify_choices(self, continuations: Sequence[str], *, unconditional: bool = False) -> None:
        self._engine.verify_choices(continuations, unconditional=unconditional)

    async def score(self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False) -> Scores:
        return await self._engine.score(
            prompt, continuations, unconditional=unconditional, tenant=self._name, salt=self._salt
        )

    async def prefill(self, prompt: Prompt) -> None:
        await self._engine.prefill(prompt, tenant=self._name, salt=self._salt)

    def lease(self) -> int:
        return self._engine.lease(self._namespace)

    def release(self, lease: int) -> None:
        self._engine.release(lease)

    def pause(self, lease: int, tokens: bytes, joins: bytes = b"") -> None:
        self._engine.pause(lease, tokens, joins)

    def resume(self, lease: int) -> None:
        self._engine.resume(lease)

    async def flush(self) -> Any:
        """Empty the engine's cache, every tenant's, of what no generation holds."""
        return await self._engine.flush()

    async def server_info(self) -> dict[str, Any]:
        return await self._engine.server_info()

    async def statistics(self) -> dict[str, Any]:
        return await self._engine.statistics()
