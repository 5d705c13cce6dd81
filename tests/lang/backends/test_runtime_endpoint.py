"""Programs on a served engine are the programs on the engine itself; and what SGLang's servers do otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from anyio.lowlevel import checkpoint

import callboard as cb
from callboard import Aborted, InvalidRequest, OpenAI, RuntimeEndpoint
from callboard.actors.backend import Backend, Prompt
from callboard.actors.engine import Engine
from callboard.actors.reasoning import markers_of
from callboard.actors.sampling import SamplingParams

from ...actors.gateway.fake_engine import FakeEngine
from ...actors.gateway.serving import serving as serving_engine
from ...actors.tiny_model import write_tiny_model
from .dialects import NATIVE, service_of
from .service import Act, Service, serving, stream

pytestmark = pytest.mark.anyio

LIMIT = {"max_new_tokens": 12, "temperature": 0.0}


@asynccontextmanager
async def served(folder: Path, *, context_length: int = 256) -> AsyncIterator[tuple[Engine, str]]:
    model = write_tiny_model(folder, context_length=context_length, eos=True)
    async with Engine(model, load_format="dummy", threads=1, seed=1) as engine, serving_engine(engine) as server:
        yield engine, server.url


@asynccontextmanager
async def served_embedded() -> AsyncIterator[tuple[Engine, str]]:
    """The model that ships: its text reads as the tokens it was written in, so text carries a program's whole state."""
    async with Engine("embedded", threads=1) as engine, serving_engine(engine) as server:
        yield engine, server.url


@cb.function
def everything(s: Any, topic: str) -> None:
    s += cb.system("Be brief.")
    s += cb.user(f"Tell of {topic}.")
    s += cb.assistant(
        "Well, " + cb.gen("told", max_tokens=12) + " -- " + cb.select("mood", choices=["good", "bad, so bad"])
    )
    s += cb.user("And?")
    with s.assistant():
        forks = s.fork(3)
        for index, fork in enumerate(forks):
            fork += f" {index}: "
            fork += cb.gen("tip", max_tokens=6, stop="\n")
        forks.join()
        s += "|".join(forks[index]["tip"] for index in range(3))
        s += cb.gen("ip", max_tokens=8, regex=r"[0-9]+\.[0-9]+")


async def outcome(backend: Backend, topic: str) -> tuple[str, list[Any]]:
    state = await everything.arun(topic, backend=backend, temperature=0.0)
    return state.text(), [state[name] for name in ("told", "mood", "ip")]


async def test_a_program_says_there_what_it_says_here():
    with anyio.fail_after(120):
        async with served_embedded() as (engine, url), RuntimeEndpoint(url) as remote:
            here, there = await outcome(engine, "France"), await outcome(remote, "France")
            assert there == here
            assert remote.chat_template.source == engine.chat_template.source  # as the server told
            assert "<|im_start|>assistant\nWell, " in there[0]


async def test_streams_batches_and_cached_prefixes():
    with anyio.fail_after(120):
        async with served_embedded() as (engine, url), RuntimeEndpoint(url) as remote:
            state = await everything.arun("Spain", backend=remote, stream=True, **LIMIT)
            pieces = [piece async for piece in state.text_async_iter("told")]
            await state.wait()
            assert "".join(pieces) == state["told"]
            items = [{"topic": f"city {number}"} for number in range(20)]
            there = await everything.arun_batch(items, backend=remote, **LIMIT)
            here = await everything.arun_batch(items, backend=engine, **LIMIT)
            assert [one.text() for one in there] == [one.text() for one in here]
            assert 0 < state.get_meta_info("told")["completion_tokens"] <= 12
            assert all(one.get_meta_info("ip")["cached_tokens"] > 0 for one in there)
            counts = (await remote.statistics())["statistics"]["requests"]
            assert counts["live"] == 0
            while (await engine.statistics())["scheduler"]["slots_locked"]:
                await checkpoint()  # a step sent ahead still holds what its rows have read
            await remote.flush()
            assert (await engine.flush()).freed == 0  # nothing was left


PROMPTS = ["", "x", "The capital of France is", "long " * 30]
CHOICES = [["yes", "no"], [" Paris", " Paris, of course", " Rome"], ["a", "ab", "abc"]]


