"""What a schema or a grammar lets through, and what is refused, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from callboard.actors.errors import InvalidRequest
from callboard.actors.grammar import GrammarCache, GrammarLimits
from callboard.actors.grammar.source import is_cheap
from callboard.actors.sampling import Constraint, SamplingParams

from .tiny_model import write_tiny_model

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), eos=True)


@pytest.fixture(scope="module")
def cache(folder: Path) -> GrammarCache:
    return GrammarCache(folder)


def schema_of(schema: Any) -> Constraint:
    return Constraint("json_schema", msgspec.json.encode(schema).decode())


def accepts(cache: GrammarCache, folder: Path, constraint: Constraint, text: str) -> bool:
    matcher = cache.matcher(constraint)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        (PERSON, ['{"name":"Ada","age":36}', '{"name": "é\\n", "age": 0}'], ["{}", '{"age":1,"name":"x"}', "[]"]),
        ({}, ["null", '[1,{"a":[]}]'], ["", "nul"]),
        ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"', "2"]),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, ["[]", "[true]"], ["[true,true,true]", "[1]"]),
        ({"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}, ["[[]]"], ["1"]),
        ({"type": "string", "pattern": "^[a-z]{2}$"}, ['"ab"'], ['"abc"', '"AB"', "ab"]),
        ({"type": "integer", "minimum": -3, "maximum": 12}, ["-3", "12", "0"], ["-4", "13", "1.5", "01"]),
        ({"type": "string", "format": "date"}, ['"2026-02-28"'], ['"2026-2-8"', '"today"']),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ["true"]),
        ({"title": "x", "description": "y", "default": 1, "type": "null"}, ["null"], ["1"]),
    ],
)  # fmt: skip
def test_a_schema_lets_through_what_it_allows(
    cache: GrammarCache, folder: Path, schema: Any, yes: list[str], no: list[str]
) -> None:
    constraint = schema_of(schema)
    assert [text for text in yes if not accepts(cache, folder, constraint, text)] == []
    assert [text for text in no if accepts(cache, folder, constraint, text)] == []


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"name":"a","age":1}', True),
        ('{ "name" : "a" ,\n"age" : 1 }', True),
        ('{  "name":"a","age":1}', False),
        ('{"name":"a",\n\n"age":1}', False),
        ('{\t"name":"a","age":1}', False),
        (' {"name":"a","age":1}', False),
        ('{"name":"a","age":1}\n', False),
    ],
)
@pytest.mark.parametrize("wish", [{}, {"x-guidance": {"whitespace_flexible": True, "item_separator": ",[ ]*"}}])
def test_whitespace_is_one_space_or_newline_whatever_the_schema_says(
    cache: GrammarCache, folder: Path, text: str, right: bool, wish: dict[str, Any]
) -> None:
    assert accepts(cache, folder, schema_of({**PERSON, **wish}), text) == right


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('start: "a" B+\nB: /[0-9]/', ["a1", "a123"], ["a", "b1"]),
        ('start: "<" start ">" | "x"', ["x", "<<x>>"], ["<x", "<x>>"]),
        ('start: "value " thing\nthing: %json {"type": "boolean"}', ["value true"], ["value 1"]),
        ('root ::= "a" (" " [a-z]+)* | ("x"){2,3}', ["a", "a b cd", "xx"], ["x", "a  b"]),
        ('# sums\nroot ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9]+ | "(" expr ")"', ["1+(2+3)"], ["1+"]),
    ],
)  # fmt: skip
def test_a_grammar_is_lark_or_gbnf(
    cache: GrammarCache, folder: Path, grammar: str, yes: list[str], no: list[str]
) -> None:
    constraint = Constraint("ebnf", grammar)
    assert [text for text in yes if not accepts(cache, folder, constraint, text)] == []
    assert [text for text in no if accepts(cache, folder, constraint, text)] == []


REFUSED: list[tuple[Constraint, str]] = [
    (Constraint("json_schema", "{"), "is not JSON"),
    (Constraint("json_schema", "[]"), "is not a JSON object"),
    (Constraint("json_schema", "[" * 3000 + "]" * 3000), "is not JSON"),
    (schema_of({"type": "array", "uniqueItems": True}), '"uniqueItems"'),
    (schema_of({"not": {"type": "string"}}), '"not"'),
    (schema_of({"if": {"type": "string"}, "then": {}}), '"if"'),
    (schema_of({"properties": {"a": {"dependentRequired": {"a": ["b"]}}}}), '"dependentRequired"'),
    (schema_of({"x-guidance": {"lenient": True}, "uniqueItems": True}), '"uniqueItems"'),
    (schema_of({"type": "string", "format": "nonsense"}), "Unknown format: nonsense"),
    (schema_of({"type": "text"}), "Invalid type: text"),
    (schema_of({"type": "string", "pattern": "(?=a)b"}), "look-ahead"),
    (schema_of({"oneOf": [{"type": "string"}, {"minLength": 2}]}), "oneOf is supported only where"),
    (schema_of({"$ref": "file:///etc/passwd"}), "'file:///etc/passwd' lies outside the schema"),
    (schema_of({"$ref": "http://127.0.0.1/x"}), "nothing is fetched"),
    (schema_of({"$ref": "#/nowhere"}), "Pointer '/nowhere' does not exist"),
    (schema_of({"$ref": "#"}), "no text that the tokenizer can write matches"),
    (schema_of(False), "is not a JSON object"),
    (schema_of({"items": False, "minItems": 1, "type": "array"}), "Unsatisfiable schema"),
    (schema_of({"enum": []}), "Unsatisfiable schema"),
    (Constraint("ebnf", 'start: "a" nothing'), 'unknown name: "nothing"'),
    (Constraint("ebnf", "start: /(?=a)b/"), "look-ahead"),
    (Constraint("ebnf", "start: ("), "Expected token"),
    (Constraint("ebnf", 'rule: "a"'), "start"),
    (Constraint("ebnf", 'root ::= "a" | other'), "not GBNF: Rule 'other' not found"),
    (Constraint("ebnf", 'rule ::= "a"'), "not GBNF: No 'root' rule found"),
    (Constraint("ebnf", 'root ::= "a'), "not GBNF: Unexpected end of input"),
    (Constraint("ebnf", "start: a\na: a"), "no text that the tokenizer can write matches"),
]


@pytest.mark.parametrize(("constraint", "reason"), REFUSED, ids=lambda item: str(item)[:40])
def test_what_cannot_run_is_refused_with_the_reason(cache: GrammarCache, constraint: Constraint, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{constraint.kind}: ") as caught:
        cache.matcher(constraint)
    assert caught.value.field == constraint.kind
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_schema_nests_so_deep_and_no_deeper(folder: Path) -> None:
    def nested(depth: int) -> Constraint:
        schema: dict[str, Any] = {"type": "null"}
        for _ in range(depth - 1):
            schema = {"items": schema}
        return schema_of(schema)

    cache = GrammarCache(folder, GrammarLimits(depth=5))
    cache.matcher(nested(5))
    with pytest.raises(InvalidRequest, match="json_schema: a schema nests more than 5 deep"):
        cache.matcher(nested(6))


@pytest.mark.parametrize(
    ("constraint", "cheap"),
    [
        (Constraint("regex", "[a-z]+"), True),
        (Constraint("regex", r"(\d{1,3}\.){3}\d{1,3}"), True),
        (Constraint("regex", "a{99999}"), False),
        (Constraint("regex", "(a{1,1000}){1,1000}"), False),
        (Constraint("regex", "(" * 3 + "a" + "{100})" * 3), False),
        (Constraint("regex", "a{" + "9" * 5000 + "}"), False),
        (schema_of({}), False),
        (Constraint("ebnf", 'start: "a"'), False),
    ],
)
def test_only_small_regexes_need_no_proof(constraint: Constraint, cheap: bool) -> None:
    assert is_cheap(constraint) == cheap


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"regex": "a", "json_schema": "{}"}, "json_schema", "regex is given too; a generation takes one constraint"),
        ({"json_schema": "{}", "ebnf": "x"}, "ebnf", "json_schema is given too"),
        ({"json_schema": ""}, "json_schema", "not a non-empty string"),
        ({"json_schema": {}}, "json_schema", "not a non-empty string"),
        ({"ebnf": 5}, "ebnf", "not a non-empty string"),
        ({"json_schema": " " * 65_537}, "json_schema", "65537 bytes given, at most 65536 allowed"),
        ({"ebnf": "é" * 32_769}, "ebnf", "65538 bytes given"),
        ({"regex": "\ud800"}, "regex", "half a character"),
    ],
)
def test_sampling_parameters_take_one_constraint_within_its_bounds(
    given: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: ") as caught:
        SamplingParams(**given).verify()
    assert message in str(caught.value)
