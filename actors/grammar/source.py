r"""From what a user wrote to the grammar llguidance compiles; what can be told from the text alone is refused here.

A regex is matched whole, as by `re.fullmatch`; `.` is any character but a newline; `\d`, `\w`, `\s` and their
complements are ASCII, as in SGLang's grammar backends.  Between the parts of a JSON document stands at most one space
or newline.  An EBNF is llguidance's Lark, or GBNF (`root ::= ...`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from llguidance import LLMatcher, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from ..errors import InvalidRequest
from ..sampling import Constraint
from .tags import read_tags, tags_grammar

__all__ = ["is_cheap", "to_grammar"]

# Set, not left to their defaults: a schema's own "x-guidance" must not change them.  A pattern that can repeat would
# let a model write whitespace without an end.
_JSON_OPTIONS: dict[str, Any] = {
    "whitespace_pattern": r"[ \n]",  # at most once between two tokens of the document
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,  # anyOf in its place would let documents through that the schema forbids
    "lenient": False,
}
_GBNF = re.compile(r"^[ \t]*[A-Za-z][\w-]*[ \t]*::=", re.MULTILINE)
_COUNTS = re.compile(r"\{(\d*)(?:,(\d*))?\}")
# How long a regex may be with its repetitions written out, and still compile in the caller's thread.  The worst that
# were found take 25 ms; most take 1.
_CHEAP = 32_768


def to_grammar(constraint: Constraint, depth: int) -> str:
    """Give llguidance's grammar for a constraint; a JSON schema may nest `depth` deep.

    Raises InvalidRequest.  What only shows when the grammar is compiled is not refused yet.
    """
    match constraint.kind:
        case "regex":
            return _regex(constraint.source)
        case "json_schema":
            return _json_schema(constraint.source, depth)
        case "ebnf":
            return _ebnf(constraint.source)
        case "structural_tag":
            tags = read_tags(constraint.source)
            return tags_grammar(tags, lambda schema: _schema_grammar(schema, depth, kind="structural_tag"))


def is_cheap(constraint: Constraint) -> bool:
    """Whether compiling it is so little work that no process need prove it first."""
    if constraint.kind != "regex":
        return False
    size = len(constraint.source)
    for low, high in _COUNTS.findall(constraint.source):
        size *= max(1, int(low[:9] or 0), int(high[:9] or 0))
        if size > _CHEAP:
            return False
    return size <= _CHEAP


def _regex(regex: str) -> str:
    if (len(regex) - len(regex.rstrip("\\"))) % 2:  # it would escape the grammar's own delimiter
        raise InvalidRequest("regex", f"{regex!r:.80} cannot be compiled: it ends in a lone backslash")
    try:
        return LLMatcher.grammar_from_regex(regex_to_lark(regex, "dws"))
    except ValueError as error:
        raise InvalidRequest("regex", str(error)) from error


def _json_schema(schema: str, depth: int) -> str:
    try:
        value = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest("json_schema", f"{schema!r:.80} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("json_schema", f"{schema!r:.80} is not a JSON object")
    return _schema_grammar(cast("dict[str, Any]", value), depth, kind="json_schema")


def _schema_grammar(schema: Mapping[str, Any], depth: int, *, kind: str) -> str:
    if _nests_deeper(schema, depth):
        raise InvalidRequest(kind, f"a schema nests more than {depth} deep; use $ref to a definition")
    text = msgspec.json.encode(schema).decode()
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise InvalidRequest(kind, str(error)) from error


def _nests_deeper(value: Any, depth: int) -> bool:
    level: list[Any] = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _ebnf(text: str) -> str:
    if _GBNF.search(text) is None:
        return LLMatcher.grammar_from_lark(text)
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(text))
    except RecursionError as error:
        raise InvalidRequest("ebnf", "it nests too deep") from error
    except Exception as error:  # no narrower one: so it tells of a rule that is missing
        raise InvalidRequest("ebnf", f"not GBNF: {error!s:.300}") from error