@pytest.mark.parametrize("text", PROMPTS, ids=["empty", "one", "few", "many"])
@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: choices[0].strip())
async def test_scores_are_the_engine_s_own(tmp_path: Path, text: str, choices: list[str]):
    with anyio.fail_after(120):
        async with served(tmp_path) as (engine, url), RuntimeEndpoint(url) as remote:
            here = await engine.score(Prompt(tail=text, text=text), choices, unconditional=True)
            there = await remote.score(Prompt(tail=text, text=text), choices, unconditional=True)
            for one, other in zip(here.scores, there.scores, strict=True):
                assert other.tokens == one.tokens
                assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)
                assert other.unconditional == pytest.approx(one.unconditional, abs=1e-5)
            assert there.prompt_tokens == here.prompt_tokens


async def test_log_probabilities_come_along(tmp_path: Path):
    with anyio.fail_after(120):
        async with served(tmp_path) as (engine, url), RuntimeEndpoint(url) as remote:
            sampling = SamplingParams(**LIMIT, return_logprob=True, top_logprobs_num=2, logprob_start=0)
            here = await engine.complete("France is", sampling)
            deltas = [delta async for delta in remote.generate(Prompt(text="France is"), sampling)]
            assert [token for delta in deltas for token in delta.tokens] == list(here.tokens)
            for side, expected in (("logprobs", here.logprobs), ("input_logprobs", here.input_logprobs)):
                told = [one for delta in deltas for one in getattr(delta, side)]
                assert [one.token for one in told] == [one.token for one in expected]
                assert [one.logprob for one in told] == pytest.approx([one.logprob for one in expected], abs=1e-5)
                assert [len(one.top) for one in told] == [2] * len(told)


async def test_cancelling_aborts_at_the_server(tmp_path: Path):
    with anyio.fail_after(120):
        async with served(tmp_path, context_length=4096) as (engine, url), RuntimeEndpoint(url) as remote:
            heard = anyio.Event()

            async def run() -> None:
                async for delta in remote.generate(
                    Prompt(text="on and on"), SamplingParams(max_new_tokens=4000, ignore_eos=True)
                ):
                    if delta.text:
                        heard.set()

            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await heard.wait()
                group.cancel_scope.cancel()
            while (await engine.statistics())["requests"]["live"]:
                await anyio.lowlevel.checkpoint()
            assert (await engine.statistics())["requests"]["ended_abort"] == 1


async def test_the_server_s_own_refusals_name_their_field(tmp_path: Path):
    with anyio.fail_after(120):
        async with served(tmp_path) as (_, url), RuntimeEndpoint(url) as remote:
            with pytest.raises(InvalidRequest, match="256") as caught:
                async for _ in remote.generate(Prompt(text="too long " * 200), SamplingParams(max_new_tokens=4)):
                    pass
            assert caught.value.field in ("prompt", "text", "input_ids")
            with pytest.raises(InvalidRequest, match="logit_bias"):
                async for _ in remote.generate(Prompt(text="x"), SamplingParams(logit_bias={10_000: 1.0})):
                    pass


async def test_openai_s_sdk_speaks_to_it_too(tmp_path: Path):
    """Both kinds of model, and choices, against the gateway's other routes."""

    @cb.function
    def chat(s: Any) -> None:
        s += cb.user("France?")
        s += cb.assistant(cb.gen("answer", max_tokens=8))

    with anyio.fail_after(120):
        async with served(tmp_path) as (engine, url):
            options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none"}
            async with OpenAI(engine.name, **options) as remote:
                there = await chat.arun(backend=remote, temperature=0.0)
            here = await chat.arun(backend=engine, temperature=0.0)
            assert there["answer"] == here["answer"]
            assert there.get_meta_info("answer")["completion_tokens"] == 8
            async with OpenAI(engine.name, False, engine.chat_template, **options) as remote:
                assert (await chat.arun(backend=remote, temperature=0.0)).text() == here.text()
                prompt = Prompt(tail="France is", text="France is")
                scores = await remote.score(prompt, [" big", " small"])
                own = await engine.score(prompt, [" big", " small"])
                for one, other in zip(own.scores, scores.scores, strict=True):
                    assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)


# --- as SGLang's servers have it -------------------------------------------------------------------------------------

MODEL = {"model_path": "m", "tokenizer_path": "m", "is_generation": True}


async def test_a_server_without_a_template_gets_the_one_that_is_named():
    with anyio.fail_after(20):
        async with serving(service_of(NATIVE)) as service:
            async with RuntimeEndpoint(service.url, chat_template_name="chatml") as remote:
                assert remote.chat_template.role("user", ()) == ("<|im_start|>user\n", "<|im_end|>\n")
        with pytest.raises(InvalidRequest, match="chat_template_name: 'vicuna' is not one of c4ai-command-r, chatml"):
            RuntimeEndpoint("http://127.0.0.1:1", chat_template_name="vicuna")
        for url in ("127.0.0.1:1", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:x", 30000, None):
            with pytest.raises(InvalidRequest, match="base_url"):
                RuntimeEndpoint(url)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="verify: 'nowhere.pem' cannot be read as certificates"):
            async with RuntimeEndpoint("https://127.0.0.1:1", verify="nowhere.pem"):
                pass


