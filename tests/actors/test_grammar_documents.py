"""Random weights through generated schemas write only valid documents."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard.actors.engine import Engine
from callboard.actors.messages import GRAMMAR_CUT
from callboard.actors.sampling import SamplingParams

from .tiny_model import write_tiny_model

SCHEMAS = 1000
TOKENS = 160

Valid = Callable[[Any], bool]
Pair = tuple[dict[str, Any], Valid]
"""A schema, and what says of a value whether it is valid: made together, so that neither is read from the other."""


def integer(draw: random.Random, _: int) -> Pair:
    low, high = sorted((draw.randint(-2000, 2000), draw.randint(-2000, 2000)))
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return schema, lambda value: type(value) is int and low <= value <= high


def number(draw: random.Random, _: int) -> Pair:
    low = draw.randint(-50, 50)
    high = low + draw.randint(1, 50)
    schema = {"type": "number", "minimum": low, "exclusiveMaximum": high}
    return schema, lambda value: type(value) in {int, float} and low <= value < high


def string(draw: random.Random, _: int) -> Pair:
    low = draw.randint(0, 3)
    high = low + draw.randint(0, 9)
    schema = {"type": "string", "minLength": low, "maxLength": high}
    return schema, lambda value: type(value) is str and low <= len(value) <= high


def pattern(draw: random.Random, _: int) -> Pair:
    regex = draw.choice(["^[a-z]{2,5}$", "^(yes|no)$", "^[A-Z][0-9]{3}$", "^#[0-9a-f]{6}$"])
    return {"type": "string", "pattern": regex}, lambda value: type(value) is str and bool(re.search(regex, value))


def constant(draw: random.Random, _: int) -> Pair:
    values = draw.sample([None, True, 0, -1, 2.5, "a", 'quote " and \\', "é", [1], {"a": None}], draw.randint(1, 4))

    def valid(value: Any) -> bool:
        return any(msgspec.json.encode(value) == msgspec.json.encode(one) for one in values)

    return {"enum": values}, valid


def simple(draw: random.Random, _: int) -> Pair:
    kind, of = draw.choice([("boolean", bool), ("null", type(None))])
    return {"type": kind}, lambda value: type(value) is of


def array(draw: random.Random, depth: int) -> Pair:
    inner, valid = pair(draw, depth - 1)
    low = draw.randint(0, 1)
    high = low + draw.randint(0, 2)
    schema = {"type": "array", "items": inner, "minItems": low, "maxItems": high}
    return schema, lambda value: type(value) is list and low <= len(value) <= high and all(map(valid, value))


def record(draw: random.Random, depth: int) -> Pair:
    parts = {name: pair(draw, depth - 1) for name in draw.sample(["a", "b b", "ç", "d", 'e"'], draw.randint(0, 3))}
    required = [name for name in parts if draw.random() < 0.6]
    schema = {
        "type": "object",
        "properties": {name: inner for name, (inner, _) in parts.items()},
        "required": required,
        "additionalProperties": False,
    }

    def valid(value: Any) -> bool:
        if type(value) is not dict or not set(required) <= set(value) <= set(parts):
            return False
        return all(parts[name][1](item) for name, item in value.items())

    return schema, valid


def either(draw: random.Random, depth: int) -> Pair:
    pairs = [pair(draw, depth - 1) for _ in range(draw.randint(2, 3))]
    return {"anyOf": [inner for inner, _ in pairs]}, lambda value: any(valid(value) for _, valid in pairs)


def pair(draw: random.Random, depth: int) -> Pair:
    flat = [integer, number, string, pattern, constant, simple]
    return draw.choice(flat + ([array, record, record, either] if depth > 0 else []))(draw, depth)


def dull(text: str) -> bool:
    """Whether no two spaces or newlines follow each other outside strings."""
    return not re.search(r"\s\s|\t|\r|^\s|\s$", re.sub(r'"(\\.|[^"\\])*"', '""', text))


@pytest.mark.anyio
async def test_random_weights_write_only_valid_documents(tmp_path: Path) -> None:
    draw = random.Random(5)
    pairs = [pair(draw, 3) for _ in range(SCHEMAS)]
    folder = write_tiny_model(tmp_path, context_length=256, eos=True)
    wrong: list[tuple[Any, str]] = []
    cut = 0

    async def run(engine: Engine, index: int) -> None:
        nonlocal cut
        schema, valid = pairs[index]
        text = msgspec.json.encode(schema).decode()
        sampling = SamplingParams(max_new_tokens=TOKENS, temperature=1.0, seed=index, json_schema=text)
        done = await engine.complete("Write: ", sampling)
        if done.finish.reason == "length":
            assert done.finish.message == GRAMMAR_CUT
            cut += 1
        elif not valid(msgspec.json.decode(done.text)) or not dull(done.text):
            wrong.append((schema, done.text))

    with anyio.fail_after(120):
        async with Engine(folder, load_format="dummy", seed=3, max_rows=32, kv_slots=8192, threads=1) as engine:
            async with anyio.create_task_group() as group:
                for index in range(SCHEMAS):
                    group.start_soon(run, engine, index)
    assert wrong == []
    assert cut <= SCHEMAS // 50  # long documents, and they say that they are cut


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"regex": "[0-9]{9}"}, GRAMMAR_CUT),
        ({"regex": "[0-9]+"}, ""),  # it holds wherever it is cut
        ({"json_schema": '{"const":"a rather long text"}'}, GRAMMAR_CUT),
        ({"ebnf": 'start: "a"*'}, ""),
        ({}, ""),
    ],
)
async def test_a_length_limit_tells_whether_it_has_cut_the_grammar(
    tmp_path: Path, constraint: dict[str, str], message: str
) -> None:
    folder = write_tiny_model(tmp_path, eos=True)
    sampling = SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True, logit_bias={1: -100.0}, **constraint)
    async with Engine(folder, load_format="dummy", seed=3, max_rows=2, kv_slots=512, threads=1) as engine:
        done = await engine.complete("x", sampling)
    assert (done.finish.reason, done.finish.message) == ("length", message)
