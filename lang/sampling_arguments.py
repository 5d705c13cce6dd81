"""The arguments of `gen` and `run` by the names users know, turned into the fields of SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..actors.errors import InvalidRequest
from ..actors.sampling import SamplingParams

__all__ = ["RUN_ARGUMENTS", "gen_options", "resolve", "run_defaults"]

# user's name -> field, where they differ
_FIELDS = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "logprob_start_len": "logprob_start"}
_USER_NAMES = {field: name for name, field in _FIELDS.items()}

# What is asked for by name and not served yet; the values that ask for nothing.
_LATER: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "stop_regex": (None, (), []),
    "dtype": (None, str, "str"),
    "json_schema": (None,),
    "return_text_in_logprobs": (None, False),
}

RUN_ARGUMENTS = frozenset(SamplingParams.__struct_fields__) - {"regex", "logprob_start", "skip_special_tokens"} | {
    "logprob_start_len",
    "n",
    "stop_regex",
    "return_text_in_logprobs",
}
"""The sampling arguments that `run` and its kin accept beside a program's own."""


def gen_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Give the fields that `gen` was asked to set; raises InvalidRequest, naming the argument as `gen` calls it."""
    options = _fields(arguments)
    try:
        probe = SamplingParams(**options)
        if "max_new_tokens" not in options:  # how many the run allows is not known yet
            probe = msgspec.structs.replace(probe, max_new_tokens=1 << 24)
        probe.verify()
    except InvalidRequest as error:
        raise _renamed(error) from None
    return options


def run_defaults(arguments: Mapping[str, Any]) -> SamplingParams:
    """Give a run's defaults; raises InvalidRequest for an unknown name or a bad value."""
    unknown = [name for name in arguments if name not in RUN_ARGUMENTS]
    if unknown:
        raise InvalidRequest(unknown[0], f"no such argument; the sampling arguments are {', '.join(sorted(RUN_ARGUMENTS))}")
    defaults = SamplingParams(**_fields(arguments))
    defaults.verify()
    return defaults


def resolve(defaults: SamplingParams, options: dict[str, Any]) -> SamplingParams:
    """Give the parameters of one generation: the run's defaults, overridden by what `gen` asked for."""
    if not options:
        return defaults
    sampling = msgspec.structs.replace(defaults, **options)
    try:
        sampling.verify()
    except InvalidRequest as error:
        raise _renamed(error) from None
    return sampling


def _fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in _LATER:
            if not any(value is nothing or value == nothing for nothing in _LATER[name]):
                raise InvalidRequest(name, f"{value!r:.80} is not supported yet; leave it out")
        elif value is not None:
            fields[_FIELDS.get(name, name)] = _value(name, value)
    return fields


def _value(name: str, value: Any) -> Any:
    """Copy what the user may change later; check only what SamplingParams cannot."""
    if name == "stop":
        if isinstance(value, str):
            return (value,)
        return _tuple(name, value, "a string or a list of strings")
    if name == "stop_token_ids":
        return _tuple(name, value, "a list of token ids")
    if name == "logit_bias":
        try:
            return {int(token): bias for token, bias in value.items()}
        except (AttributeError, TypeError, ValueError):
            raise InvalidRequest(name, f"{value!r:.80} does not map token ids to numbers") from None
    if name in {"ignore_eos", "return_logprob"} and not isinstance(value, bool):
        raise InvalidRequest(name, f"{value!r:.80} is neither True nor False")
    if name == "seed" and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidRequest(name, f"{value!r:.80} is not an integer")
    return value


def _tuple(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise InvalidRequest(name, f"{value!r:.80} is not {wanted}")
    return tuple(value)


def _renamed(error: InvalidRequest) -> InvalidRequest:
    name = _USER_NAMES.get(error.field, error.field)
    words = str(error)[len(error.field) + 2 :]
    for field, user_name in _USER_NAMES.items():
        words = words.replace(field, user_name)
    return InvalidRequest(name, words)
