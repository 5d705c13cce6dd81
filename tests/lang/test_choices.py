"""A choice is made as its method says, told with everything it was made by, and refused before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

import callboard as cb
from callboard.actors.backend import Prompt, Scores
from callboard.actors.messages import Score

from .conftest import ScriptedBackend

pytestmark = pytest.mark.anyio


def score(text: str, *logprobs: float, tokens: Sequence[int] = (), alone: Sequence[float] = ()) -> Score:
    return Score(
        text=text, tokens=tuple(tokens) or tuple(range(len(logprobs))), logprobs=logprobs, unconditional=tuple(alone)
    )


class Scored(ScriptedBackend):
    """Give these scores, and those without a prompt only if they are asked for."""

    def __init__(self, *scores: Score) -> None:
        super().__init__()
        self.given = scores
        self.unconditional: list[bool] = []

    def verify_choices(self, continuations: Sequence[str], *, unconditional: bool = False) -> None:
        return None

    async def score(self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False) -> Scores:
        self.unconditional.append(unconditional)
        return Scores(scores=self.given, settled=(), prompt_tokens=3)


async def choose(method: Any, *scores: Score) -> tuple[str, dict[str, Any], Scored]:
    @cb.function
    async def program(s):
        s += "?" + cb.select("x", [one.text for one in scores], choices_method=method)

    async with Scored(*scores) as backend:
        state = await program.arun(backend=backend)
        return await state.aget("x"), await state.aget_meta_info("x"), backend


async def test_the_usual_method_takes_the_highest_mean() -> None:
    chosen, meta, backend = await choose(None, score("short", -1.0), score("long", -0.2, -1.0, -0.9))
    assert chosen == "long"
    assert meta == {
        "output_ids": [0, 1, 2],
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "normalized_prompt_logprobs": pytest.approx([-1.0, -0.7]),
        "input_token_logprobs": [[(-1.0, 0, None)], [(-0.2, 0, None), (-1.0, 1, None), (-0.9, 2, None)]],
        "output_token_logprobs": [[], []],
    }
    assert backend.unconditional == [False]


async def test_token_by_token_the_likeliest_first_token_decides_whatever_follows() -> None:
    scores = (score("Paris", -1.0), score("Antidis", -3.0, -0.01, -0.01), score("Parma", -1.0, -2.0))
    assert (await choose(cb.token_length_normalized, *scores))[0] == "Paris"  # -1.0, -1.007, -1.5
    chosen, meta, _ = await choose("greedy_token_selection", *scores[1:], scores[0])
    assert chosen == "Paris"  # it ties with Parma in the first column, and its mean is better in the second
    mean = (-3.0 - 0.01 - 0.01) / 3
    assert meta["greedy_logprob_matrix"] == [
        [-3.0, -0.01, -0.01],
        pytest.approx([-1.0, -2.0, -1.5]),
        [-1.0, -1.0, -1.0],
    ]
    assert meta["normalized_prompt_logprobs"] == pytest.approx([mean, -1.5, -1.0])


async def test_token_by_token_the_first_wins_where_none_is_likelier() -> None:
    assert (await choose(cb.greedy_token_selection, score("a", -1.0, -1.0), score("b", -1.0)))[0] == "a"


async def test_the_gain_is_what_the_prompt_adds() -> None:
    frequent = score("the", -1.0, -1.0, alone=(0.0, -1.0), tokens=(5, 6))
    rare = score("zebra", -1.5, -1.5, alone=(0.0, -4.0), tokens=(7, 8))
    assert (await choose("token_length_normalized", frequent, rare))[0] == "the"
    chosen, meta, backend = await choose(cb.unconditional_likelihood_normalized, frequent, rare)
    assert chosen == "zebra"
    assert backend.unconditional == [True]
    assert meta["normalized_unconditional_prompt_logprobs"] == pytest.approx([-0.5, 0.5])
    assert meta["unconditional_token_logprobs"] == [
        [(0.0, 5, None), (-1.0, 6, None)],
        [(0.0, 7, None), (-4.0, 8, None)],
    ]
    assert meta["normalized_prompt_logprobs"] == [-1.0, -1.5]


async def test_a_method_of_ones_own_sees_the_scores_and_tells_what_it_likes() -> None:
    def last(scores: Sequence[Score]) -> cb.Decision:
        return cb.Decision(len(scores) - 1, {"seen": [one.text for one in scores]})

    chosen, meta, _ = await choose(cb.ChoicesMethod("last", last), score("a", -1.0), score("b", -9.0))
    assert (chosen, meta["seen"]) == ("b", ["a", "b"])
    with pytest.raises(cb.InvalidRequest, match="choices_method: far chose number 7 of 1"):
        await choose(cb.ChoicesMethod("far", lambda _: cb.Decision(7)), score("a", -1.0))


async def test_gen_chooses_by_the_same_methods() -> None:
    @cb.function
    async def program(s):
        s += "?" + cb.gen("x", choices=["a", "b"], choices_method=cb.greedy_token_selection)

    async with Scored(score("a", -2.0), score("b", -1.0)) as backend:
        assert (await program.arun(backend=backend, temperature=0.9))["x"] == "b"  # a choice is not sampled


async def test_a_choice_that_nothing_stands_before_is_refused_where_it_could_not_be_scored() -> None:
    with pytest.raises(cb.InvalidRequest, match="choices: 'a' begins the whole text"):
        await choose(None, score("a"), score("bc", -1.0))


def test_methods_give_an_index_and_know_their_names() -> None:
    scores = [score("a", -2.0, alone=(0.0,)), score("b", -1.0, alone=(0.0,))]
    for method in (
        cb.token_length_normalized, cb.greedy_token_selection, cb.unconditional_likelihood_normalized
    ):  # fmt: skip
        assert method(scores) == 1
        assert getattr(cb, method.name) is method


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"choices": ["a"], "choices_method": "best"}, "choices_method"),
        ({"choices": ["a"], "choices_method": max}, "choices_method"),
        ({"choices": ["a"], "temperature": 0.7}, "temperature"),
        ({"choices": ["a"], "temperature": math.nan}, "temperature"),
        ({"choices": []}, "choices"),
        ({"choices": ["a", ""]}, "choices"),
        ({"choices": "abc"}, "choices"),
        ({"choices_method": "greedy_token_selection"}, "choices_method"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_written(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(cb.InvalidRequest, match=f"^{field}: "):
        cb.gen("x", **arguments)


async def test_a_backend_that_cannot_score_without_a_prompt_refuses_before_anything_runs(scripted: Any) -> None:
    @cb.function
    async def program(s):
        s += cb.gen("before")
        s += cb.select("x", ["a", "b"], choices_method="unconditional_likelihood_normalized")

    async with scripted() as backend:
        with pytest.raises(cb.InvalidRequest, match="choices_method: ScriptedBackend gives no"):
            await program.arun(backend=backend)
    assert len(backend.prompts) <= 1
    assert not any(prompt.tail for prompt in backend.prompts)


async def test_a_vendors_chat_model_refuses_to_choose_before_anything_is_sent() -> None:
    chat = cb.OpenAI("gpt-4o", api_key="none", base_url="http://127.0.0.1:1")
    complete = cb.OpenAI("some-instruct", api_key="none", base_url="http://127.0.0.1:1")
    with pytest.raises(cb.InvalidRequest, match="choices: OpenAI chat model gpt-4o gives no log-probabilities"):
        chat.verify_choices(["a", "b"])
    complete.verify_choices(["a", "b"])
    with pytest.raises(cb.InvalidRequest, match="choices_method: OpenAI completion model"):
        complete.verify_choices(["a", "b"], unconditional=True)