async def test_older_servers_have_their_routes_elsewhere():
    pages = {"/get_model_info": MODEL, "/get_server_info": {"stream_output": True}}
    with anyio.fail_after(20):
        async with serving(Service(NATIVE.speak, pages=pages)) as service, RuntimeEndpoint(service.url) as remote:
            assert remote.model_info == MODEL
            assert (await remote.statistics())["stream_output"] is True


def incremental(body: dict[str, Any]) -> Act:
    pieces = ("ha", "ha", "ha!")
    events = [
        {"text": piece, "output_ids": [index], "meta_info": {"finish_reason": None, "completion_tokens": index + 1}}
        for index, piece in enumerate(pieces)
    ]
    events[-1]["meta_info"] = {"finish_reason": {"type": "stop", "matched": 0}, "completion_tokens": 3}
    return stream(*(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events))


async def test_a_server_that_streams_only_what_is_new():
    pages = {"/model_info": MODEL, "/server_info": {"incremental_streaming_output": True}}
    with anyio.fail_after(20):
        async with serving(Service(incremental, pages=pages)) as service, RuntimeEndpoint(service.url) as remote:
            deltas = [delta async for delta in remote.generate(Prompt(text="x"), SamplingParams())]
    assert [delta.text for delta in deltas] == ["ha", "ha", "ha!"]
    assert [delta.tokens for delta in deltas] == [(0,), (1,), (2,)]


def scored(body: dict[str, Any]) -> Act:
    """Answer as SGLang does: the token at logprob_start_len is there, without a log-probability."""

    def meta(text: str) -> dict[str, Any]:
        start = max(body.get("logprob_start_len", -1), 0)
        tokens = [
            [None if index == start else -float(ord(letter)), ord(letter), None] for index, letter in enumerate(text)
        ]
        return {
            "prompt_tokens": len(text),
            "input_token_logprobs": tokens[start:] if body.get("return_logprob") else [],
        }

    text = body["text"]
    answer = [{"meta_info": meta(one)} for one in text] if isinstance(text, list) else {"meta_info": meta(text)}
    return Act((msgspec.json.encode(answer),), headers=(("content-type", "application/json"),))


async def test_choices_are_scored_without_a_token_that_has_no_log_probability():
    with anyio.fail_after(20):
        pages = {"/model_info": MODEL, "/server_info": {}}
        async with serving(Service(scored, pages=pages)) as service, RuntimeEndpoint(service.url) as remote:
            scores = await remote.score(Prompt(text="0123456789"), ["ab", "ac"])
            assert [score.tokens for score in scores.scores] == [(97, 98), (97, 99)]
            assert [score.logprobs for score in scores.scores] == [(-97.0, -98.0), (-97.0, -99.0)]
            assert service.asked[-1].body["logprob_start_len"] == 2  # a few tokens before the prompt's end, no more


async def test_many_choices_go_in_several_requests():
    choices = [f"{number:03}" for number in range(100)]
    with anyio.fail_after(20):
        pages = {"/model_info": MODEL, "/server_info": {}}
        async with serving(Service(scored, pages=pages)) as service, RuntimeEndpoint(service.url) as remote:
            scores = await remote.score(Prompt(text="0123456789"), choices)
            assert [score.text for score in scores.scores] == choices
            assert [score.tokens for score in scores.scores] == [tuple(map(ord, choice)) for choice in choices]
            assert [len(one.body["text"]) for one in service.asked[1:]] == [64, 37]


def unlike(body: dict[str, Any]) -> Act:
    """Answer with tokens that all change with what stands behind them."""

    def meta(text: str) -> dict[str, Any]:
        start = max(body.get("logprob_start_len", -1), 0)
        tokens = [[None if index == start else -1.0, 100 * len(text) + index, None] for index in range(len(text))]
        return {"prompt_tokens": len(text), "input_token_logprobs": tokens[start:]}

    text = body["text"]
    answer = [{"meta_info": meta(one)} for one in text] if isinstance(text, list) else {"meta_info": meta(text)}
    return Act((msgspec.json.encode(answer),), headers=(("content-type", "application/json"),))


