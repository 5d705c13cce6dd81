"""To those who know texts: detokenizer, tokenizer, grammar."""

from __future__ import annotations

import msgspec

from ..core.message import Ask, Message
from ..sampling import Constraint, SamplingParams
from .results import FinishReason, TokenLogprob

__all__ = [
    "Close",
    "Compile",
    "Decode",
    "Encode",
    "Finished",
    "Heal",
    "Open",
    "ToDetokenizer",
    "ToGrammar",
    "ToTokenizer",
    "Tokens",
]


class Open(Message, frozen=True):
    """A request begins, or, after a restart, goes on behind `output` (int32), whose text the client already has.

    before: int32, the prompt's last tokens: what the first token's text is may depend on them.
    """

    request: int
    sampling: SamplingParams
    prompt_tokens: int
    output: bytes = b""
    before: bytes = b""


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request's end, as the scheduler knows it.

    drop: how many of the last tokens are not part of the text (an end-of-sequence or stop token).
    """

    request: int
    reason: FinishReason
    matched: int | None = None
    message: str = ""
    cached_tokens: int = 0
    completion_tokens: int = 0
    retractions: int = 0
    drop: int = 0


class Tokens(Message, frozen=True):
    """One step's tokens.

    requests: int64 [n].  offsets: int32 [n], each token's index in its request's output, so that a gap or a repeat is
    seen.  tokens: int32 [n].  logprobs: by request, only those that asked.  input_logprobs: by request.  cached: how
    many prompt tokens the cache held, of each request whose first token this is.  next_logprobs: by request, float32
    [vocabulary]; each of these requests is among `finished`.  replica: whose step it was.
    """

    step: int
    requests: bytes = b""
    offsets: bytes = b""
    tokens: bytes = b""
    logprobs: dict[int, TokenLogprob] = {}
    input_logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
    cached: dict[int, int] = {}
    finished: tuple[Finished, ...] = ()
    next_logprobs: dict[int, bytes] = {}
    replica: int = 0


class Close(Message, frozen=True):
    """Forget a request at the detokenizer without a word: the dispatcher has already told the client."""

    request: int


ToDetokenizer = Open | Tokens | Close


class Encode(Ask[list[bytes]], frozen=True):
    """Tokenize texts; the answer has one int32 array a text.  Special tokens' names in the text become their ids."""

    texts: tuple[str, ...]
    beginning: bool = False  # of a sequence: a tokenizer that begins sequences with a token of its own does so


class Decode(Ask[list[str]], frozen=True):
    """Turn int32 token arrays into text."""

    tokens: tuple[bytes, ...]
    skip_special_tokens: bool = True


class Heal(Ask[tuple[int, str]], frozen=True):
    """Tell how many of a prompt's last `limit` tokens (int32) to take back, and their text; or InvalidRequest."""

    tokens: bytes
    limit: int


ToTokenizer = Encode | Decode | Heal


class Compile(Ask[None], frozen=True):
    """Prove that a constraint compiles, and keep it compiled; the answer is None, or InvalidRequest."""

    constraint: Constraint


ToGrammar = Compile
