"""What a grammar leaves no choice about costs no steps, and changes nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard.actors.engine import Completion, Engine
from callboard.actors.messages import GRAMMAR_CUT
from callboard.actors.sampling import SamplingParams

from .test_grammar_documents import pair
from .tiny_model import write_tiny_model

CHARACTER = (
    r"""\{\n "name": "[\w\d\s]{1,16}",\n "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n"""
    r""" "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n"""
    r""" "occupation": "(student|teacher|auror|ministry of magic|death eater|order of the phoenix)",\n"""
    r""" "wand": \{\n "wood": "[\w\d\s]{1,16}",\n "core": "[\w\d\s]{1,16}",\n "length": [0-9]{1,2}\.[0-9]{0,2}\n \},"""
    r"""\n "alive": "(Alive|Deceased)",\n "patronus": "[\w\d\s]{1,16}",\n "bogart": "[\w\d\s]{1,16}"\n\}"""
)
"""The character of the tutorial for SGLang's language."""

TINY = {"load_format": "dummy", "seed": 3, "max_rows": 16, "kv_slots": 8192, "threads": 1}

Told = tuple[list[Completion], dict[str, Any]]


def single_bytes(folder: Path) -> Path:
    """Write a tiny model whose tokenizer knows one spelling of each text: bytes."""
    return write_tiny_model(folder, context_length=512, eos=True, vocabulary=258)


async def complete(folder: Path | str, samplings: list[SamplingParams], **options: Any) -> Told:
    """Run these together; what came of each, and the scheduler's statistics."""
    found: dict[int, Completion] = {}

    async def one(engine: Engine, index: int, sampling: SamplingParams) -> None:
        found[index] = await engine.complete("Write: ", sampling)

    with anyio.fail_after(120):
        async with Engine(folder, **options) as engine:
            async with anyio.create_task_group() as group:
                for index, sampling in enumerate(samplings):
                    group.start_soon(one, engine, index, sampling)
            statistics = await engine.statistics()
    return [found[index] for index in range(len(samplings))], statistics["scheduler"]


def varied(count: int, seed: int) -> list[SamplingParams]:
    """Schemas, half of them greedily, some with penalties, stops, limits and minimums."""
    draw = random.Random(seed)
    samplings: list[SamplingParams] = []
    for index in range(count):
        changes: dict[str, Any] = draw.choice(
            [{}, {}, {"stop": ('"b',)}, {"frequency_penalty": 0.7}, {"min_new_tokens": 9}, {"max_new_tokens": 12}]
        )
        schema = msgspec.json.encode(pair(draw, 3)[0]).decode()
        chosen = {
            "max_new_tokens": 90,
            "temperature": float(index % 2),
            "seed": index,
            "json_schema": schema,
            **changes,
        }
        samplings.append(SamplingParams(**chosen))
    return samplings


@pytest.mark.anyio
@pytest.mark.parametrize("in_flight", [1, 2, 3])
async def test_texts_tokens_and_ends_are_those_without_it(tmp_path: Path, in_flight: int) -> None:
    folder, samplings = single_bytes(tmp_path), varied(60, in_flight)
    plain, before = await complete(folder, samplings, fast_forward=False, **TINY)
    quick, after = await complete(folder, samplings, in_flight=in_flight, **TINY)
    for sampling, one, other in zip(samplings, plain, quick, strict=True):
        assert (one.text, one.tokens) == (other.text, other.tokens), sampling
        ends = [(end.reason, end.matched, end.message, end.kept_tokens, end.tail) for end in (one.finish, other.finish)]
        assert ends[0] == ends[1], sampling
    assert before["forced_tokens"] == 0
    assert after["forced_tokens"] > 50


@pytest.mark.anyio
async def test_the_tutorial_s_character_takes_two_fifths_of_the_steps() -> None:
    sampling = SamplingParams(max_new_tokens=256, temperature=0.0, regex=CHARACTER)
    (plain,), before = await complete("embedded", [sampling], fast_forward=False, threads=1)
    (quick,), after = await complete("embedded", [sampling], threads=1)
    assert plain.finish.reason == quick.finish.reason == "stop"
    assert after["steps"] <= 0.4 * before["steps"]


@pytest.mark.anyio
async def test_a_limit_inside_what_is_forced_cuts_the_grammar(tmp_path: Path) -> None:
    samplings = [
        SamplingParams(max_new_tokens=count, temperature=0.0, regex="[xy] is a long story") for count in range(1, 18)
    ]
    done, _ = await complete(single_bytes(tmp_path), samplings, **TINY)
    for count, one in enumerate(done, start=1):
        whole = one.finish.reason == "stop" or count == 17
        assert len(one.tokens) == count
        assert one.finish.completion_tokens == count
        assert one.finish.message == ("" if whole else GRAMMAR_CUT)


@pytest.mark.anyio
async def test_a_stop_string_inside_what_is_forced_ends_the_text_there(tmp_path: Path) -> None:
    sampling = SamplingParams(max_new_tokens=50, temperature=0.0, regex="[xy] is a long story", stop=("long",))
    token = SamplingParams(max_new_tokens=50, temperature=0.0, regex="[xy] is a long story", stop_token_ids=(77,))
    (one, other), _ = await complete(single_bytes(tmp_path), [sampling, token], **TINY)
    assert one.text[1:] == " is a "
    assert one.finish.matched == "long"
    assert other.finish.matched == 77
    assert other.text[1:] == " is a long story"[: len(other.text) - 1]
