"""Reasoning and answer come apart, the same whatever the pieces the text comes in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.errors import InvalidRequest
from callboard.actors.reasoning import MODEL_TYPES, ReasoningParser, markers_of, separate


@pytest.mark.parametrize(
    ("model_type", "text", "expected"),
    [
        ("qwen3", "<think>\nTwo.\n</think>\n\nIt is 2.\n", ("Two.", "It is 2.\n")),
        ("qwen3", "\n <think>a</think>b", ("a", "b")),
        ("qwen3", "It is 2.", ("", "It is 2.")),
        ("qwen3", " It is <think>2</think>.", ("", " It is <think>2</think>.")),
        ("qwen3", "<think></think>b", ("", "b")),
        ("qwen3", "<think>cut", ("cut", "")),
        ("qwen3", "<think>cut </thi", ("cut </thi", "")),
        ("qwen3", "<thin", ("", "<thin")),
        ("qwen3", "", ("", "")),
        ("QWEN3", "<think>a</think>b </think>c", ("a", "b </think>c")),
        ("deepseek-r1", "Two.\n</think>\n\n2", ("Two.", "2")),
        ("deepseek-r1", "<think>\nTwo.</think>2", ("Two.", "2")),
        ("deepseek-r1", "Two", ("Two", "")),
        ("deepseek-r1", " <thi", ("<thi", "")),
        ("kimi", "◁think▷a◁/think▷b", ("a", "b")),
    ],
)
def test_a_whole_text_is_told_apart(model_type: str, text: str, expected: tuple[str, str]) -> None:
    assert separate(text, markers_of(model_type)) == expected


@settings(max_examples=300, deadline=None)
@given(
    model_type=st.sampled_from(["qwen3", "deepseek-r1", "kimi"]),
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", "◁think▷", "◁/think▷", " ", "\n", "a", "<", "</th"]), max_size=9
    ),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)  # fmt: skip
def test_the_pieces_make_no_difference_and_nothing_is_taken_back(
    model_type: str, parts: list[str], cuts: list[int]
) -> None:
    text = "".join(parts)
    parser = ReasoningParser(markers_of(model_type))
    thought = answer = ""
    for start, end in pairwise([0, *sorted(cuts), len(text)]):
        more_thought, more_answer = parser.feed(text[start:end])
        assert not (more_thought and answer), "no reasoning comes behind the answer"
        thought, answer = thought + more_thought, answer + more_answer
    last = parser.finish()
    thought, answer = thought + last[0], answer + last[1]
    assert (thought, answer) == separate(text, markers_of(model_type))
    assert thought == thought.strip()


def test_what_is_sure_comes_at_once() -> None:
    parser = ReasoningParser(markers_of("qwen3"))
    said = [parser.feed(piece) for piece in ("<th", "ink>", "a ", "b", "\n</", "think>", "\n", "c", " ")]
    assert said == [("", ""), ("", ""), ("a", ""), (" b", ""), ("", ""), ("", ""), ("", ""), ("", "c"), ("", " ")]
    assert parser.answering


def test_a_prompt_that_opened_the_marker_is_minded() -> None:
    parser = ReasoningParser(markers_of("qwen3"), opened=True)
    assert parser.feed("a</think>b") == ("a", "b")


def test_an_unknown_model_type_is_refused_with_those_there_are() -> None:
    for given_type in ("gpt", None, 5):
        with pytest.raises(InvalidRequest, match="model_type.*qwen3"):
            markers_of(given_type)  # type: ignore[arg-type]
    assert all(markers_of(name).end for name in MODEL_TYPES)
