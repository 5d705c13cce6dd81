"""What /generate takes and gives: SGLang's names for a generation, and its cumulative replies as deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...actors.errors import Aborted, GenerationFailed, InvalidRequest, Overloaded
from ...actors.messages import Delta, Finish, FinishReason, Healed, TokenLogprob
from ...actors.sampling import SamplingParams
from ...actors.stop_regex import StopSearch
from .fault import Fault

__all__ = ["NativeReply", "native_request"]

_BESIDE = frozenset(
    {"return_logprob", "top_logprobs_num", "logprob_start", "seed", "reasoning"}
)  # not in sampling_params, or renamed
_SAID = frozenset(  # always, so that no --preferred-sampling-params of an SGLang server come in their place
    {"max_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"}
)
_DEFAULTS = msgspec.structs.asdict(SamplingParams())


def native_request(prompt: str | Sequence[str | list[int]], sampling: SamplingParams) -> dict[str, Any]:
    """Give the body of /generate for a text, or a batch of texts or of arrays of token ids.

    What is left at its default is left out, but for the length and what tokens are drawn by.
    """
    params: dict[str, Any] = {
        field: value
        for field, value in msgspec.structs.asdict(sampling).items()
        if field not in _BESIDE and (value != _DEFAULTS[field] or field in _SAID)
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    ids = not isinstance(prompt, str) and any(not isinstance(one, str) for one in prompt)
    body: dict[str, Any] = {"input_ids" if ids else "text": prompt, "sampling_params": params}
    if sampling.reasoning is not None:
        body["require_reasoning"] = True
    if sampling.return_logprob or sampling.logprob_start >= 0:
        body |= {
            "return_logprob": True,
            "logprob_start_len": sampling.logprob_start,
            "top_logprobs_num": sampling.top_logprobs_num,
        }
    return body


class NativeReply:
    """Turn events, each with everything so far, into deltas.

    incremental: whether the server sends only what is new.  Text that may turn out to be the beginning of a stop is
    held back: SGLang streams it, and takes it back at the end.
    """

    def __init__(self, who: str, sampling: SamplingParams, *, incremental: bool = False) -> None:
        self._who = who
        self._stops = sampling.stop
        self._search = StopSearch(sampling.stop_regex) if sampling.stop_regex else None
        self._searched = 0  # characters
        self._stop_at: int | None = None  # where a stop expression matched: the server is about to end there
        self._incremental = incremental
        self._text = ""  # all of it so far
        self._given = 0  # characters
        self._tokens = 0
        self._logprobs = 0
        self._input_logprobs = False

    def add(self, event: dict[str, Any]) -> Delta:
        """Take an event; raises Fault if it says that the generation failed, or takes back what was given."""
        meta: dict[str, Any] = event.get("meta_info") or {}
        text, ids = str(event.get("text") or ""), event.get("output_ids") or []
        given = self._text[: self._given]
        self._text = self._text + text if self._incremental else text
        finish = self._finish(meta)
        sure = len(self._text) if finish is not None else self._sure()
        if not self._text.startswith(given):
            raise Fault(GenerationFailed(f"{self._who} took back text that it had streamed"))
        new_text = self._text[self._given : sure]
        self._given = max(self._given, sure)
        new_ids = ids if self._incremental else ids[self._tokens :]
        self._tokens += len(new_ids)
        return Delta(
            text=new_text,
            tokens=tuple(new_ids),
            logprobs=self._new_logprobs(meta),
            input_logprobs=self._new_input_logprobs(meta),
            finish=finish,
        )

    def _sure(self) -> int:
        """Say how much of the text no stop string can still take away."""
        text = self._text
        held = 0
        if self._search is not None and self._stop_at is None:
            found = self._search.feed(text[self._searched :])
            self._searched = len(text)
            held = self._search.held
            if found is not None:
                self._stop_at = found.start
        if self._stop_at is not None:
            return max(self._given, self._stop_at)
        for stop in self._stops:
            for length in range(min(len(stop), len(text)), held, -1):
                if text.endswith(stop[:length]):
                    held = length
                    break
        return len(text) - held

    def _new_logprobs(self, meta: dict[str, Any]) -> tuple[TokenLogprob, ...]:
        all_of_them = _logprobs(meta, "output")
        new = all_of_them if self._incremental else all_of_them[self._logprobs :]
        self._logprobs += len(new)
        return new

    def _new_input_logprobs(self, meta: dict[str, Any]) -> tuple[TokenLogprob, ...]:
        if self._input_logprobs or not meta.get("input_token_logprobs"):
            return ()
        self._input_logprobs = True
        return _logprobs(meta, "input")

    def _finish(self, meta: dict[str, Any]) -> Finish | None:
        reason = meta.get("finish_reason")
        if reason is None:
            return None
        told: dict[str, Any] = reason if isinstance(reason, dict) else {"type": reason}
        kind = told.get("type")
        message = str(told.get("message") or "")
        if kind == "abort":
            raise Fault(_aborted(told.get("status_code"), f"{self._who}: {message or 'the generation was aborted'}"))
        if kind == "error":
            raise Fault(GenerationFailed(f"{self._who}: {message or 'the generation failed'}"))
        healed = meta.get("healed")
        named: FinishReason = "length" if kind == "length" else "stop"
        return Finish(
            reason=named,
            matched=told.get("matched"),
            message=message,
            prompt_tokens=int(meta.get("prompt_tokens") or 0),
            cached_tokens=int(meta.get("cached_tokens") or 0),
            completion_tokens=int(meta.get("completion_tokens") or 0),
            retractions=int(meta.get("num_retractions") or 0),
            healed=None if healed is None else msgspec.convert(healed, Healed),
            tail=self._text,  # which of the tokens lie wholly inside the text is not told
        )


def _aborted(status: Any, words: str) -> Exception:
    if status == 400:
        return InvalidRequest("request", words)
    if status in (429, 503):
        return Overloaded(words)
    return Aborted(words)


def _logprobs(meta: dict[str, Any], side: str) -> tuple[TokenLogprob, ...]:
    """Read (logprob, id, text) triples; a token behind nothing has none, and is left out."""
    triples: list[Any] = meta.get(f"{side}_token_logprobs") or []
    tops: list[Any] = meta.get(f"{side}_top_logprobs") or []
    found: list[TokenLogprob] = []
    for index, triple in enumerate(triples):
        if triple[0] is None:
            continue
        top = (tops[index] if index < len(tops) else None) or []
        found.append(TokenLogprob(token=triple[1], logprob=triple[0], top=tuple((other[1], other[0]) for other in top)))
    return tuple(found)
