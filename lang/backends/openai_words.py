"""OpenAI's words, which others speak too: the settings of a request, and the chunks of an answer."""

from __future__ import annotations

from typing import Any

import msgspec

from ...actors.errors import GenerationFailed
from ...actors.messages import Finish
from ...actors.sampling import SamplingParams
from .fault import Fault

__all__ = ["SETTINGS", "ChunkReader", "settings"]

SETTINGS = frozenset({
    "max_new_tokens", "stop", "temperature", "top_p", "frequency_penalty", "presence_penalty", "logit_bias", "seed",
})  # fmt: skip
"""The fields of SamplingParams there are words for, beside json_schema, which chat models alone have."""
_DEFAULTS = msgspec.structs.asdict(SamplingParams())


def settings(sampling: SamplingParams) -> dict[str, Any]:
    """Give what differs from the default, which is the vendors' too: some models refuse even that by name.

    The length goes by several names, and is left out here.
    """
    given: dict[str, Any] = {
        field: getattr(sampling, field)
        for field in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
        if getattr(sampling, field) != _DEFAULTS[field]
    }
    if sampling.stop:
        given["stop"] = list(sampling.stop)
    if sampling.logit_bias:
        given["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.json_schema is not None:
        schema = {"name": "answer", "schema": msgspec.json.decode(sampling.json_schema), "strict": True}
        given["response_format"] = {"type": "json_schema", "json_schema": schema}
    return given


class ChunkReader:
    """Read the chunks of a stream, a chat's or a completion's."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._reason: str | None = None
        self._usage: Any = None

    def text(self, chunk: Any) -> str:
        """Give a chunk's text, if it has any."""
        self._usage = getattr(chunk, "usage", None) or self._usage
        for choice in chunk.choices[:1]:
            self._reason = choice.finish_reason or self._reason
            delta = getattr(choice, "delta", None)
            return (choice.text if delta is None else delta.content) or ""
        return ""

    def finish(self) -> Finish | None:
        """Say how the stream ended; None if it ended too early.  Fault if a filter has ended it."""
        reason, usage = self._reason, self._usage
        if reason is None:
            return None
        if reason == "content_filter":
            raise Fault(GenerationFailed(f"{self._who}: the answer was stopped by the service's content filter"))
        details = getattr(usage, "prompt_tokens_details", None)
        return Finish(
            reason="length" if reason == "length" else "stop",
            message="" if reason in ("stop", "length") else reason,
            prompt_tokens=getattr(usage, "prompt_tokens", 0) or 0,
            cached_tokens=getattr(details, "cached_tokens", 0) or 0,
            completion_tokens=getattr(usage, "completion_tokens", 0) or 0,
        )
