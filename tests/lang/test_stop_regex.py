"""`stop_regex` ends a text where the expression first matches, on every backend that can."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import callboard as cb
from callboard.actors.engine import Engine
from callboard.actors.gateway import Address, Gateway, GatewayOptions
from callboard.lang.backends.native import NativeReply

pytestmark = pytest.mark.anyio


@cb.function
def spell(s: Any) -> None:
    s += "x: " + cb.gen(
        "x", regex="[ab]{60}", stop_regex=["a{1,9}b+a", "bb+ab"], max_tokens=80, temperature=1.0, seed=4
    )
    s += "; " + cb.gen("y", max_tokens=2)


async def test_it_ends_the_text_on_the_engine_and_through_a_server_alike() -> None:
    with anyio.fail_after(60):
        async with Engine() as engine:
            supervisor = await engine.supervisor.supervise("gateway", grace=10.0)
            gateway = await supervisor.spawn(lambda: Gateway(engine, GatewayOptions(port=0)), name="gateway")
            here = await spell.arun(backend=engine)
            async with cb.RuntimeEndpoint(await gateway.ask(Address())) as server:
                there = await spell.arun(backend=server, stream=True)
                assert "".join([text async for text in there.text_async_iter("x")]) == here["x"]
    reason = here.get_meta_info("x")["finish_reason"]
    assert reason["type"] == "stop"
    assert reason["matched"] in ("a{1,9}b+a", "bb+ab")
    assert there.get_meta_info("x")["finish_reason"] == reason
    assert here.text().startswith(f"x: {here['x']}; ")


async def test_the_backend_without_a_model_keeps_to_it() -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "Q" + cb.gen("x")

    async with cb.NullBackend(text="one 22 three") as backend:
        state = await body.arun(backend=backend, stop_regex=r"\d+")
    assert state["x"] == "one "
    assert state.get_meta_info("x")["finish_reason"]["matched"] == r"\d+"


def test_a_servers_text_is_held_back_while_it_may_become_a_stop() -> None:
    reply = NativeReply("server", cb.SamplingParams(stop_regex=("1+2",)))
    said = [reply.add({"text": text}).text for text in ("a1", "a11", "a11b", "a11b112", "a11b112c")]
    assert said == ["a", "", "11b", "", ""]
    last = reply.add({"text": "a11b", "meta_info": {"finish_reason": {"type": "stop", "matched": "1+2"}}})
    assert (last.text, last.finish is not None) == ("", True)


async def test_a_vendor_without_it_refuses_it_before_anything_is_sent() -> None:
    with pytest.raises(cb.InvalidRequest, match="stop_regex"):
        cb.OpenAI("gpt-4o", api_key="none").verify(cb.SamplingParams(stop_regex=("a",)))
