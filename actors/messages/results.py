"""What comes of a request, as clients see it."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "GRAMMAR_CUT",
    "Delta",
    "Finish",
    "FinishReason",
    "Healed",
    "Score",
    "TokenLogprob",
]

FinishReason = Literal["stop", "length", "abort", "error"]

GRAMMAR_CUT = "the grammar was cut: max_new_tokens ended the text before it was complete"
"""The message of a Finish for "length" where the constraint did not hold yet."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token's log-probability (natural log) and the most likely tokens beside it, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Healed(msgspec.Struct, frozen=True):
    """What became of a prompt's end that was taken back (`SamplingParams.heal`).

    inside: how many of the first output tokens lie wholly in text the prompt had.  taken: how many of the prompt's last
    tokens the output's stand for; 0 if the prompt stays as it was.  text: what of the prompt's text the first token
    behind `inside` begins with.
    """

    inside: int
    taken: int = 0
    text: str = ""


class Finish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a generation ended: its one terminal event.

    matched: the stop string or stop token id that ended it.  kept_tokens: how many output tokens lie wholly inside
    the text; tail: the text behind them (a stop string may end inside a token), so that
    decode(tokens[:kept_tokens]) + tail is the text; behind a healed prompt, the text that was taken back and the text.
    """

    reason: FinishReason
    matched: str | int | None = None
    message: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    retractions: int = 0
    kept_tokens: int = 0
    tail: str = ""
    healed: Healed | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is new in one request: text, tokens and, in the last one, how it ended.

    next_logprobs: float32 [vocabulary], in the last one of a request submitted with `next_logprobs`.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    input_logprobs: tuple[TokenLogprob, ...] = ()
    next_logprobs: bytes = b""
    finish: Finish | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation's tokens and their log-probabilities, given the prompt.

    tokens: those behind `start`, the first position at which any continuation differs from the prompt alone.
    unconditional: theirs without the prompt, if that was asked for; the first, which follows nothing, is 0.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float, ...] = ()
