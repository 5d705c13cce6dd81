"""Structural tags bind what their triggers begin, and reasoning stays free until its end marker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

import callboard as sgl
from callboard.actors.engine import Engine
from callboard.actors.errors import InvalidRequest
from callboard.actors.grammar import GrammarCache
from callboard.actors.messages import GRAMMAR_CUT
from callboard.actors.reasoning import Markers, markers_of
from callboard.actors.sampling import Constraint, SamplingParams

from .test_fast_forward import TINY
from .tiny_model import write_tiny_model

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Tokyo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TAGS: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<call=weather>", "schema": WEATHER, "end": "</call>"},
        {"begin": "<call=count>", "schema": {"type": "integer"}, "end": "</call>"},
        {"begin": "[[", "schema": {"const": 1}, "end": ""},
    ],
    "triggers": ["<call=", "[["],
}
QWEN, R1 = markers_of("qwen3"), markers_of("deepseek-r1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tags"), context_length=512, eos=True)


def accepts(folder: Path, constraint: Constraint, text: str) -> bool | None:
    """Whether a text may end here; None if it cannot even come so far."""
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    matcher = GrammarCache(folder).matcher(constraint)
    return matcher.is_accepting() if matcher.consume_tokens(tokens) else None


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", True),
        ("free text <cal and [ more", True),
        ('a <call=weather>{"city":"Paris"}</call> b', True),
        ('a <call=weather>{"city":"Paris"}</call><call=count>12</call>', True),
        ("<call=count>1</call> [[1 and so on", True),
        ("<call=", False),
        ("<call=count>12", False),
        ("<call=other>", None),
        ('<call=weather>{"city":"Rome"}', None),
        ("[[2", None),
    ],
)
def test_tags_bind_what_a_trigger_begins_and_nothing_else(folder: Path, text: str, accepted: bool | None) -> None:
    assert accepts(folder, Constraint("structural_tag", json.dumps(TAGS)), text) is accepted


@pytest.mark.parametrize(
    ("options", "text", "accepted"),
    [
        ({"at_least_one": True}, "none", False),
        ({"at_least_one": True}, "a <n>1</n> b", True),
        ({"stop_after_first": True}, "none", True),
        ({"stop_after_first": True}, "a <n>1</n>", True),
        ({"stop_after_first": True}, "a <n>1</n> b", None),
        ({"stop_after_first": True, "at_least_one": True}, "none", False),
    ],
)
def test_the_newer_form_says_how_many_may_come(
    folder: Path, options: dict[str, bool], text: str, accepted: bool | None
) -> None:
    tag = {"begin": "<n>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "</n>"}
    form = {"type": "triggered_tags", "triggers": ["<n>"], "tags": [tag], **options}
    source = json.dumps({"type": "structural_tag", "format": form})
    assert accepts(folder, Constraint("structural_tag", source), text) is accepted


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"triggers": []}, "at least one trigger"),
        ({"triggers": ["<call=", "<call=w", "[["]}, "could never come"),
        ({"triggers": ["<call="]}, "begins with none of the triggers"),
        ({"triggers": ["<call=", "[[", "(("]}, "no tag begins with trigger '(('"),
        ({"structures": [{"begin": "<", "end": ""}]}, "missing required field `schema`"),
        ({"other": 1}, "unknown field `other`"),
        ({"structures": [{"begin": "<", "schema": {"not": {}}, "end": ""}], "triggers": ["<"]}, "not"),
        ({"type": "text"}, "no JSON object of type"),
    ],
)
def test_a_bad_tag_is_refused_by_name(folder: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(reason)) as caught:
        GrammarCache(folder).matcher(Constraint("structural_tag", json.dumps({**TAGS, **change})))
    assert caught.value.field == "structural_tag"


@pytest.mark.parametrize(
    ("markers", "text", "accepted"),
    [
        (R1, "let me see, [0-9]?", False),
        (R1, "let me see</think>\n\n12", True),
        (R1, "</think>12", True),
        (R1, "12", False),  # reasoning, so far
        (R1, "hm</think>so", None),
        (QWEN, "12", True),
        (QWEN, "<think>\nhm\n</think>\n\n12", True),
        (QWEN, "hm", None),
        (Markers("<|im_start|>", "<|im_end|>", opened=True), "hm", False),
    ],
)
def test_a_constraint_binds_the_answer_alone(folder: Path, markers: Markers, text: str, accepted: bool | None) -> None:
    assert accepts(folder, Constraint("regex", "[0-9]+", markers), text) is accepted


@pytest.mark.anyio
async def test_random_weights_reason_freely_and_answer_as_they_must(folder: Path) -> None:
    source = json.dumps(WEATHER)
    limits = {"max_new_tokens": 200, "temperature": 1.0, "json_schema": source}
    free = [SamplingParams(seed=seed, **limits, reasoning=Markers("e", "a", opened=True)) for seed in range(8)]
    with anyio.fail_after(60):
        async with Engine(folder, **TINY) as engine:
            done = [await engine.complete("x", sampling) for sampling in free]
    assert any(len(one.text.partition("a")[0]) > 3 for one in done)
    for one in done:
        thought, end, answer = one.text.partition("a")
        if one.finish.reason == "length":
            assert one.finish.message == GRAMMAR_CUT
        else:
            assert end
            assert json.loads(answer.lstrip("\n"))["city"] in {"Paris", "Tokyo"}, thought


@pytest.mark.anyio
async def test_separate_reasoning_binds_the_answer_of_a_program(folder: Path) -> None:
    @sgl.function
    async def program(s: Any) -> None:
        s += "Question.<think>"
        s += sgl.separate_reasoning(
            sgl.gen("answer", max_tokens=300, regex="(yes|no)!", temperature=1.0, seed=1), model_type="deepseek-r1"
        )

    with anyio.fail_after(60):
        async with Engine(folder, **TINY) as engine:
            state = await program.arun(backend=engine)
            answer, thought = state["answer"], state["answer_reasoning_content"]
            meta = state.get_meta_info("answer")
    # random weights hardly ever write the marker: then all is reasoning, and the limit has cut the grammar
    if meta["finish_reason"]["type"] == "stop":
        assert answer in {"yes!", "no!"}
    else:
        assert answer == ""
        assert len(thought) > 100
        assert meta["finish_reason"]["message"] == GRAMMAR_CUT


@pytest.mark.anyio
async def test_a_program_and_a_request_may_bind_by_tags(folder: Path) -> None:
    tags = {
        "triggers": ["e"],
        "structures": [{"begin": "e", "schema": {"enum": [7, 8]}, "end": "!"}],
    }

    @sgl.function
    async def program(s: Any) -> None:
        s += "Question: " + sgl.gen("answer", max_tokens=100, structural_tag=tags, temperature=1.0, seed=2)

    with anyio.fail_after(60):
        async with Engine(folder, **TINY) as engine:
            state = await program.arun(backend=engine)
            answer = state["answer"]
    begun = re.findall(r"e(?=...)(..)", answer, re.DOTALL)
    assert begun
    assert set(begun) <= {"7!", "8!"}
