"""What `gen`, `select` and `run` take, and how they refuse."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import callboard as cb
from callboard.actors.core import simulate
from callboard.lang.null import NullBackend

pytestmark = pytest.mark.anyio


async def sampled(scripted: Any, expression: Any, **defaults: Any) -> cb.SamplingParams:
    @cb.function
    def body(s: Any) -> None:
        s += "a" + expression

    async with scripted() as backend:
        await body.arun(backend=backend, **defaults)
    return backend.samplings[0]


async def test_every_argument_reaches_the_backend(scripted: Any) -> None:
    expression = cb.gen(
        "x", max_tokens=9, min_tokens=2, stop=["a", "b"], stop_token_ids=[1], temperature=0.5, top_p=0.9, top_k=5,
        min_p=0.1, frequency_penalty=0.2, presence_penalty=0.3, ignore_eos=True, return_logprob=True, stop_regex="c+",
        logprob_start_len=3, top_logprobs_num=2, regex="a+", seed=4, repetition_penalty=1.1, logit_bias={5: -1.0},
    )  # fmt: skip
    assert await sampled(scripted, expression) == cb.SamplingParams(
        max_new_tokens=9, min_new_tokens=2, stop=("a", "b"), stop_token_ids=(1,), temperature=0.5, top_p=0.9, top_k=5,
        min_p=0.1, frequency_penalty=0.2, presence_penalty=0.3, ignore_eos=True, return_logprob=True,
        stop_regex=("c+",),
        logprob_start=3, top_logprobs_num=2, regex="a+", seed=4, repetition_penalty=1.1, logit_bias={5: -1.0},
    )  # fmt: skip


async def test_arguments_may_be_given_by_position(scripted: Any) -> None:
    sampling = await sampled(scripted, cb.gen("x", 9, 2, None, "stop"))
    assert (sampling.max_new_tokens, sampling.min_new_tokens, sampling.stop) == (9, 2, ("stop",))


async def test_what_gen_leaves_open_is_the_runs(scripted: Any) -> None:
    sampling = await sampled(scripted, cb.gen("x", temperature=0.0), temperature=0.7, max_new_tokens=5, stop="\n")
    assert (sampling.temperature, sampling.max_new_tokens, sampling.stop) == (0.0, 5, ("\n",))
    assert await sampled(scripted, cb.gen("x")) == cb.SamplingParams()


async def test_the_users_lists_are_neither_changed_nor_kept(scripted: Any) -> None:
    stops = ["a"]
    expression = cb.gen("x", stop=stops)
    stops.append("b")
    assert (await sampled(scripted, expression)).stop == ("a",)
    assert stops == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1), ("temperature", True), ("temperature", "hot"), ("temperature", float("nan")),
        ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", True), ("min_tokens", -1), ("top_p", 0), ("top_p", 2),
        ("top_k", 0), ("min_p", -0.1), ("frequency_penalty", 3), ("presence_penalty", -3), ("repetition_penalty", 0),
        ("stop", [""]), ("stop", [1]), ("stop", 5), ("stop", ["x"] * 33), ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]), ("stop_token_ids", 5), ("logit_bias", {1: 1000}), ("logit_bias", [1]),
        ("top_logprobs_num", 1000), ("top_logprobs_num", -1), ("logprob_start_len", -2), ("regex", ""), ("regex", 5),
        ("ignore_eos", 1), ("return_logprob", "yes"), ("seed", "x"), ("name", 5), ("name", ""),
        ("n", 0), ("n", 129), ("n", True), ("n", "2"), ("json_schema", "{"), ("ebnf", ""),
        ("dtype", complex), ("stop_regex", "a*"), ("stop_regex", [1]),
        ("return_text_in_logprobs", 1), ("choices_method", "x"),
    ],
)  # fmt: skip
def test_gen_refuses_at_once_and_names_the_argument(name: str, value: Any) -> None:
    with pytest.raises(cb.InvalidRequest, match=f"^{name}") as raised:
        cb.gen(**{name: value})
    assert raised.value.field == name
    assert isinstance(raised.value, ValueError)


def test_more_min_tokens_than_max_tokens_is_refused() -> None:
    with pytest.raises(cb.InvalidRequest, match="min_tokens: 5 is more than max_tokens, 2"):
        cb.gen("x", min_tokens=5, max_tokens=2)


async def test_more_min_tokens_than_the_run_allows_is_refused_where_it_is_said(null: NullBackend) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x", min_tokens=200)

    with pytest.raises(cb.InvalidRequest, match="min_tokens"):
        await body.arun(backend=null)
    await body.arun(backend=null, max_new_tokens=300)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("choices", {}), ("choices", {"choices": []}), ("choices", {"choices": "ab"}), ("choices", {"choices": [""]}),
        ("choices", {"choices": [1]}), ("choices", {"choices": ["x"] * 513}),
        ("temperature", {"choices": ["a"], "temperature": 0.5}),
        ("choices_method", {"choices": ["a"], "choices_method": "best"}),
    ],
)  # fmt: skip
def test_select_refuses_at_once(name: str, arguments: Any) -> None:
    with pytest.raises(cb.InvalidRequest, match=f"^{name}"):
        cb.select("x", **arguments)


def test_gen_with_choices_is_select() -> None:
    assert cb.gen("x", choices=["a", "b"]) == cb.select("x", ["a", "b"])
    assert cb.select("x", ["a"], choices_method=cb.token_length_normalized) == cb.select("x", ("a",))
    with pytest.raises(cb.InvalidRequest, match="regex"):
        cb.gen("x", choices=["a"], regex="a")


async def test_run_refuses_bad_sampling_arguments_before_anything_runs(null: NullBackend) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("x")

    for arguments in ({"temperature": -1}, {"max_new_tokens": 0.5}, {"n": 0}, {"stop_regex": "a*"}):
        with pytest.raises(cb.InvalidRequest, match=next(iter(arguments))):
            await body.arun(backend=null, **arguments)
    assert null.generations == 0


async def test_the_null_backend_cuts_at_stops_and_lengths() -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "x" + cb.gen("a", stop="b") + cb.gen("b", max_tokens=2)

    async with NullBackend(text=lambda prompt: f"a{prompt.text}b c") as backend:
        state = await body.arun(backend=backend)
    assert (state["a"], state["b"]) == ("ax", "ax")
    assert state.get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": "b"}
    assert state.get_meta_info("b")["finish_reason"] == {"type": "length", "length": 2}
    with pytest.raises(cb.InvalidRequest, match="latency_s"):
        NullBackend(latency_s=-1)


def test_what_looks_equal_is_not_the_same_argument() -> None:
    assert cb.gen("x", max_tokens=1) == cb.gen("x", max_tokens=1)
    with pytest.raises(cb.InvalidRequest, match="max_tokens"):
        cb.gen("x", max_tokens=True)
    assert cb.gen("x", stop_token_ids=(1,)) == cb.gen("x", stop_token_ids=(1,))
    with pytest.raises(cb.InvalidRequest, match="stop_token_ids"):
        cb.gen("x", stop_token_ids=(True,))


def test_every_answer_of_the_null_backend_takes_its_time() -> None:
    @cb.function
    def body(s: Any, early: bool) -> None:
        s += "x" + (cb.gen("a") if early else cb.select("a", ["y", "z"]))

    async def main() -> list[float]:
        ends: list[float] = []

        async def run(early: bool) -> None:
            await anyio.sleep(0 if early else 0.5)
            await body.arun(early, backend=backend)
            ends.append(anyio.current_time() - started)

        async with NullBackend(latency_s=2.0) as backend, anyio.create_task_group() as group:
            started = anyio.current_time()
            group.start_soon(run, True)
            group.start_soon(run, False)
            with anyio.move_on_after(1):  # one that does not wait for its answer leaves the others theirs
                await run(True)
        return ends

    assert simulate.run(main, seed=1).value == pytest.approx([2.0, 2.5], abs=1e-6)
