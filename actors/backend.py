"""What a program needs of whoever generates for it: the engine, a remote service, or a stand-in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from .chat_template import ChatTemplate
from .core import Supervisor
from .errors import InvalidRequest
from .messages import Delta, Score
from .sampling import SamplingParams

__all__ = ["Backend", "Prompt", "Scores"]


class Prompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything a program has said so far, as tokens and as text.

    tokens: int32 bytes, what is settled (empty if the backend has no tokenizer).  tail: constant text behind them
    that is not tokenized yet.  text: the whole text (tokens and tail).  messages: the finished chat messages, in
    OpenAI's form, for backends that speak in messages.  role: the role whose message is being written, or None.
    fresh: how many of the last tokens are constant text, which may be tokenized otherwise (`SamplingParams.heal`).
    lease: the number of the program that may go on from here, or 0 (`Backend.lease`).
    program: the number of the whole program, all its branches together, or 0.
    joins: where branches stand side by side among the tokens, int32 (`joins.py`); empty unless `Backend.joins`.
    joining: whether a join of branches waits for what is generated, which will be asked for as `joins` says.
    images: from where to where in the text each stands, and its URL (data:, http: or https:), in order.
    """

    tokens: bytes = b""
    tail: str = ""
    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    role: str | None = None
    fresh: int = 0
    lease: int = 0
    program: int = 0
    joins: bytes = b""
    joining: bool = False
    images: tuple[tuple[int, int, str], ...] = ()


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The scored continuations of one prompt, and the tokens to go on with after choosing one.

    settled[i]: int32 bytes, the tokens of prompt.tail + continuations[i] together, to be appended to prompt.tokens
    (the boundary between tail and continuation is healed by tokenizing them as one).
    """

    scores: tuple[Score, ...]
    settled: tuple[bytes, ...]
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Backend(ABC):
    """A source of generations.  An async context manager: inside the block, programs can run on it.

    `programs` is the supervisor under which program streams and fork groups live; it is open inside the block.
    Every method may be called from many tasks at once, in the loop that entered the block.
    """

    chat_template: ChatTemplate
    programs: Supervisor
    knows_texts: bool = False
    """Whether `token_texts` can be asked."""
    binds_answers: bool = False
    """Whether SamplingParams.reasoning is heeded: a constraint that holds only behind a model's reasoning."""
    eager: bool = False
    """Whether it computes what a program has said, if there is nothing else to do, while that waits (`pause`)."""
    joins: bool = False
    """Whether Prompt.joins is heeded: branches are joined as they were computed, and positions may jump."""
    overruns: Literal["text", "message"] | None = None
    """By what one call may serve several generations (`num_api_spec_tokens`): text that goes on, or whole messages."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abstractmethod
    def verify(self, sampling: SamplingParams) -> None:
        """Raise InvalidRequest if this backend cannot honour `sampling`; called before anything runs."""

    @abstractmethod
    async def encode(self, text: str, *, beginning: bool = True) -> bytes | None:
        """Tokenize `text` (int32 bytes), or give None if this backend has no tokenizer.

        beginning: whether the text begins a sequence (some tokenizers put a token of their own there).
        """

    @abstractmethod
    def generate(self, prompt: Prompt, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        """Stream a generation; the last delta, and only it, has `finish`.  Closing the generator early aborts it.

        `prompt.tail` is empty if `encode` gives tokens.  Raises InvalidRequest, Overloaded, GenerationFailed, Aborted.
        """

    def verify_choices(self, continuations: Sequence[str], *, unconditional: bool = False) -> None:  # noqa: ARG002
        """Raise InvalidRequest if this backend cannot score these continuations; called before anything runs.

        unconditional: whether they are to be scored without the prompt, too; a backend that can says so here.
        """
        if unconditional:
            raise InvalidRequest(
                "choices_method", f"{type(self).__name__} gives no log-probabilities of choices without their prompt"
            )

    def verify_image(self, url: str) -> None:  # noqa: ARG002
        """Raise InvalidRequest if this backend cannot be shown an image by its URL; called before anything runs."""
        raise InvalidRequest("image", f"{type(self).__name__} reads text alone")

    @abstractmethod
    async def score(self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False) -> Scores:
        """Give the log-probabilities of each continuation behind the prompt (prompt.tail included).

        unconditional: give those of the continuation's tokens without the prompt, too; never asked of a backend whose
        `verify_choices` refuses it.
        """

    def lease(self) -> int:
        """Give a program a number under which its KV is kept, as long as there is room; 0 from a backend without."""
        return 0

    def release(self, lease: int) -> None:  # noqa: B027
        """Keep nothing for this program any more; called once for each number given."""

    def pause(self, lease: int, tokens: bytes, joins: bytes = b"") -> None:  # noqa: B027
        """Know that a program with a lease waits on the outside world: its KV goes before that of others.

        tokens: int32, all that it has said so far, if it is to be computed meanwhile, else empty.  joins: as Prompt's.
        """

    def resume(self, lease: int) -> None:  # noqa: B027
        """Know that it goes on, or is over."""

    async def prefill(self, prompt: Prompt) -> None:  # noqa: B027
        """Compute the prompt's KV ahead of its use; a backend without a cache does nothing."""

    async def token_texts(self, tokens: Sequence[int]) -> list[str]:  # noqa: ARG002
        """Give the text of each token by itself, a part of a character as U+FFFD; only if `knows_texts`."""
        raise InvalidRequest("return_text_in_logprobs", f"{type(self).__name__} does not tell its tokens' texts")

    async def flush(self) -> Any:
        """Empty the prefix cache of everything no generation holds; None from a backend that keeps none."""
        return None

    async def server_info(self) -> dict[str, Any]:
        """Tell what is served, on what, and what it has done so far; the keys are the backend's own."""
        return await self.statistics()

    async def statistics(self) -> dict[str, Any]:
        """Tell what this backend has done so far; the keys are the backend's own."""
        return {}
