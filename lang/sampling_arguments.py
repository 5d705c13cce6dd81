"""The arguments of `gen` and `run` by the names users know, turned into the fields of SamplingParams."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from ..actors.backend import Backend
from ..actors.errors import InvalidRequest
from ..actors.sampling import CONSTRAINTS, SamplingLimits, SamplingParams
from .constraints import dtype_fields

__all__ = ["RUN_ARGUMENTS", "Asked", "Defaults", "Options", "gen_options"]

# user's name -> field, where they differ
_FIELDS = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "logprob_start_len": "logprob_start"}
_USER_NAMES = {field: name for name, field in _FIELDS.items()}

# What is asked for beside a generation's own parameters.
_BESIDE = frozenset({"n", "return_text_in_logprobs"})

RUN_ARGUMENTS = (
    frozenset(SamplingParams.__struct_fields__)
    - {*CONSTRAINTS, "logprob_start", "skip_special_tokens", "heal", "begin", "reasoning"}
    | {"logprob_start_len"}
    | _BESIDE
)
"""The sampling arguments that `run` and its kin accept beside a program's own."""


Options = tuple[tuple[str, Any], ...]
"""Fields of SamplingParams with their values, n and return_text_in_logprobs; hashable, logit_bias as pairs.

dtype stands for a regex and stops.
"""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What is asked of one generation: its parameters, how many texts, and whether tokens come with their texts."""

    sampling: SamplingParams
    count: int = 1
    texts: bool = False


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

    __slots__ = ("_backend", "_beside", "_resolved", "overrun_tokens", "sampling")

    def __init__(
        self, arguments: Mapping[str, Any], backend: Backend, *, skip_special_tokens: bool = True,
        overrun_tokens: int | None = None,
    ) -> None:  # fmt: skip
        """Raise InvalidRequest for an unknown name or a bad value.  overrun_tokens: as `num_api_spec_tokens`."""
        self.overrun_tokens = overrun_tokens
        unknown = [name for name in arguments if name not in RUN_ARGUMENTS]
        if unknown:
            known = ", ".join(sorted(RUN_ARGUMENTS))
            raise InvalidRequest(unknown[0], f"no such argument; the sampling arguments are {known}")
        fields = tuple(_fields(arguments.items()))
        self.sampling = _apply(SamplingParams(skip_special_tokens=skip_special_tokens), fields)
        self.sampling.verify()
        self._beside = {name: value for name, value in fields if name in _BESIDE}
        self._backend = weakref.ref(backend)
        self._resolved: dict[Options, Asked] = {}

    def hold_for(self, backend: Backend) -> bool:
        """Whether these were made for `backend`."""
        return self._backend() is backend

    def resolve(self, options: Options, backend: Backend) -> Asked:
        """Give what one generation is asked: the run's, overridden by what `gen` asked for; all verified."""
        asked = self._resolved.get(options)
        if asked is None:
            sampling = _apply(self.sampling, options)
            if stops := backend.chat_template.stop:
                more = (stop for stop in stops if stop not in sampling.stop)
                sampling = msgspec.structs.replace(sampling, stop=(*sampling.stop, *more))
            _verify(sampling)
            backend.verify(sampling)
            beside = self._beside | {name: value for name, value in options if name in _BESIDE}
            asked = Asked(sampling, beside.get("n", 1), beside.get("return_text_in_logprobs", False))
            if asked.texts and not backend.knows_texts:
                told = f"{type(backend).__name__} does not tell its tokens' texts"
                raise InvalidRequest("return_text_in_logprobs", told)
            if len(self._resolved) >= 256:  # a program that never asks for the same thing twice
                self._resolved.clear()
            self._resolved[options] = asked
        return asked


def _apply(sampling: SamplingParams, options: Options) -> SamplingParams:
    values = {name: value for name, value in options if name not in _BESIDE}
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
        if value is not None:
            fields.append((_FIELDS.get(name, name), _value(name, value) if name in _SHAPED else value))
    return fields


def _value(name: str, value: Any) -> Any:
    """Copy what the user may change later, to something hashable; check what SamplingParams does not."""
    if name == "n":
        most = SamplingLimits().candidates
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidRequest(name, f"{value!r:.80} is not a whole number of texts, 1 to {most}")
        return value
    if name in ("stop", "stop_regex"):
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
    elif not isinstance(value, bool):  # ignore_eos, return_logprob, return_text_in_logprobs
        raise InvalidRequest(name, f"{value!r:.80} is neither True nor False")
    return value


_SHAPED = _BESIDE | {
    "stop",
    "stop_regex",
    "stop_token_ids",
    "logit_bias",
    "ignore_eos",
    "return_logprob",
    "seed",
    "heal",
}


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
