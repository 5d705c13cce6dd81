"""What Anthropic's API is asked, turn by turn, and how an answer that the program began goes on."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import callboard as cb
from callboard import GenerationFailed, InvalidRequest
from callboard.actors.backend import Prompt
from callboard.actors.sampling import SamplingParams

from .dialects import ANTHROPIC, service_of
from .service import serving, stream

pytestmark = pytest.mark.anyio

ASKED = Prompt(text="user: France?\nassistant: ", messages=({"role": "user", "content": "France?"},), role="assistant")


@cb.function
def two_turns(s: Any) -> None:
    s += cb.system("Be brief.")
    s += cb.user("France?")
    s += cb.assistant(cb.gen("first", max_tokens=9))
    s += cb.user("Sure?")
    s += cb.assistant(cb.gen("second", max_tokens=9))


async def test_the_system_prompt_is_there_in_every_turn():
    with anyio.fail_after(20):
        async with serving(service_of(ANTHROPIC)) as service, ANTHROPIC.make(service.url) as backend:
            state = await two_turns.arun(backend=backend)
    first, second = (one.body for one in service.asked)
    assert first["system"] == second["system"] == "Be brief."
    assert first["messages"] == [{"role": "user", "content": "France?"}]
    assert second["messages"] == [
        {"role": "user", "content": "France?"},
        {"role": "assistant", "content": "re: France?"},
        {"role": "user", "content": "Sure?"},
    ]
    assert state.messages()[0] == {"role": "system", "content": "Be brief."}
    headers = service.asked[0].headers  # one or the other, as the SDK's version has it
    assert "secret" in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer "))


async def test_a_request_has_nothing_that_is_default():
    with anyio.fail_after(20):
        async with serving(service_of(ANTHROPIC)) as service, ANTHROPIC.make(service.url) as backend:
            bound = SamplingParams(
                max_new_tokens=9, temperature=0.0, top_p=0.5, top_k=3, stop=("\n\nQ",), json_schema='{"type":"object"}'
            )
            for sampling in (SamplingParams(max_new_tokens=9), bound):
                async for _ in backend.generate(ASKED, sampling):
                    pass
    plain = {
        "model": "claude",
        "messages": [{"role": "user", "content": "France?"}],
        "max_tokens": 9,
        "stream": True,
    }
    assert service.asked[0].body == plain
    assert service.asked[1].body == {
        **plain,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "stop_sequences": ["\n\nQ"],
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    }


@pytest.mark.parametrize("pieces", [(" Par", "is"), (" ", "Paris"), ("Paris",)])
async def test_an_answer_goes_on_behind_what_the_program_began(pieces: tuple[str, ...]):
    """The API takes no space at the end of a message: it is left out, and not written twice when it comes back."""

    @cb.function
    def begun(s: Any) -> None:
        s += cb.user("France?")
        s += cb.assistant("The capital is " + cb.gen("answer") + ".")

    with anyio.fail_after(20):
        async with serving(service_of(ANTHROPIC, stream(*ANTHROPIC.told(*pieces)))) as service:
            async with ANTHROPIC.make(service.url) as backend:
                state = await begun.arun(backend=backend)
    assert service.asked[0].body["messages"][-1] == {"role": "assistant", "content": "The capital is"}
    assert state["answer"] == "Paris"
    assert state.messages()[-1]["content"] == "The capital is Paris."


async def test_a_system_message_in_the_middle_is_refused():
    @cb.function
    def late(s: Any) -> None:
        s += cb.user("France?")
        s += cb.system("Be brief.")
        s += cb.assistant(cb.gen("answer"))

    with anyio.fail_after(20):
        async with serving(service_of(ANTHROPIC)) as service, ANTHROPIC.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="system messages first"):
                await late.arun(backend=backend)
            assert service.asked == []


async def test_a_stopped_answer_is_a_failure():
    with anyio.fail_after(20):
        refused = stream(*ANTHROPIC.told("I", reason="refusal"))
        async with serving(service_of(ANTHROPIC, refused)) as service, ANTHROPIC.make(service.url) as backend:
            with pytest.raises(GenerationFailed, match="safety classifier"):
                async for _ in backend.generate(ASKED, SamplingParams()):
                    pass


def test_its_temperature_ends_at_one():
    with pytest.raises(InvalidRequest, match=r"temperature: .*0 to 1, and 1\.5"):
        ANTHROPIC.make("http://127.0.0.1:1").verify(SamplingParams(temperature=1.5))
