"""`gen` and `select`: what a program leaves to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from ..actors.errors import InvalidRequest
from ..actors.sampling import SamplingLimits
from .choices import ChoicesMethod, choices_method_named
from .constraints import settle_constraints
from .expression import Gen, Select
from .sampling_arguments import gen_options

__all__ = ["gen", "gen_int", "gen_string", "select"]

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN = frozenset({str, int, float, bool, type(None)})


def _remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Give what the function gave before for the same plain arguments, types included; what it gives is frozen.

    A program says the same `gen` every time it runs.  Others than plain arguments may be equal and yet not the same
    ((1,) and (True,)), or change.
    """
    remembering = lru_cache(maxsize=1024, typed=True)(function)

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        if _PLAIN.issuperset(map(type, arguments)) and _PLAIN.issuperset(map(type, keywords.values())):
            return remembering(*arguments, **keywords)
        return function(*arguments, **keywords)

    return call


@_remembered
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Iterable[str] | None = None,
    choices_method: ChoicesMethod | str | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | type | None = None,
    *,
    ebnf: str | None = None,
    structural_tag: str | Mapping[str, Any] | None = None,
    seed: int | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    heal: bool | None = None,
) -> Gen | Select:
    """Generate text and keep it under `name`; what is None here is the run's default.

    n: how many texts; of several, the value is their list, and the program goes on with the first.
    structural_tag: free text with tags in it, each begun by a trigger and filled by a schema; JSON text or its object.
    heal: let the model write the last token or two of the text before it again, where a longer one might stand there.
    return_text_in_logprobs: put each token's text beside its log-probability, if the backend tells it.

    With `choices` it chooses instead, as `select` does.  Raises InvalidRequest, naming the argument.
    """  # the body must define nothing before it takes its locals
    if choices is not None:
        asked = {"regex": regex, "json_schema": json_schema, "ebnf": ebnf, "structural_tag": structural_tag}
        if (bound := _first_of(**asked, dtype=dtype)) is not None:
            raise InvalidRequest(bound, f"a choice among texts takes no {bound}; give one of the two")
        return select(name, choices, temperature or 0.0, choices_method)
    if choices_method is not None:
        raise InvalidRequest("choices_method", "it says how to choose among `choices`, and there are none")
    del choices, choices_method
    arguments = locals()
    name = _name(arguments.pop("name"))
    parse = settle_constraints(arguments)
    return Gen(name, gen_options([item for item in arguments.items() if item[1] is not None]), parse)


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> Gen:
    """Generate a whole number, as `gen(dtype=int)` does."""
    return _typed(int, locals())


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> Gen:
    """Generate a string in double quotes, as `gen(dtype=str)` does."""
    return _typed(str, locals())


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str | None = None,
) -> Select:
    """Choose the text the model finds most likely here; the first wins a tie.

    choices_method: how likely a text is, token_length_normalized (the mean log-probability of its tokens) if left out;
    a method, or its name.  A choice is not sampled: temperature is 0, whatever the run's is.
    """
    if choices is None or isinstance(choices, str):
        raise InvalidRequest("choices", f"a list of texts is needed; got {choices!r:.80}")
    texts = tuple(choices)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InvalidRequest("choices", f"at least one text is needed, and none may be empty; got {texts!r:.80}")
    if len(texts) > (most := SamplingLimits().choices):
        raise InvalidRequest("choices", f"{len(texts)} given, at most {most} allowed")
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature <= 1e-5:
        raise InvalidRequest("temperature", f"{temperature!r:.80} given; a choice is not sampled, so only 0 is allowed")
    return Select(_name(name), texts, choices_method_named(choices_method))


def _typed(dtype: type, arguments: dict[str, Any]) -> Gen:
    made = gen(dtype=dtype, **arguments)
    assert isinstance(made, Gen), "without choices it is one"
    return made


def _first_of(**arguments: Any) -> str | None:
    return next((name for name, value in arguments.items() if value is not None), None)


def _name(name: Any) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidRequest("name", f"{name!r:.80} is not a non-empty string")
    return name
