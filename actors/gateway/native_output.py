"""One generation as /generate tells it: everything so far, each time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..messages import Delta, Finish, TokenLogprob
from .constraints import cut_mark
from .generation import Work
from .room import Room
from .token_text import TokenText

__all__ = ["NativeOutput"]


class NativeOutput:
    """One generation as its client sees it.  texts: whether log-probabilities come with their tokens' texts."""

    def __init__(self, room: Room, work: Work, *, texts: bool) -> None:
        sampling = work.sampling
        self._tag = work.tag
        self._prompt_tokens = len(work.prompt) // 4
        self._began = time.monotonic()
        self._text = ""
        self._tokens: list[int] = []
        self._finish: Finish | None = None
        self._input: _Logprobs | None = None
        self._output: _Logprobs | None = None
        if sampling.return_logprob:
            token_text = room.token_text if texts else None
            self._input = _Logprobs(token_text, top=sampling.top_logprobs_num > 0)
            self._output = _Logprobs(token_text, top=sampling.top_logprobs_num > 0)

    async def add(self, delta: Delta) -> None:
        """Take what is new."""
        self._text += delta.text
        self._tokens.extend(delta.tokens)
        self._finish = delta.finish
        if self._input is not None and self._output is not None:
            await self._input.add(delta.input_logprobs)
            await self._output.add(delta.logprobs)

    @property
    def ended(self) -> bool:
        return self._finish is not None

    def reply(self) -> dict[str, Any]:
        """Give the JSON object of all that came."""
        finish = self._finish
        meta: dict[str, Any] = {
            "id": self._tag,
            "finish_reason": None if finish is None else _reason(finish),
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": len(self._tokens) if finish is None else finish.completion_tokens,
            "e2e_latency": time.monotonic() - self._began,
        }
        if finish is not None:  # known at the end; until then no figure is better than a wrong one
            meta |= {"cached_tokens": finish.cached_tokens, "num_retractions": finish.retractions}
            if finish.healed is not None:
                meta["healed"] = msgspec.to_builtins(finish.healed)
        if self._input is not None and self._output is not None:
            meta |= self._input.fields("input")
            meta |= self._output.fields("output")
            meta["output_token_logprobs_length"] = self._output.count
        return {"text": self._text, "output_ids": self._tokens, "meta_info": meta}


def _reason(finish: Finish) -> dict[str, Any]:
    if finish.reason == "length":
        return {"type": "length", "length": finish.completion_tokens, **cut_mark(finish)}
    return {"type": finish.reason, "matched": finish.matched}


class _Logprobs:
    """The log-probabilities of a prompt or an output: [log-probability, token id, text] each."""

    def __init__(self, texts: TokenText | None, *, top: bool) -> None:
        self.count = 0
        self._texts = texts
        self._chosen = _Array()
        self._top = _Array() if top else None

    async def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        if self._texts is not None:
            await self._texts.learn(logprobs)
        self.count += len(logprobs)
        self._chosen.extend(self._triple(one.token, one.logprob) for one in logprobs)
        if self._top is not None:
            self._top.extend([self._triple(token, logprob) for token, logprob in one.top] for one in logprobs)

    def _triple(self, token: int, logprob: float) -> tuple[float, int, str | None]:
        return logprob, token, None if self._texts is None else self._texts.of(token)

    def fields(self, side: str) -> dict[str, msgspec.Raw]:
        chosen = {f"{side}_token_logprobs": self._chosen.json}
        return chosen if self._top is None else {**chosen, f"{side}_top_logprobs": self._top.json}


class _Array:
    """A JSON array that grows: what is sent again with each event is encoded once."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items = bytearray(b"[")

    def extend(self, items: Iterable[Any]) -> None:
        new = msgspec.json.encode(list(items))[1:-1]
        if new and len(self._items) > 1:
            self._items += b","
        self._items += new

    @property
    def json(self) -> msgspec.Raw:
        return msgspec.Raw(self._items + b"]")
