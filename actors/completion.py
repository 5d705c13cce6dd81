"""One whole generation, put together from what was streamed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from .messages import Delta, Finish, TokenLogprob

__all__ = ["Completion"]


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One whole generation.  tokens are those wholly inside the text; finish tells the rest."""

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    logprobs: tuple[TokenLogprob, ...] = ()
    input_logprobs: tuple[TokenLogprob, ...] = ()

    @classmethod
    def of(cls, deltas: Sequence[Delta]) -> Completion:
        """Put a generation's deltas together, its last one behind all others."""
        finish = deltas[-1].finish
        assert finish is not None, "a reader ends with a terminal event"
        return cls(
            text="".join(delta.text for delta in deltas),
            tokens=tuple(chain.from_iterable(delta.tokens for delta in deltas)),
            finish=finish,
            logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
            input_logprobs=tuple(chain.from_iterable(delta.input_logprobs for delta in deltas)),
        )
