"""Tokens are the state, and text is a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import callboard as cb
from callboard.actors.messages import Finish

pytestmark = pytest.mark.anyio


async def test_constant_text_is_tokenized_together_and_once(scripted: Any, tokens_of: Callable[[str], bytes]) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "a"
        s += "b" + cb.gen("x")
        s += "c"
        s += "d" + cb.gen("y")

    async with scripted(["one"], ["two"]) as backend:
        state = await body.arun(backend=backend)
    assert backend.encoded == ["ab", "cd"]
    assert [prompt.tokens for prompt in backend.prompts] == [tokens_of("ab"), tokens_of("abonecd")]
    assert [prompt.tail for prompt in backend.prompts] == ["", ""]
    assert [prompt.text for prompt in backend.prompts] == ["ab", "abonecd"]
    assert state.text() == "abonecdtwo"


async def test_a_stop_inside_a_token_leaves_the_rest_as_text(scripted: Any, tokens_of: Callable[[str], bytes]) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "Q" + cb.gen("x", stop="\n") + "R" + cb.gen("y")

    # Of "one" only two tokens lie wholly inside the text; the third reaches over the stop string.
    ended = Finish(reason="stop", matched="\n", kept_tokens=2, tail="e", completion_tokens=3)
    async with scripted(["one", ended], ["two"]) as backend:
        state = await body.arun(backend=backend)
    assert backend.encoded == ["Q", "eR"]
    assert backend.prompts[1].tokens == tokens_of("QoneR")
    assert state.text() == "QoneRtwo"
    assert state["x"] == "one"
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": "\n"}


async def test_a_choice_is_settled_with_the_text_before_it(scripted: Any, tokens_of: Callable[[str], bytes]) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "a" + cb.gen("x") + " and " + cb.select("y", ["left", "right"]) + "." + cb.gen("z")

    async with scripted(["one"], ["two"]) as backend:
        backend.scores = {"left": (-1.0, -1.0), "right": (-0.5, -1.0)}
        state = await body.arun(backend=backend)
    assert backend.prompts[1].tail == " and "
    assert backend.prompts[1].tokens == tokens_of("aone")
    assert backend.prompts[2].tokens == tokens_of("aone and right.")
    assert state.text() == "aone and right.two"
    assert state["y"] == "right"
    assert state.get_meta_info("y")["normalized_prompt_logprobs"] == [-1.0, -0.75]


async def test_a_long_choice_is_not_punished_for_its_length_and_the_first_wins_a_tie(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x", choices=["short", "long one"]) + cb.select("y", ["a", "b"])

    async with scripted() as backend:
        backend.scores = {"short": (-1.0,), "long one": (-0.5, -0.5, -0.5)}
        state = await body.arun(backend=backend)
    assert state["x"] == "long one"
    assert state["y"] == "a"


async def test_messages_and_role_go_with_the_prompt(scripted: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.user("hi") + cb.assistant("I say " + cb.gen("x"))

    async with scripted() as backend:
        await body.arun(backend=backend)
    (prompt,) = backend.prompts
    assert prompt.messages == ({"role": "user", "content": "hi"},)
    assert prompt.role == "assistant"


async def test_meta_info_tells_tokens_and_logprobs(scripted: Any) -> None:
    from callboard.actors.messages import TokenLogprob
    from callboard.lang.variable import Generation

    generation = Generation()
    from callboard.actors.messages import Delta

    generation.add(Delta(text="a", tokens=(1,), logprobs=(TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.0))),)))
    assert generation.meta_info()["finish_reason"] is None
    finish = Finish(reason="length", prompt_tokens=3, cached_tokens=2, completion_tokens=1)
    generation.add(Delta(input_logprobs=(TokenLogprob(9, -2.0),), finish=finish))
    assert generation.meta_info() == {
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": 3,
        "cached_tokens": 2,
        "completion_tokens": 1,
        "num_retractions": 0,
        "output_ids": [1],
        "output_token_logprobs_length": 1,
        "output_token_logprobs": [(-0.5, 1, None)],
        "output_top_logprobs": [[(-0.5, 1, None), (-1.0, 2, None)]],
        "input_token_logprobs": [(-2.0, 9, None)],
        "input_top_logprobs": [[]],
    }
