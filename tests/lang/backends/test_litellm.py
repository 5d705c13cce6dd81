"""LiteLLM's backend: on a stand-in that OpenAI's SDK speaks for, and on LiteLLM where it is installed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import anyio
import openai
import pytest

import callboard as cb
from callboard import GenerationFailed, InvalidRequest, LiteLLM, Overloaded, Retries
from callboard.actors.sampling import SamplingParams

from .dialects import CHAT, service_of
from .service import CUT, HANG, Act, serving, stream
from .test_openai import ASKED

pytestmark = pytest.mark.anyio


def stand_in() -> ModuleType:
    """Give a module with `acompletion`, as it is called here; OpenAI's own errors stand for their subclasses."""

    async def acompletion(
        *, model: str, base_url: str, api_key: str, timeout: float, num_retries: int, max_retries: int, **request: Any
    ) -> Any:
        client = openai.AsyncOpenAI(
            base_url=base_url, api_key=api_key, timeout=timeout, max_retries=num_retries or max_retries
        )
        try:
            opened = await client.chat.completions.create(model=model.removeprefix("openai/"), **request)
        except BaseException:
            await client.close()
            raise
        return Wrapper(opened, client)

    class Wrapper:
        def __init__(self, opened: Any, client: Any) -> None:
            self.opened, self.client = opened, client

        def __aiter__(self) -> Any:
            return aiter(self.opened)

        async def aclose(self) -> None:
            await self.opened.close()
            await self.client.close()

    module: Any = ModuleType("litellm")
    module.acompletion = acompletion
    return module


@pytest.fixture(params=["stand-in", pytest.param("litellm", marks=pytest.mark.filterwarnings("ignore"))])  # its own
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "litellm", stand_in())
    else:
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the net
        pytest.importorskip("litellm")

    def made(url: str, **options: Any) -> LiteLLM:
        known = {"base_url": f"{url}/v1", "api_key": "secret", "retries": Retries(times=2, first_s=0.0, longest_s=1.0)}
        return LiteLLM("openai/gpt", **{**known, **options})

    return made


@cb.function
def two_turns(s: Any) -> None:
    s += cb.system("Be brief.")
    s += cb.user("France?")
    s += cb.assistant(cb.gen("first", max_tokens=9, stop="!"))
    s += cb.user(cb.image("https://example.com/a.png") + "Sure?")
    s += cb.assistant(cb.gen("second", max_tokens=9))


@cb.function
def ask(s: Any) -> None:
    s += cb.user("France?")
    s += cb.assistant(cb.gen("first", max_tokens=9))


async def test_turns_settings_and_counts(make: Any) -> None:
    told = [stream(*CHAT.told("Par", "is")), stream(*CHAT.told("Yes", reason="length"))]
    with anyio.fail_after(60):
        async with serving(service_of(CHAT, *told)) as service, make(service.url) as backend:
            state = await two_turns.arun(backend=backend, temperature=0.5)
    assert (state["first"], state["second"]) == ("Paris", "Yes")
    meta = state.get_meta_info("second")
    assert (meta["finish_reason"]["type"], meta["prompt_tokens"], meta["completion_tokens"]) == ("length", 7, 2)
    first, second = (one.body for one in service.asked)
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "France?"}]
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("gpt", 9, 0.5)
    assert first["stop"] in (["!"], "!")
    assert first["stream"] is True
    assert second["messages"][3]["content"][0] == {
        "type": "image_url", "image_url": {"url": "https://example.com/a.png"}
    }  # fmt: skip
    assert service.asked[0].headers["authorization"] == "Bearer secret"


async def test_a_busy_service_is_asked_again_and_then_told(make: Any) -> None:
    busy = [CHAT.refusal(429, "slow down", kind="rate_limit_error")] * 4
    with anyio.fail_after(60):
        async with serving(service_of(CHAT, busy[0])) as service, make(service.url) as backend:
            assert (await ask.arun(backend=backend))["first"] == "re: France?"
            assert len(service.asked) == 2
        async with serving(service_of(CHAT, *busy)) as service, make(service.url) as backend:
            with pytest.raises(Overloaded, match="slow down"):
                await ask.arun(backend=backend)
            assert len(service.asked) == 3


async def test_a_refusal_is_the_program_s(make: Any) -> None:
    with anyio.fail_after(60):
        async with serving(service_of(CHAT, CHAT.refusal(400, "no such thing"))) as service:
            async with make(service.url) as backend:
                with pytest.raises(InvalidRequest, match="no such thing"):
                    await ask.arun(backend=backend)
            assert len(service.asked) == 1


async def test_a_stream_that_is_cut_is_no_answer(make: Any) -> None:
    with anyio.fail_after(60):
        async with serving(service_of(CHAT, stream(*CHAT.begun("Par"), CUT))) as service, make(service.url) as backend:
            with pytest.raises(GenerationFailed):
                await ask.arun(backend=backend)


