"""What the gateway needs of an engine, and nothing more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from ..backend import Prompt
from ..chat_template import ChatTemplate
from ..messages import Delta, Finish, Flushed, TokenLogprob
from ..sampling import SamplingParams

__all__ = ["Completed", "Limits", "PromptLike", "Service"]

PromptLike = Prompt | str | bytes | Sequence[int]
"""A prompt as `Service` takes it; bytes are int32 token ids."""


class Limits(Protocol):
    """What a prompt may be: its length with its output, in tokens, and the highest token id plus one."""

    @property
    def context_length(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...


class Completed(Protocol):
    """One whole generation."""

    @property
    def text(self) -> str: ...

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def logprobs(self) -> Sequence[TokenLogprob]: ...

    @property
    def input_logprobs(self) -> Sequence[TokenLogprob]: ...

    @property
    def finish(self) -> Finish: ...


class Service(Protocol):
    """An engine, seen from the gateway.  `Engine` is one; tests bring a small one of their own."""

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def chat_template(self) -> ChatTemplate: ...

    def verify(self, sampling: SamplingParams) -> None: ...

    def generate(
        self, prompt: PromptLike, sampling: SamplingParams, *, tag: str = "", tenant: str = "", salt: str = ""
    ) -> AsyncGenerator[Delta, None]: ...

    async def complete(
        self, prompt: PromptLike, sampling: SamplingParams, *, tag: str = "", tenant: str = "", salt: str = ""
    ) -> Completed: ...

    def lease(self) -> int: ...

    def release(self, lease: int) -> None: ...

    def pause(self, lease: int, tokens: bytes) -> None: ...

    async def encode(self, text: str) -> bytes: ...

    async def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    async def flush(self) -> Flushed: ...

    def abort(self, tag: str, *, tenant: str = "") -> None: ...

    async def statistics(self) -> dict[str, Any]: ...

    def health(self) -> dict[str, Any]: ...

    def model_info(self) -> dict[str, Any]: ...
