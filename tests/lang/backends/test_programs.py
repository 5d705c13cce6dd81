"""Whole programs on every remote backend: turns, forks, batches, streams, and what is refused at submit."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard import GenerationFailed, InvalidRequest
from callboard.actors.backend import Prompt

from .dialects import CHATTING, DIALECTS, NATIVE, Dialect, service_of
from .service import HANG, serving, stream

pytestmark = pytest.mark.anyio

each = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


@cb.function
def two_turns(s: Any, first: str, second: str) -> None:
    s += cb.system("Be brief.")
    s += cb.user(first)
    s += cb.assistant(cb.gen("first_answer", max_tokens=32))
    s += cb.user(second)
    s += cb.assistant(cb.gen("second_answer", max_tokens=32, stop="!"))


@cb.function
def tips(s: Any) -> None:
    s += cb.system("Be brief.")
    forks = s.fork(3)
    for index, fork in enumerate(forks):
        fork += cb.user(f"Tip {index}?")
        fork += cb.assistant(cb.gen("tip", max_tokens=32))
    forks.join()
    s += cb.user(" / ".join(fork["tip"] for fork in forks))
    s += cb.assistant(cb.gen("summary", max_tokens=32))


@each
async def test_a_chat_of_two_turns(dialect: Dialect):
    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service, dialect.make(service.url) as backend:
            state = await two_turns.arun("France?", second="Sure?", backend=backend)
    assert (state["first_answer"], state["second_answer"]) == ("re: France?", "re: Sure?")
    assert state.get_meta_info("second_answer")["prompt_tokens"] == 7
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert state.text().endswith("user: Sure?\nassistant: re: Sure?\n")


@each
async def test_branches_and_their_join(dialect: Dialect):
    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service, dialect.make(service.url) as backend:
            state = await tips.arun(backend=backend)
    assert state["summary"] == "re: re: Tip 0? / re: Tip 1? / re: Tip 2?"


@each
async def test_a_batch_of_twenty(dialect: Dialect):
    with anyio.fail_after(40):
        async with serving(service_of(dialect)) as service, dialect.make(service.url) as backend:
            items = [{"first": f"first {number}", "second": f"second {number}"} for number in range(20)]
            states = await two_turns.arun_batch(items, backend=backend)
    assert [state["second_answer"] for state in states] == [f"re: second {number}" for number in range(20)]


@each
async def test_a_program_streams(dialect: Dialect):
    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service, dialect.make(service.url) as backend:
            state = await two_turns.arun("France?", second="Sure?", backend=backend, stream=True)
            pieces = [piece async for piece in state.text_async_iter("first_answer")]
            await state.wait()
    assert "".join(pieces) == "re: France?"


@each
def test_a_script_runs_it_without_a_loop(dialect: Dialect):
    """The backend is entered in the background, on first use, and asked by programs that come after."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(serving(service_of(dialect))) as service:
            backend = dialect.make(service.url)
            try:
                states = two_turns.run_batch(
                    [{"first": "a", "second": "b"}, {"first": "c", "second": "d"}], backend=backend
                )
                assert [state["second_answer"] for state in states] == ["re: b", "re: d"]
                assert two_turns.run("e", second="f", backend=backend)["first_answer"] == "re: e"
            finally:
                from callboard.lang.house import HOUSE

                HOUSE.close()


@each
async def test_cancelling_a_program_closes_its_connections(dialect: Dialect):
    with anyio.fail_after(20):
        hang = stream(*dialect.begun("Par"), HANG)
        async with serving(service_of(dialect, hang)) as service, dialect.make(service.url) as backend:
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    await two_turns.arun("France?", second="Sure?", backend=backend)

                group.start_soon(run)
                await service.hanging.wait()
                group.cancel_scope.cancel()
            await service.gone.wait()
            state = await two_turns.arun("France?", second="Sure?", backend=backend)
            assert state["first_answer"] == "re: France?"


@each
async def test_a_failure_is_the_program_s(dialect: Dialect):
    with anyio.fail_after(20):
        broken = stream(*dialect.begun("Par"), dialect.broken("the lights went out", "api_error"))
        async with serving(service_of(dialect, broken)) as service, dialect.make(service.url) as backend:
            with pytest.raises(GenerationFailed, match="the lights went out"):
                await two_turns.arun("France?", second="Sure?", backend=backend)


