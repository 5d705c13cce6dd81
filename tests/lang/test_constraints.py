"""What binds a generation: schemas in every form, Python's types, and the value that was meant."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pydantic
import pytest

import callboard as cb
from callboard import NullBackend
from callboard.actors.sampling import SamplingParams
from callboard.lang.sampling_arguments import Defaults

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Person(msgspec.Struct):
    name: str


class Model(pydantic.BaseModel):
    name: str


async def ask(text: str, expression: Any, **arguments: Any) -> cb.ProgramState:
    @cb.function
    async def program(s):
        s += expression

    async with NullBackend(text=text) as backend:
        return await program.arun(backend=backend, **arguments)


def resolved(expression: Any, **run: Any) -> SamplingParams:
    backend = NullBackend()
    return Defaults(run, backend).resolve(expression.options, backend).sampling


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (SCHEMA, SCHEMA),
        (json.dumps(SCHEMA), SCHEMA),
        (Person, msgspec.json.schema(Person)),
        (Model, Model.model_json_schema()),
    ],
    ids=["dict", "text", "Struct", "pydantic"],
)
def test_a_schema_may_come_in_any_form(given: Any, wanted: dict[str, Any]) -> None:
    assert json.loads(resolved(cb.gen("x", json_schema=given)).json_schema or "") == wanted


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "value"),
    [(SCHEMA, {"name": "Ada"}), (json.dumps(SCHEMA), {"name": "Ada"}), (Person, Person("Ada")),
     (Model, Model(name="Ada"))],
    ids=["dict", "text", "Struct", "pydantic"],
)  # fmt: skip
async def test_the_parsed_object_is_in_the_metadata(given: Any, value: Any) -> None:
    state = await ask('{"name": "Ada"}', cb.gen("x", json_schema=given))
    assert state["x"] == '{"name": "Ada"}'
    assert state.get_meta_info("x")["parsed"] == value


@pytest.mark.anyio
async def test_what_was_cut_parses_to_nothing_and_says_why() -> None:
    state = await ask('{"name": "Ada"}', cb.gen("x", json_schema=Person, max_tokens=8))
    meta = state.get_meta_info("x")
    assert meta["parsed"] is None
    assert "truncated" in meta["parse_error"]
    assert meta["finish_reason"]["type"] == "length"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [(int, "-12 and", -12), ("int", "7", 7), (float, ".5\n", 0.5), (bool, "False", False), (str, '"a b"', "a b")],
)
async def test_a_dtype_binds_and_is_read(dtype: Any, text: str, value: Any) -> None:
    state = await ask(text, cb.gen("x", dtype=dtype))
    parsed = state.get_meta_info("x")["parsed"]
    assert (type(parsed), parsed) == (type(value), value)


@pytest.mark.anyio
async def test_an_unbound_generation_has_nothing_to_parse() -> None:
    state = await ask("12", cb.gen("x", regex="[0-9]+"))
    assert "parsed" not in state.get_meta_info("x")


def test_a_dtype_adds_its_stops_to_those_asked_for() -> None:
    number = resolved(cb.gen("x", dtype=int, stop=["."]), stop="ignored, gen has its own")
    assert (number.regex, number.stop) == (r"[-+]?[0-9]+[ \n]*", (".", " ", "\n"))
    assert resolved(cb.gen("x", dtype="float"), stop="!").stop == ("!", " ", "\n")
    assert resolved(cb.gen("x", dtype=bool), stop="!").stop == ("!",)


def test_a_grammar_is_passed_on() -> None:
    assert resolved(cb.gen("x", ebnf='start: "a"')).ebnf == 'start: "a"'


@pytest.mark.parametrize(
    ("first", "second"), [("regex", "json_schema"), ("regex", "dtype"), ("json_schema", "ebnf"), ("regex", "ebnf")]
)
def test_a_generation_takes_one_constraint(first: str, second: str) -> None:
    values: dict[str, Any] = {"regex": "a", "json_schema": SCHEMA, "ebnf": 'start: "a"', "dtype": int}
    with pytest.raises(cb.InvalidRequest, match=f"^{second}: {first} is given too") as raised:
        cb.gen("x", **{second: values[second], first: values[first]})
    assert raised.value.field == second


@pytest.mark.parametrize("name", ["json_schema", "ebnf", "dtype"])
def test_a_choice_takes_no_constraint(name: str) -> None:
    with pytest.raises(cb.InvalidRequest, match=f"^{name}: "):
        cb.gen("x", choices=["a"], **{name: int})


@pytest.mark.parametrize("given", [5, "{", "", int, {"a": object()}, {"a": Ellipsis}])
def test_what_is_no_schema_is_refused_at_once(given: Any) -> None:
    with pytest.raises(cb.InvalidRequest, match="^json_schema: "):
        cb.gen("x", json_schema=given)


@pytest.mark.parametrize("given", [complex, "complex", 5, [int]])
def test_an_unknown_dtype_is_refused_at_once(given: Any) -> None:
    with pytest.raises(cb.InvalidRequest, match="^dtype: .* int, float, bool and str"):
        cb.gen("x", dtype=given)
