"""Sampling parameters: one struct for the language, the engine and the gateway."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .errors import InvalidRequest
from .reasoning import Markers
from .stop_regex import stop_regex

__all__ = ["CONSTRAINTS", "Constraint", "SamplingLimits", "SamplingParams"]

CONSTRAINTS = ("regex", "json_schema", "ebnf", "structural_tag")
"""The fields of SamplingParams that bind the text; a generation takes one of them."""


class Constraint(msgspec.Struct, frozen=True):
    """What a text must match, and the field it was given as.  reasoning: the markers of what may come before it."""

    kind: Literal["regex", "json_schema", "ebnf", "structural_tag"]
    source: str
    reasoning: Markers | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.source.encode())


class SamplingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Caps on what one request may ask for; every count a client sends has one."""

    stops: int = 32
    stop_characters: int = 256
    stop_token_ids: int = 256
    stop_regexes: int = 4
    stop_regex_characters: int = 256
    logit_biases: int = 1024
    top_logprobs: int = 20
    regex_bytes: int = 16_384
    grammar_bytes: int = 65_536
    choices: int = 512
    candidates: int = 128


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Say how tokens are drawn and when a generation ends.

    temperature 0 is greedy.  top_k -1 is all.  Penalties in [-2, 2] count output tokens;
    repetition_penalty in (0, 2] counts prompt and output tokens.  logit_bias maps token id to a
    bias in [-100, 100].  A text ends before the first of stop (strings) and stop_regex (expressions in Python's
    syntax, see `stop_regex`).  seed None lets the dispatcher draw one.  logprob_start is the prompt
    position from which input log-probabilities are wanted, -1 for none.  regex, json_schema (JSON text),
    ebnf (llguidance's Lark, or GBNF) or structural_tag (JSON text) bind the text; at most one of them.  reasoning: they
    bind only what comes behind reasoning between these markers.  heal: take back the prompt's last tokens
    where a longer one might stand in their place, and let the model write their text again.  begin is the engine's
    own: text that the output begins with and nobody is shown, for the prompt had it.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    ignore_eos: bool = False
    seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    reasoning: Markers | None = None
    heal: bool = False
    begin: str = ""
    skip_special_tokens: bool = True
    return_logprob: bool = False
    top_logprobs_num: int = 0
    logprob_start: int = -1

    @property
    def constraint(self) -> Constraint | None:
        """What binds the text, if anything does."""
        if self.begin:
            rest = "(?s:.*)" if self.regex is None else f"(?:{self.regex})"
            return Constraint("regex", _escaped(self.begin) + rest)
        if self.regex is not None:
            return Constraint("regex", self.regex, self.reasoning)
        if self.json_schema is not None:
            return Constraint("json_schema", self.json_schema, self.reasoning)
        if self.ebnf is not None:
            return Constraint("ebnf", self.ebnf, self.reasoning)
        tags = self.structural_tag
        return None if tags is None else Constraint("structural_tag", tags, self.reasoning)

    def spread(self, count: int) -> list[SamplingParams]:
        """Give each of `count` candidates a seed of its own, so that a seeded request repeats and they differ.

        The first keeps the seed; without one, each draws its own.
        """
        if count == 1 or self.seed is None:
            return [self] * count
        seeds = [(self.seed + index) & 0x7FFF_FFFF_FFFF_FFFF for index in range(count)]
        return [msgspec.structs.replace(self, seed=seed) for seed in seeds]

    def verify(self, *, vocabulary: int | None = None, limits: SamplingLimits | None = None) -> None:
        """Raise InvalidRequest naming the first field that is out of range; check ids against `vocabulary`."""
        limits = limits or SamplingLimits()
        for field, low, high in _INTEGERS:
            if (value := getattr(self, field)) is not getattr(_PLAIN, field):
                _integer(field, value, low, high)
        for field, low, high, open_low in _NUMBERS:
            if (value := getattr(self, field)) is not getattr(_PLAIN, field):
                _number(field, value, low, high, open_low=open_low)
        if self.min_new_tokens > self.max_new_tokens:
            raise InvalidRequest(
                "min_new_tokens", f"{self.min_new_tokens} is more than max_new_tokens, {self.max_new_tokens}"
            )
        if self.top_k != -1 and self.top_k < 1:
            raise InvalidRequest("top_k", f"{self.top_k} is neither -1 (all) nor at least 1")
        self._verify_stops(vocabulary, limits)
        self._verify_bias(vocabulary, limits)
        if self.top_logprobs_num > limits.top_logprobs:
            raise InvalidRequest("top_logprobs_num", f"{self.top_logprobs_num} is more than {limits.top_logprobs}")
        if self.constraint is not None:
            self._verify_constraint(limits)
        if not isinstance(self.heal, bool):
            raise InvalidRequest("heal", f"{self.heal!r:.80} is neither True nor False")
        if self.reasoning is not None and not _are_markers(self.reasoning):
            raise InvalidRequest("reasoning", f"{self.reasoning!r:.80} are no markers of 1 to 64 characters each")
        bound = ("json_schema", "ebnf", "structural_tag", "reasoning")
        if (self.heal or self.begin) and (other := _first_given(self, bound)):
            raise InvalidRequest("heal", f"{other} says itself how the text begins; only a regex goes with it")

    def _verify_stops(self, vocabulary: int | None, limits: SamplingLimits) -> None:
        if len(self.stop) > limits.stops:
            raise InvalidRequest("stop", f"{len(self.stop)} strings given, at most {limits.stops} allowed")
        for stop in self.stop:
            if not isinstance(stop, str) or not stop or len(stop) > limits.stop_characters:
                raise InvalidRequest(
                    "stop", f"{stop!r:.80} is not a string of 1 to {limits.stop_characters} characters"
                )
        if len(self.stop_token_ids) > limits.stop_token_ids:
            raise InvalidRequest("stop_token_ids", f"at most {limits.stop_token_ids} allowed")
        for token in self.stop_token_ids:
            _token("stop_token_ids", token, vocabulary)

        if len(self.stop_regex) > limits.stop_regexes:
            count = len(self.stop_regex)
            raise InvalidRequest("stop_regex", f"{count} expressions given, at most {limits.stop_regexes} allowed")
        for pattern in self.stop_regex:
            if not isinstance(pattern, str) or not 0 < len(pattern) <= limits.stop_regex_characters:
                most = limits.stop_regex_characters
                raise InvalidRequest("stop_regex", f"{pattern!r:.80} is not a string of 1 to {most} characters")
            stop_regex(pattern)

    def _verify_constraint(self, limits: SamplingLimits) -> None:
        first, *others = [field for field in CONSTRAINTS if getattr(self, field) is not None] or ["begin"]
        if others:
            raise InvalidRequest(others[0], f"{first} is given too; a generation takes one constraint")
        source: Any = getattr(self, first)
        if not isinstance(source, str) or not source:
            raise InvalidRequest(first, f"{source!r:.80} is not a non-empty string")
        most = limits.regex_bytes if first == "regex" else limits.grammar_bytes
        try:
            size = len(source.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest(first, f"it holds half a character: {error}") from None
        if size > most:
            raise InvalidRequest(first, f"{size} bytes given, at most {most} allowed")

    def _verify_bias(self, vocabulary: int | None, limits: SamplingLimits) -> None:
        if len(self.logit_bias) > limits.logit_biases:
            raise InvalidRequest("logit_bias", f"{len(self.logit_bias)} entries given, at most {limits.logit_biases}")
        for token, bias in self.logit_bias.items():
            _token("logit_bias", token, vocabulary)
            _number("logit_bias", bias, -100.0, 100.0)


_PLAIN = SamplingParams()  # most fields of most requests are as these, which need no looking at

# field, lowest, highest
_INTEGERS = (
    ("max_new_tokens", 0, 1 << 24),
    ("min_new_tokens", 0, 1 << 24),
    ("top_k", -1, 1 << 24),
    ("top_logprobs_num", 0, 1 << 24),
    ("logprob_start", -1, 1 << 24),
)
# field, lowest, highest, whether the lowest is excluded
_NUMBERS = (
    ("temperature", 0.0, 100.0, False),
    ("top_p", 0.0, 1.0, True),
    ("min_p", 0.0, 1.0, False),
    ("frequency_penalty", -2.0, 2.0, False),
    ("presence_penalty", -2.0, 2.0, False),
    ("repetition_penalty", 0.0, 2.0, True),
)


def _integer(field: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(field, f"{value!r} is not an integer")
    if not low <= value <= high:
        raise InvalidRequest(field, f"{value} is outside {low} to {high}")


def _number(field: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(field, f"{value!r} is not a number")
    if not (low < value if open_low else low <= value) or not value <= high:  # a NaN fails both
        bracket = "(" if open_low else "["
        raise InvalidRequest(field, f"{value} is outside {bracket}{low:g}, {high:g}]")


def _token(field: str, token: Any, vocabulary: int | None) -> None:
    if isinstance(token, bool) or not isinstance(token, int) or token < 0:
        raise InvalidRequest(field, f"{token!r} is not a token id")
    if vocabulary is not None and token >= vocabulary:
        raise InvalidRequest(field, f"token {token} is outside the vocabulary of {vocabulary}")


def _are_markers(given: Any) -> bool:
    return isinstance(given, Markers) and 0 < len(given.begin) <= 64 and 0 < len(given.end) <= 64


def _first_given(sampling: SamplingParams, fields: tuple[str, ...]) -> str | None:
    return next((field for field in fields if getattr(sampling, field) is not None), None)


def _escaped(text: str) -> str:
    """Write text as a regular expression that matches it and nothing else."""
    return "".join(_SPELT.get(character, character) for character in text)


_SPELT = {character: "\\" + character for character in r".+*?()|[]{}^$&~#/-" + "\\"} | {
    "\n": r"\n", "\r": r"\r", "\t": r"\t",
}  # fmt: skip