@each
async def test_what_a_backend_cannot_do_is_refused_before_anything_is_sent(dialect: Dialect):
    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service, dialect.make(service.url) as backend:
            for argument, value in (("top_k", 3), ("min_p", 0.5), ("ignore_eos", True), ("repetition_penalty", 1.5)):
                if argument in backend.capabilities.sampling:
                    continue
                with pytest.raises(InvalidRequest, match=f"{argument}: .*no such setting") as caught:
                    await two_turns.arun("France?", second="Sure?", backend=backend, **{argument: value})
                assert caught.value.field == argument
            assert service.asked == []


@each
async def test_half_a_character_is_refused_before_anything_is_sent(dialect: Dialect):
    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service, dialect.make(service.url) as backend:
            for arguments, field in (
                ({"first": "a\ud83d", "second": "b"}, "text"),
                ({"first": "a", "second": "b", "stop": "\ud83d"}, "stop"),
            ):
                with pytest.raises(InvalidRequest, match=rf"{field}: it holds half a character, '\\ud83d'"):
                    await two_turns.arun(**arguments, backend=backend)
            assert service.asked == []


@each
async def test_one_regex_more_than_it_can(dialect: Dialect):
    @cb.function
    def bound(s: Any) -> None:
        s += cb.user("France?")
        s += cb.assistant(cb.gen("answer", regex="[a-z]+"))

    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service, dialect.make(service.url) as backend:
            if dialect is NATIVE:
                await bound.arun(backend=backend)
                assert service.asked[0].body["sampling_params"]["regex"] == "[a-z]+"
            else:
                with pytest.raises(InvalidRequest, match="regex: .*no such setting"):
                    await bound.arun(backend=backend)
                assert service.asked == []


@pytest.mark.parametrize("dialect", CHATTING, ids=lambda dialect: dialect.name)
async def test_chat_services_take_text_in_roles_only(dialect: Dialect):
    @cb.function
    def stray(s: Any) -> None:
        s += cb.user("France?")
        s += "by the way"
        s += cb.assistant(cb.gen("answer"))

    @cb.function
    def bare(s: Any) -> None:
        s += "France?"
        s += cb.gen("answer")

    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service, dialect.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="'by the way"):
                await stray.arun(backend=backend)
            assert service.asked == []
            assert (await bare.arun(backend=backend))["answer"] == "re: France?"
            assert dialect.question(service.asked[0].body) == "France?"


@pytest.mark.parametrize("dialect", CHATTING, ids=lambda dialect: dialect.name)
async def test_chat_services_do_not_choose(dialect: Dialect):
    @cb.function
    def choose(s: Any) -> None:
        s += cb.user("France?")
        s += cb.assistant(cb.select("answer", choices=["Paris", "Rome"]))

    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service, dialect.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="choices: .*no log-probabilities"):
                await choose.arun(backend=backend)
            assert service.asked == []


@each
async def test_entering_twice_and_using_it_outside(dialect: Dialect):
    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service:
            backend = dialect.make(service.url)
            with pytest.raises(RuntimeError, match="not entered"):
                await anext(backend.generate(_ASKED, cb.SamplingParams()))
            for _ in range(2):  # one after the other is fine
                async with backend:
                    with pytest.raises(RuntimeError, match="entered already"):
                        await backend.__aenter__()
                    assert (await two_turns.arun("a", second="b", backend=backend))["first_answer"] == "re: a"
                with pytest.raises(RuntimeError, match="not entered"):
                    await anext(backend.generate(_ASKED, cb.SamplingParams()))


@pytest.mark.parametrize(
    ("name", "make"), [("openai", cb.OpenAI), ("anthropic", cb.Anthropic), ("google.genai", cb.Gemini)]
)
def test_a_missing_sdk_is_named(name: str, make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"callboard\[remote\]"):
        make("model", api_key="secret")


@pytest.mark.parametrize("make", [cb.OpenAI, cb.Anthropic])
def test_more_requests_at_once_than_the_sdk_has_connections(make: Any):
    with pytest.raises(InvalidRequest, match="concurrency: 1001 is more than the 1000 connections"):
        make("model", api_key="secret", concurrency=1001)


@each
def test_bad_options_are_named(dialect: Dialect):
    for options, field in (({"timeout_s": 0}, "timeout_s"), ({"concurrency": 0}, "concurrency")):
        with pytest.raises(InvalidRequest) as caught:
            dialect.make("http://127.0.0.1:1", **options)
        assert caught.value.field == field
    with pytest.raises(InvalidRequest, match="times"):
        dialect.make("http://127.0.0.1:1", retries=cb.Retries(times=-1))


_ASKED = Prompt(text="user: x\nassistant: ", messages=({"role": "user", "content": "x"},), role="assistant")
