"""What every remote backend does alike: its life, its bound on requests at once, and trying again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import Self, TypeVar

import anyio

from ...actors.backend import Backend, Prompt, Scores
from ...actors.chat_template import ChatTemplate
from ...actors.core import Supervisor
from ...actors.errors import InvalidRequest
from ...actors.messages import Delta
from ...actors.sampling import SamplingParams
from ...actors.whole_text import verify_whole
from .capabilities import Capabilities
from .fault import Fault, Patience, Retries, cut
from .scoring import verify_continuations
from .token_usage import TokenUsage

__all__ = ["Attempt", "RemoteBackend"]

T = TypeVar("T")

Attempt = Callable[[], AsyncGenerator[Delta, None]]
"""One attempt at a generation.  It raises Fault, and nothing else but what cancels it."""


class RemoteBackend(Backend):
    """A service that generates, over HTTP.

    timeout_s: how long the service may stay silent, at whatever point, until TimeoutError; a deadline for the whole
    belongs to the caller.  concurrency: how many requests are under way at once; more wait.  An attempt that fails
    before its first text is repeated as `retries` says; none is repeated behind it.  Cancelling, or closing a
    generation early, closes its connection, so that the service can stop too.  `token_usage` adds up what finished
    generations have read and written.
    """

    def __init__(
        self,
        *,
        capabilities: Capabilities,
        chat_template: ChatTemplate,
        timeout_s: float,
        retries: Retries | None,
        concurrency: int,
    ) -> None:
        if not timeout_s > 0:
            raise InvalidRequest("timeout_s", f"{timeout_s!r} is not a number of seconds above 0")
        if not concurrency >= 1:
            raise InvalidRequest("concurrency", f"{concurrency!r} is not 1 or more")
        self.retries = retries or Retries()
        self.retries.verify()
        self.capabilities = capabilities
        self.overruns = capabilities.overruns
        self.chat_template = chat_template
        self.timeout_s = timeout_s
        self.token_usage = TokenUsage()
        self._concurrency = concurrency
        self._slots: anyio.Semaphore | None = None
        self._stack: AsyncExitStack | None = None

    # --- what each of them says for itself ---------------------------------------------------------------------------

    @property
    @abstractmethod
    def who(self) -> str:
        """Name the service, for errors."""

    @abstractmethod
    async def _connect(self, stack: AsyncExitStack) -> None:
        """Open the client and leave its end to `stack`."""

    @abstractmethod
    def _attempt(self, prompt: Prompt, sampling: SamplingParams) -> Attempt:
        """Prepare a generation; InvalidRequest if it cannot be asked for."""

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("this backend is entered already; make another one for another block")
        async with AsyncExitStack() as stack:
            self._slots = anyio.Semaphore(self._concurrency)
            stack.callback(setattr, self, "_slots", None)
            await self._connect(stack)
            self.programs = await stack.enter_async_context(Supervisor("programs"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)

    # --- as a backend ------------------------------------------------------------------------------------------------

    def verify(self, sampling: SamplingParams) -> None:
        sampling.verify()
        self.capabilities.verify(sampling, self.who)

    async def encode(self, text: str, *, beginning: bool = True) -> bytes | None:  # noqa: ARG002
        return None

    async def generate(self, prompt: Prompt, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        self.verify(sampling)
        verify_whole(prompt.text)
        for stop in sampling.stop:
            verify_whole(stop, "stop")
        attempt = self._attempt(prompt, sampling)
        patience = Patience(self.retries)
        async with self._slot():
            while True:
                begun = False
                try:
                    async with aclosing(attempt()) as deltas:
                        async for delta in deltas:
                            begun = True
                            if delta.finish is not None:
                                self.token_usage.add(delta.finish)
                            yield delta
                            if delta.finish is not None:
                                return
                    raise cut(self.who)
                except Fault as fault:
                    await patience.bear(fault, begun=begun)

    def verify_image(self, url: str) -> None:
        self.capabilities.verify_image(url, self.who)

    def verify_choices(self, continuations: Sequence[str], *, unconditional: bool = False) -> None:
        verify_continuations(continuations)
        self.capabilities.verify_choices(self.who, unconditional=unconditional)

    async def score(self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False) -> Scores:
        self.verify_choices(continuations, unconditional=unconditional)
        verify_whole(prompt.text)
        for continuation in continuations:
            verify_whole(continuation, "choices")
        return await self._score(prompt, continuations, unconditional=unconditional)

    async def _score(self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool) -> Scores:  # noqa: ARG002
        """Score choices that this service can score."""
        raise AssertionError(f"{self.who} says that it scores choices, and has no way to")

    async def _call(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Run a request that is answered at once, under the same rules."""
        patience = Patience(self.retries)
        async with self._slot():
            while True:
                try:
                    return await ask()
                except Fault as fault:
                    await patience.bear(fault)

    def _slot(self) -> anyio.Semaphore:
        if self._slots is None:
            raise RuntimeError(
                f"{self.who} is not entered: use it inside `async with`, or set it as the default backend"
            )
        return self._slots
