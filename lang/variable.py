"""One variable of a program: asked for, being written, or there; and what is known of how it came about."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from ..actors.backend import Scores
from ..actors.messages import Delta, Finish, TokenLogprob
from .choices import mean_logprobs

__all__ = ["Choice", "Generation", "Variable"]


class Variable:
    """Hold a value that may not be there yet. Whoever makes it `ready` rings the stream's bell."""

    __slots__ = ("origin", "ready", "start", "value")

    def __init__(self) -> None:
        self.ready = False
        self.value: Any = None
        self.start: int | None = None  # where in the text its value begins, once it is being written
        self.origin: Generation | Choice | list[Any] | None = None  # a list: gathered from branches, one each

    def set(self, value: Any) -> None:
        self.value = value
        self.ready = True

    def meta_info(self) -> Any:
        """Tell how it came about, as far as that is known now; None if nothing generated it."""
        if isinstance(self.origin, list):
            return [None if origin is None else origin.meta_info() for origin in self.origin]
        return None if self.origin is None else self.origin.meta_info()


class Generation:
    """Gather what the deltas of one generation tell; the text only if `parse` is to read it."""

    __slots__ = ("finish", "input_logprobs", "logprobs", "parse", "text", "tokens")

    def __init__(self, parse: Callable[[str], Any] | None = None) -> None:
        self.parse = parse
        self.text = ""
        self.tokens: array[int] | None = None
        self.logprobs: tuple[TokenLogprob, ...] = ()
        self.input_logprobs: tuple[TokenLogprob, ...] = ()
        self.finish: Finish | None = None

    def add(self, delta: Delta) -> None:
        if delta.tokens:
            if self.tokens is None:
                self.tokens = array("i", delta.tokens)
            else:
                self.tokens.extend(delta.tokens)
        if self.parse is not None:
            self.text += delta.text
        if delta.logprobs:
            self.logprobs += delta.logprobs
        if delta.input_logprobs:
            self.input_logprobs += delta.input_logprobs
        self.finish = delta.finish

    def meta_info(self) -> dict[str, Any]:
        """Give SGLang's names for it; finish_reason is None while it goes on."""
        finish = self.finish
        if finish is None:
            meta: dict[str, Any] = {"finish_reason": None, "completion_tokens": len(self.tokens or ())}
        else:
            meta = {
                "finish_reason": _reason(finish),
                "prompt_tokens": finish.prompt_tokens,
                "cached_tokens": finish.cached_tokens,
                "completion_tokens": finish.completion_tokens,
                "num_retractions": finish.retractions,
            }
        if self.logprobs:
            meta["output_token_logprobs"] = _triples(self.logprobs)
            meta["output_top_logprobs"] = [item.top for item in self.logprobs]
        if self.input_logprobs:
            meta["input_token_logprobs"] = _triples(self.input_logprobs)
            meta["input_top_logprobs"] = [item.top for item in self.input_logprobs]
        if finish is not None and self.parse is not None:
            self._add_parsed(meta, self.parse)
        return meta

    def _add_parsed(self, meta: dict[str, Any], parse: Callable[[str], Any]) -> None:
        """Tell the value the text stands for; None, with the reason, if a limit or a stop string has cut it."""
        meta["parsed"] = None
        try:
            meta["parsed"] = parse(self.text)
        except (ValueError, KeyError, msgspec.MsgspecError) as error:
            meta["parse_error"] = str(error)


class Choice:
    """Keep the scores by which one of several texts was chosen."""

    __slots__ = ("scores",)

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def meta_info(self) -> dict[str, Any]:
        """Give SGLang's names for it, one entry a choice."""
        return {
            "prompt_tokens": self.scores.prompt_tokens,
            "cached_tokens": self.scores.cached_tokens,
            "normalized_prompt_logprobs": mean_logprobs(self.scores.scores),
            "input_token_logprobs": [
                [(logprob, token, None) for token, logprob in zip(score.tokens, score.logprobs, strict=True)]
                for score in self.scores.scores
            ],
        }


def _triples(logprobs: tuple[TokenLogprob, ...]) -> list[tuple[float, int, None]]:
    # The third is the token's text, which only a tokenizer knows.
    return [(item.logprob, item.token, None) for item in logprobs]


def _reason(finish: Finish) -> dict[str, Any]:
    reason: dict[str, Any] = {"type": finish.reason}
    if finish.reason == "length":
        reason["length"] = finish.completion_tokens
    elif finish.matched is not None:
        reason["matched"] = finish.matched
    if finish.message:
        reason["message"] = finish.message
    return reason
