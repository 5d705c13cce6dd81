"""One variable of a program: asked for, being written, or there; and what is known of how it came about."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec

from ..actors.backend import Scores
from ..actors.errors import InvalidRequest
from ..actors.messages import Delta, Finish, TokenLogprob
from .choices import ChoicesMethod, mean_logprobs

__all__ = ["Choice", "Generation", "Variable"]


class Variable(msgspec.Struct, eq=False):
    """Hold a value that may not be there yet. Whoever makes it `ready` rings the stream's bell.

    parts: of several texts, one each; its value is then their list.  heard: what came of it so far, if that is no part
    of the program's text.  start: where in the text its value begins, once it is being written.
    origin: what it came from; a list if it was gathered from branches, one each.
    """

    parts: tuple[Variable, ...] = ()
    heard: str | None = None
    ready: bool = False
    value: Any = None
    start: int | None = None
    origin: Generation | Choice | list[Any] | None = None

    def set(self, value: Any) -> None:
        self.value = value
        self.ready = True

    def meta_info(self) -> Any:
        """Tell how it came about, as far as that is known now; None if nothing generated it."""
        return _meta_info(self.origin)


class Generation(msgspec.Struct, eq=False, gc=False):
    """Gather what the deltas of one generation tell; the text only if `parse` is to read it.

    texts: of the tokens that log-probabilities tell of, if asked for.
    """

    parse: Callable[[str], Any] | None = None
    text: str = ""
    tokens: array[int] | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    input_logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    texts: Mapping[int, str] | None = None

    def scored_tokens(self) -> Iterator[int]:
        """Give every token that log-probabilities tell of."""
        for item in (*self.input_logprobs, *self.logprobs):
            yield item.token
            yield from (token for token, _ in item.top)

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

    def meta_info(self, since: int = 0) -> dict[str, Any]:
        """Give SGLang's names for it; finish_reason is None while it goes on.

        since: how many log-probabilities of the output are told already; output_token_logprobs_length is that of all.
        """
        finish = self.finish
        inside = 0 if finish is None or finish.healed is None else finish.healed.inside
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
        if self.tokens is not None or (finish is not None and not finish.completion_tokens):
            meta["output_ids"] = list(self.tokens or ())[inside:]
        if finish is not None and finish.healed is not None:
            meta["healed"] = finish.healed.text
        if self.logprobs:
            told = self.logprobs[max(inside, since) :]
            meta["output_token_logprobs_length"] = len(self.logprobs) - inside
            meta["output_token_logprobs"] = [self._triple(item.token, item.logprob) for item in told]
            meta["output_top_logprobs"] = [self._tops(item) for item in told]
        if self.input_logprobs:
            meta["input_token_logprobs"] = [self._triple(item.token, item.logprob) for item in self.input_logprobs]
            meta["input_top_logprobs"] = [self._tops(item) for item in self.input_logprobs]
        if finish is not None and self.parse is not None:
            self._add_parsed(meta, self.parse)
        return meta

    def _triple(self, token: int, logprob: float) -> tuple[float, int, str | None]:
        return logprob, token, None if self.texts is None else self.texts.get(token)

    def _tops(self, item: TokenLogprob) -> list[tuple[float, int, str | None]]:
        return [self._triple(token, logprob) for token, logprob in item.top]

    def _add_parsed(self, meta: dict[str, Any], parse: Callable[[str], Any]) -> None:
        """Tell the value the text stands for; None, with the reason, if a limit or a stop string has cut it."""
        meta["parsed"] = None
        try:
            meta["parsed"] = parse(self.text)
        except (ValueError, KeyError, msgspec.MsgspecError) as error:
            meta["parse_error"] = str(error)


class Choice:
    """Choose one of several scored texts, and keep the scores it was chosen by."""

    __slots__ = ("_meta", "index", "scores")

    def __init__(self, scores: Scores, method: ChoicesMethod) -> None:
        """Raise InvalidRequest if a text has no token that could be scored."""
        if unscored := [score.text for score in scores.scores if not score.logprobs]:
            raise InvalidRequest(
                "choices",
                f"{unscored[0]!r:.80} begins the whole text, so nothing tells how likely it is; say some first",
            )
        decision = method.decide(scores.scores)
        if not 0 <= decision.index < len(scores.scores):
            raise InvalidRequest(
                "choices_method", f"{method.name} chose number {decision.index} of {len(scores.scores)}"
            )
        self.scores = scores
        self.index = decision.index
        self._meta = decision.meta

    def meta_info(self) -> dict[str, Any]:
        """Give SGLang's names for it, one entry a choice; output_ids are those of the chosen text."""
        return {
            "output_ids": list(self.scores.scores[self.index].tokens),
            "prompt_tokens": self.scores.prompt_tokens,
            "cached_tokens": self.scores.cached_tokens,
            "normalized_prompt_logprobs": mean_logprobs(self.scores.scores),
            "input_token_logprobs": [
                [(logprob, token, None) for token, logprob in zip(score.tokens, score.logprobs, strict=True)]
                for score in self.scores.scores
            ],
            "output_token_logprobs": [[] for _ in self.scores.scores],  # nothing is generated
            **self._meta,
        }


def _meta_info(origin: Any) -> Any:
    if isinstance(origin, list):  # of several texts, or of several branches, which may have either
        return [_meta_info(one) for one in cast("list[Any]", origin)]
    return None if origin is None else origin.meta_info()


def _reason(finish: Finish) -> dict[str, Any]:
    reason: dict[str, Any] = {"type": finish.reason}
    if finish.reason == "length":
        reason["length"] = finish.completion_tokens
    elif finish.matched is not None:
        reason["matched"] = finish.matched
    if finish.message:
        reason["message"] = finish.message
    return reason