async def test_an_error_in_the_middle_of_a_stream_is_no_answer_and_not_repeated(make: Any) -> None:
    broken = stream(*CHAT.begun("Par"), CHAT.broken("the lights went out", "server_error"))
    with anyio.fail_after(60):
        async with serving(service_of(CHAT, broken)) as service, make(service.url) as backend:
            with pytest.raises(GenerationFailed, match="the lights went out"):
                await ask.arun(backend=backend)
            assert len(service.asked) == 1


async def test_silence_ends_in_time(make: Any) -> None:
    with anyio.fail_after(60):
        async with serving(service_of(CHAT, Act((HANG,), silent=True))) as service:
            async with make(service.url, timeout=0.2) as backend:
                with pytest.raises(TimeoutError, match=r"silent for 0\.2 s"):
                    await ask.arun(backend=backend)


async def test_silence_in_the_middle_of_a_stream_ends_in_time(make: Any) -> None:
    with anyio.fail_after(60):
        async with serving(service_of(CHAT, stream(*CHAT.begun("Par"), HANG))) as service:
            async with make(service.url, timeout=0.2) as backend:
                with pytest.raises(TimeoutError, match=r"silent for 0\.2 s"):
                    await ask.arun(backend=backend)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 529])
async def test_a_service_that_is_late_or_broken_is_asked_again(make: Any, status: int) -> None:
    with anyio.fail_after(60):
        script = service_of(CHAT, CHAT.refusal(status, "not now", kind="server_error"))
        async with serving(script) as service, make(service.url) as backend:
            assert (await ask.arun(backend=backend))["first"] == "re: France?"
            assert len(service.asked) == 2


async def test_a_service_that_asks_for_more_time_than_there_is_is_not_waited_for(make: Any) -> None:
    with anyio.fail_after(60):
        script = service_of(CHAT, CHAT.refusal(429, "slow down", kind="rate_limit_error", retry_after="100"))
        async with serving(script) as service, make(service.url) as backend:
            with pytest.raises(Overloaded, match="slow down") as refused:
                await ask.arun(backend=backend)
            assert refused.value.retry_after_s == 100
            assert len(service.asked) == 1


async def test_headers_of_one_s_own_are_sent(make: Any) -> None:
    with anyio.fail_after(60):
        async with serving(service_of(CHAT)) as service:
            async with make(service.url, default_headers={"x-mine": "yes"}) as backend:
                await ask.arun(backend=backend)
            assert service.asked[0].headers["x-mine"] == "yes"


async def test_cancelling_closes_the_connection(make: Any) -> None:
    with anyio.fail_after(60):
        async with serving(service_of(CHAT, stream(*CHAT.begun("Par"), HANG))) as service:
            async with make(service.url) as backend, anyio.create_task_group() as group:
                group.start_soon(lambda: ask.arun(backend=backend))
                await service.hanging.wait()
                group.cancel_scope.cancel()
            await service.gone.wait()


async def test_what_it_cannot_say_is_refused_before_anything_is_sent(make: Any) -> None:
    with anyio.fail_after(60):
        async with serving(service_of(CHAT)) as service, make(service.url) as backend:
            for setting, value in (("top_k", 3), ("min_p", 0.5), ("stop_regex", "a")):
                with pytest.raises(InvalidRequest, match=f"{setting}: LiteLLM model openai/gpt has no such setting"):
                    await ask.arun(backend=backend, **{setting: value})
            assert service.asked == []


async def test_a_schema_goes_in_openai_s_form(make: Any) -> None:
    with anyio.fail_after(60):
        async with serving(service_of(CHAT)) as service, make(service.url) as backend:
            async for _ in backend.generate(ASKED, SamplingParams(json_schema='{"type":"object"}')):
                pass
    assert service.asked[0].body["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_where_it_is_not_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ImportError, match=r"callboard\[litellm\]"):
        LiteLLM("openai/gpt")


def test_its_arguments_are_sglang_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", stand_in())
    backend = LiteLLM("openai/gpt", None, "key", "org", "http://a", 9.0, 5, {"a": "b"})
    assert (backend.timeout_s, backend.retries.times) == (9.0, 5)


def test_crusoe_is_openai_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRUSOE_API_KEY", raising=False)
    with pytest.raises(InvalidRequest, match="api_key"):
        cb.Crusoe("meta-llama/Llama-3.1-8B-Instruct")
    monkeypatch.setenv("CRUSOE_API_KEY", "secret")
    backend = cb.Crusoe("some/model-instruct")
    assert backend.is_chat_model is True
    assert backend.who.startswith("Crusoe ")


async def test_crusoe_speaks_openai_s_words() -> None:
    with anyio.fail_after(20):
        async with serving(service_of(CHAT)) as service:
            async with cb.Crusoe("llama", "secret", f"{service.url}/v1", concurrency=2) as backend:
                assert (await ask.arun(backend=backend))["first"] == "re: France?"
            assert service.asked[0].headers["authorization"] == "Bearer secret"
