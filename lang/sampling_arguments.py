"""The arguments of `gen` and `run` by the names users know, turned into the fields of SamplingParams."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from ..actors.backend import Backend
from ..actors.errors import InvalidRequest
from ..actors.sampling import CONSTRAINTS, SamplingParams
from .constraints import dtype_fields

__all__ = ["RUN_ARGUMENTS", "Defaults", "Options", "gen_options"]

# user's name -> field, where they differ
_FIELDS = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "logprob_start_len": "logprob_start"}
_USER_NAMES = {field: name for name, field in _FIELDS.items()}

# What is asked for by name and not served yet; the values that ask for nothing.
_LATER: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "stop_regex": (None, (), []),
    "return_text_in_logprobs": (None, False),
}

RUN_ARGUMENTS = frozenset(SamplingParams.__struct_fields__) - {*CONSTRAINTS, "logprob_start", "skip_special_tokens"} | {
    "logprob_start_len",
    "n",
    "stop_regex",
    "return_text_in_logprobs",
}
"""The sampling arguments that `run` and its kin accept beside a program's own."""


Options = tuple[tuple[str, Any], ...]
"""Fields of SamplingParams with their values; hashable, logit_bias as pairs.  dtype stands for a regex and stops."""


def gen_options(arguments: Iterable[tuple[str, Any]]) -> Options:
    """Give the fields that `gen` was asked to set; raises InvalidRequest, naming the argument as `gen` calls it."""
    return _checked(tuple([(name, type(value), value) for name, value in _fields(arguments)]))


@lru_cache(maxsize=1024)  # programs ask for the same few things again and again; types tell 1 from True
def _checked(fields: tuple[tuple[str, type, Any], ...]) -> Options:
    options = tuple((name, value) for name, _, value in fields)
    probe = _apply(SamplingParams(), options)
    if not any(name == "max_new_tokens" for name, _ in options):  # how many the run allows is not known yet
        probe = msgspec.structs.replace(probe, max_new_tokens=1 << 24)
    _verify(probe)
    return options


class Defaults:
    """What a run asks of every generation in it, on one backend."""

    __slots__ = ("_backend", "_resolved", "sampling")

    def __init__(self, arguments: Mapping[str, Any], backend: Backend) -> None:
        """Raise InvalidRequest for an unknown name or a bad value."""
        unknown = [name for name in arguments if name not in RUN_ARGUMENTS]
        if unknown:
            known = ", ".join(sorted(RUN_ARGUMENTS))
            raise InvalidRequest(unknown[0], f"no such argument; the sampling arguments are {known}")
        self.sampling = _apply(SamplingParams(), tuple(_fields(arguments.items())))
        self.sampling.verify()
        self._backend = weakref.ref(backend)
        self._resolved: dict[Options, SamplingParams] = {}

    def hold_for(self, backend: Backend) -> bool:
        """Whether these were made for `backend`."""
        return self._backend() is backend

    def resolve(self, options: Options, backend: Backend) -> SamplingParams:
        """Give the parameters of one generation: the run's, overridden by what `gen` asked for; all verified."""
        sampling = self._resolved.get(options)
        if sampling is None:
            sampling = _apply(self.sampling, options)
            _verify(sampling)
            backend.verify(sampling)
            if len(self._resolved) >= 256:  # a program that never asks for the same thing twice
                self._resolved.clear()
            self._resolved[options] = sampling
        return sampling


def _apply(sampling: SamplingParams, options: Options) -> SamplingParams:
    values = dict(options)
    if "logit_bias" in values:
        values["logit_bias"] = dict(values["logit_bias"])
    if "dtype" in values:
        values["regex"], stops = dtype_fields(values.pop("dtype"))
        values["stop"] = (*values.get("stop", sampling.stop), *stops)
    return msgspec.structs.replace(sampling, **values)


def _verify(sampling: SamplingParams) -> None:
    try:
        sampling.verify()
    except InvalidRequest as error:
        raise _renamed(error) from None


def _fields(arguments: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    for name, value in arguments:
        if name in _LATER:
            if not any(value is nothing or value == nothing for nothing in _LATER[name]):
                raise InvalidRequest(name, f"{value!r:.80} is not supported yet; leave it out")
        elif value is not None:
            fields.append((_FIELDS.get(name, name), _value(name, value) if name in _SHAPED else value))
    return fields


def _value(name: str, value: Any) -> Any:
    """Copy what the user may change later, to something hashable; check what SamplingParams does not."""
    if name == "stop":
        return (value,) if isinstance(value, str) else _tuple(name, value, str, "a string or a list of strings")
    if name == "stop_token_ids":
        return _tuple(name, value, int, "a list of token ids")
    if name == "logit_bias":
        try:
            pairs = tuple((int(token), bias) for token, bias in value.items())
        except (AttributeError, TypeError, ValueError):
            raise InvalidRequest(name, f"{value!r:.80} does not map token ids to numbers") from None
        return pairs
    if name == "seed":
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequest(name, f"{value!r:.80} is not an integer")
    elif not isinstance(value, bool):  # ignore_eos, return_logprob
        raise InvalidRequest(name, f"{value!r:.80} is neither True nor False")
    return value


_SHAPED = frozenset({"stop", "stop_token_ids", "logit_bias", "ignore_eos", "return_logprob", "seed"})


def _tuple(name: str, value: Any, kind: type, wanted: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple, set, frozenset)) or any(type(item) is bool for item in value):
        raise InvalidRequest(name, f"{value!r:.80} is not {wanted}")
    if not all(isinstance(item, kind) for item in value):
        raise InvalidRequest(name, f"{value!r:.80} is not {wanted}")
    return tuple(value)


def _renamed(error: InvalidRequest) -> InvalidRequest:
    name = _USER_NAMES.get(error.field, error.field)
    words = str(error)[len(error.field) + 2 :]
    for field, user_name in _USER_NAMES.items():
        words = words.replace(field, user_name)
    return InvalidRequest(name, words)