async def test_a_prompt_that_reads_otherwise_from_its_beginning_is_scored_from_there():
    with anyio.fail_after(20):
        pages = {"/model_info": MODEL, "/server_info": {}}
        async with serving(Service(unlike, pages=pages)) as service, RuntimeEndpoint(service.url) as remote:
            scores = await remote.score(Prompt(text="0123456789"), ["a", "bc"])
            assert [len(score.tokens) for score in scores.scores] == [
                10,
                11,
            ]  # all but the first, which follows nothing
            assert [one.body["logprob_start_len"] for one in service.asked[1:]] == [2, 0]


async def test_a_generation_that_somebody_aborted_is_aborted():
    event = {"error": {"message": "ended by its name", "type": "aborted_error", "param": None, "code": "aborted"}}
    script = stream(*NATIVE.begun("Par"), b"data: " + msgspec.json.encode(event) + b"\n\n")
    with anyio.fail_after(20):
        async with serving(service_of(NATIVE, script)) as service, RuntimeEndpoint(service.url) as remote:
            with pytest.raises(Aborted, match="ended by its name"):
                async for _ in remote.generate(Prompt(text="x"), SamplingParams()):
                    pass


@cb.function
def healed(s: Any, beginning: str) -> None:
    s += beginning + cb.gen("one", max_tokens=6, heal=True)
    s += " The capital of J" + cb.gen("two", max_tokens=6, heal=True)


async def test_a_prompt_s_end_is_healed_there_as_here(tmp_path: Path):
    with anyio.fail_after(120):
        async with served(tmp_path) as (engine, url), RuntimeEndpoint(url) as remote:
            for beginning in ("x + 1", "Stop he", "The capital of Fr"):
                told: list[Any] = []
                for backend in (engine, remote):
                    state = await healed.arun(beginning, backend=backend, temperature=0.0)
                    metas = [state.get_meta_info(name) for name in ("one", "two")]
                    told.append([state["one"], metas[0]["output_ids"], metas[0].get("healed"), metas[1]["healed"]])
                    assert state.text() == f"{beginning}{state['one']} The capital of J{state['two']}"
                assert told[0] == told[1]


async def test_the_texts_of_tokens_are_told_there_as_here_special_ones_too():
    async with served_embedded() as (engine, url), RuntimeEndpoint(url) as remote:
        told = await remote.token_texts(range(300))
        assert told == await engine.token_texts(range(300))
        assert told[0] == "<|endoftext|>"


@pytest.mark.parametrize("told", [False, True])
async def test_a_seed_that_a_server_would_forget_is_refused(told: bool):
    pages = {"/model_info": MODEL, "/server_info": {"enable_deterministic_inference": told}}
    async with serving(Service(NATIVE.speak, pages=pages)) as service, RuntimeEndpoint(service.url) as remote:
        seeded = SamplingParams(seed=7)
        if told:
            remote.verify(seeded)
        else:
            with pytest.raises(InvalidRequest, match=r"seed: the server at .* has no such setting"):
                remote.verify(seeded)


async def test_a_server_that_does_not_heal_is_not_asked_to():
    pages = {"/model_info": MODEL, "/server_info": {}}
    async with serving(Service(NATIVE.speak, pages=pages)) as service, RuntimeEndpoint(service.url) as remote:
        with pytest.raises(InvalidRequest, match=r"heal: the server at .* has no such setting"):
            await healed.arun("a", backend=remote)


@cb.function
def thinking(s: Any, prompt: str, model_type: str) -> None:
    s += prompt
    s += cb.separate_reasoning(cb.gen("x", regex="[a-z]+", max_tokens=100), model_type=model_type)


async def test_reasoning_is_told_apart_and_a_constraint_binds_what_is_behind_it():
    fake, parsing = FakeEngine(), {"reasoning_parser": "deepseek-r1"}  # it says what it is asked
    with anyio.fail_after(60):
        async with (
            serving_engine(fake, **parsing) as server,
            RuntimeEndpoint(server.url) as remote,
        ):
            state = await thinking.arun("Let me see.</think>\nyes", "deepseek-r1", backend=remote)
            assert (state["x_reasoning_content"], state["x"]) == ("Let me see.", "yes")
            assert fake.samplings[-1].reasoning == markers_of("deepseek-r1")
            with pytest.raises(InvalidRequest, match="model_type: its reasoning ends with '◁/think▷'"):
                await thinking.arun("a", "kimi", backend=remote)
        async with serving_engine(fake) as server, RuntimeEndpoint(server.url) as remote:  # which parts nothing itself
            state = await thinking.arun("Let me see.</think>\nyes", "deepseek-r1", backend=remote)
            assert (state["x_reasoning_content"], state["x"]) == ("Let me see.", "yes")
            assert fake.samplings[-1].reasoning is None
