"""The fields both OpenAI routes share, and what they mean as sampling parameters."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..errors import InvalidRequest
from ..messages import Finish
from ..sampling import SamplingParams
from .constraints import constraint_of, schema_text
from .fields import expect_name, stops
from .options import GatewayOptions
from .refusal import Refusal
from .service import Service

__all__ = [
    "IGNORED",
    "PRIORITY",
    "OpenAIFields",
    "StreamOptions",
    "expect_choices",
    "expect_model",
    "sampling_of",
    "usage",
]

PRIORITY = "priorities are not supported; tenants take turns, and what a client waits for least goes first"
"""What whoever gives one is told."""

IGNORED = frozenset(
    {"metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
     "service_tier", "store", "user"}
)  # fmt: skip
"""Accepted and dropped: none of them has a bearing on the text."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """include_usage: end the stream with an event that counts tokens.  include_obfuscation: no effect on the text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class OpenAIFields(msgspec.Struct, kw_only=True):
    """What completions and chat completions have in common.  The second group is ours, beyond OpenAI's."""

    model: str = ""
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    response_format: dict[str, Any] | None = None

    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    stop_regex: str | list[str] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    regex: str | None = None
    json_schema: str | dict[str, Any] | None = None
    ebnf: str | None = None
    rid: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None


def sampling_of(
    service: Service,
    fields: OpenAIFields,
    *,
    max_tokens: int,
    max_name: str,
    logprobs: int | None,
    logprobs_name: str,
    echo: bool = False,
    heal: bool = False,
) -> SamplingParams:
    """Build and check the sampling parameters; errors carry OpenAI's names.  logprobs None wants none at all."""
    if fields.rid:
        expect_name(fields.rid)
    bound = {"regex": fields.regex, "json_schema": schema_text(fields.json_schema), "ebnf": fields.ebnf}
    constraint: dict[str, Any] = constraint_of(fields.response_format, bound)
    sampling = SamplingParams(
        max_new_tokens=max_tokens,
        min_new_tokens=fields.min_tokens,
        stop=stops(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids),
        stop_regex=stops(fields.stop_regex),
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=fields.logit_bias,
        ignore_eos=fields.ignore_eos,
        seed=fields.seed,
        **constraint,
        heal=heal,
        skip_special_tokens=fields.skip_special_tokens,
        return_logprob=logprobs is not None,
        top_logprobs_num=logprobs or 0,
        logprob_start=0 if echo and logprobs is not None else -1,
    )
    names = {"max_new_tokens": max_name, "min_new_tokens": "min_tokens", "top_logprobs_num": logprobs_name}
    try:
        service.verify(sampling)
    except InvalidRequest as error:
        field = names.get(error.field, error.field)
        message = str(error).removeprefix(f"{error.field}: ")
        raise InvalidRequest(field, re.sub(r"\w+", lambda word: names.get(word[0], word[0]), message)) from error
    return sampling


def expect_choices(n: int, prompts: int, options: GatewayOptions) -> None:
    """Refuse more choices than one request may ask for."""
    if not 1 <= n <= options.choices:
        raise InvalidRequest("n", f"{n} is outside 1 to {options.choices}")
    if n * prompts > options.sequences:
        raise InvalidRequest(
            "n",
            f"{n} choices of {prompts} prompts are {n * prompts} sequences; one request may have {options.sequences}",
        )


def expect_model(service: Service, model: str) -> None:
    """Refuse a model that is not served: an answer from another one would look like its own."""
    if model not in ("", "default", service.name):
        raise Refusal(
            404, f"model: {model!r:.200} is not served here; this server has {service.name!r} (or 'default')",
            "not_found_error", param="model", code="model_not_found",
        )  # fmt: skip


def usage(finishes: list[list[Finish]]) -> dict[str, Any]:
    """Count tokens; finishes[i] are the choices of prompt i, whose prompt counts once."""
    prompt = sum(choices[0].prompt_tokens for choices in finishes)
    completion = sum(finish.completion_tokens for choices in finishes for finish in choices)
    cached = sum(choices[0].cached_tokens for choices in finishes)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
