"""Every row of the error table: what was given, the words that come back, and that the server still serves."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest

from callboard.actors.gateway import GatewayOptions

from .fake_engine import FakeEngine
from .serving import events, serving

pytestmark = pytest.mark.anyio

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/generate"
SAY = {"messages": [{"role": "user", "content": "hi"}]}

# route, body, the field that is named, words of the message
REFUSED: list[tuple[str, Any, str, str]] = [
    (CHAT, [1], "body", "a JSON object is needed, not an array"),
    (CHAT, {}, "messages", "missing required field"),
    (CHAT, {"messages": []}, "messages", "at least one message"),
    (CHAT, {"messages": ["hi"]}, "messages[0]", "expected `object`, got `str`"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "missing required field"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'robot' is none of system, dev"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0]", "reads text"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages[0].name", "speakers"),
    (CHAT, {**SAY, "temprature": 1}, "temprature", "no such field"),
    (CHAT, {**SAY, "temperature": "hot"}, "temperature", "expected `float`, got `str`"),
    (CHAT, {**SAY, "temperature": -1}, "temperature", "-1.0 is outside [0, 100]"),
    (CHAT, {**SAY, "top_p": 0}, "top_p", "outside (0, 1]"),
    (CHAT, {**SAY, "max_tokens": -1}, "max_tokens", "-1 is outside 0 to"),
    (CHAT, {**SAY, "max_tokens": True}, "max_tokens", "expected `int`, got `bool`"),
    (CHAT, {**SAY, "max_tokens": 2, "min_tokens": 3}, "min_tokens", "3 is more than max_tokens, 2"),
    (CHAT, {**SAY, "max_tokens": 2, "max_completion_tokens": 3}, "max_tokens", "the two differ"),
    (CHAT, {**SAY, "n": 0}, "n", "0 is outside 1 to 128"),
    (CHAT, {**SAY, "n": 5_000_000}, "n", "5000000 is outside 1 to 128"),
    (CHAT, {**SAY, "logprobs": True, "top_logprobs": 10**9}, "top_logprobs", "1000000000 is outside"),
    (CHAT, {**SAY, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "21 is more than 20"),
    (CHAT, {**SAY, "top_logprobs": 2}, "top_logprobs", "needs logprobs to be true"),
    (CHAT, {**SAY, "stop": ["x"] * 33}, "stop", "33 strings given, at most 32"),
    (CHAT, {**SAY, "stop": [1]}, "stop[0]", "expected `str`, got `int`"),
    (CHAT, {**SAY, "logit_bias": {"5000": 1}}, "logit_bias", "token 5000 is outside the vocabulary of 300"),
    (CHAT, {**SAY, "logit_bias": {"5": 101}}, "logit_bias", "outside [-100, 100]"),
    (CHAT, {**SAY, "logit_bias": {"x": 1}}, "logit_bias", "expected `int`"),
    (CHAT, {**SAY, "seed": 1.5}, "seed", "expected `int"),
    (CHAT, {**SAY, "tools": [{"type": "function"}]}, "tools", "not supported yet"),
    (CHAT, {**SAY, "reasoning_effort": "high"}, "reasoning_effort", "no levels of reasoning"),
    (CHAT, {**SAY, "chat_template": "{{ x }}"}, "chat_template", "never comes with a request"),
    (CHAT, {**SAY, "response_format": {"type": "xml"}}, "response_format", "'xml' is not supported"),
    (CHAT, {**SAY, "response_format": {"type": "json_schema"}}, "response_format", "needs 'json_schema'"),
    (CHAT, {**SAY, "response_format": {"type": "json_object", "x": 1}}, "response_format", "takes no other field"),
    (CHAT, {**SAY, "response_format": {"type": "json_object"}, "regex": "a"}, "regex", "response_format is given too"),
    (CHAT, {**SAY, "regex": "a", "ebnf": "start: /a/"}, "ebnf", "regex is given too"),
    (CHAT, {**SAY, "response_format": {"type": "regex"}}, "response_format", "needs the field 'regex'"),
    (CHAT, {**SAY, "stream_options": {"usage": True}}, "stream_options", "unknown field `usage`"),
    (TEXT, {}, "prompt", "missing required field"),
    (TEXT, {"prompt": ""}, "prompt", "no tokens"),
    (TEXT, {"prompt": []}, "prompt", "a string, an array of token ids"),
    (TEXT, {"prompt": {"a": 1}}, "prompt", "not an object"),
    (TEXT, {"prompt": [1, "a"]}, "prompt", "array of token ids is needed"),
    (TEXT, {"prompt": [1, True]}, "prompt", "array of token ids is needed"),
    (TEXT, {"prompt": [["a"]]}, "prompt[0]", "array of token ids is needed"),
    (TEXT, {"prompt": [300]}, "prompt", "token 300 is outside the vocabulary of 300"),
    (TEXT, {"prompt": [10**30]}, "prompt", "outside the vocabulary of 300"),
    (TEXT, {"prompt": [-1]}, "prompt", "token -1 is outside"),
    (TEXT, {"prompt": ["x"] * 513}, "prompt", "513 prompts given, at most 512"),
    (TEXT, {"prompt": ["x"] * 20, "n": 100}, "n", "100 choices of 20 prompts are 2000 sequences"),
    (TEXT, {"prompt": "x" * 5000}, "prompt", "it has 5000 tokens; the context holds 4096"),
    (TEXT, {"prompt": [999] * 5000}, "prompt", "it has 5000 tokens; the context holds 4096, output included"),
    (TEXT, {"prompt": ["x", "y" * (1 << 20) + "y"]}, "prompt[1]", "1048577 characters; the context holds 4096 tokens"),
    (TEXT, {"prompt": "x", "rid": "y" * 257}, "rid", "a name has 1 to 256 characters"),
    (CHAT, {**SAY, "rid": "y" * 257}, "rid", "a name has 1 to 256 characters"),
    (CHAT, {"messages": [{"role": "user", "content": "y" * (1 << 20)}]}, "messages", "the context holds 4096 tokens"),
    (TEXT, {"prompt": "x", "best_of": 3}, "best_of", "not ranked"),
    (TEXT, {"prompt": "x", "suffix": "y"}, "suffix", "not into a gap"),
    (TEXT, {"prompt": "x", "logprobs": 21}, "logprobs", "21 is more than 20"),
    (NATIVE, {}, "text", "exactly one of text and input_ids"),
    (NATIVE, {"text": "a", "input_ids": [1]}, "text", "exactly one of text and input_ids"),
    (NATIVE, {"text": [1]}, "text", "give those as input_ids"),
    (NATIVE, {"input_ids": "a"}, "input_ids", "give those as text"),
    (NATIVE, {"input_ids": [[1], [999]]}, "input_ids[1]", "token 999 is outside"),
    (NATIVE, {"text": "a", "sampling_params": {"max_tokens": 1}}, "sampling_params.max_tokens", "no such field"),
    (NATIVE, {"text": "a", "sampling_params": {"top_k": 0}}, "top_k", "neither -1 (all) nor at least 1"),
    (NATIVE, {"text": "a", "sampling_params": {"json_schema": 5}}, "sampling_params.json_schema", "expected"),
    (NATIVE, {"text": "a", "sampling_params": {"structural_tag": 5}}, "sampling_params.structural_tag", "expected"),
    (NATIVE, {"text": "a", "sampling_params": {"json_schema": {}, "regex": "a"}}, "json_schema", "regex is given"),
    (NATIVE, {"text": "a", "sampling_params": {"n": 129}}, "n", "129 is outside 1 to 128"),
    (NATIVE, {"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params", "1 values given for 2 prompts"),
    (NATIVE, {"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params.n", "the same for every"),
    (NATIVE, {"text": ["a", "b"], "rid": ["x"]}, "rid", "1 names given for 2 prompts"),
    (NATIVE, {"text": "a", "image_data": "file:///etc/passwd"}, "image_data", "text alone"),
    (NATIVE, {"text": "a", "custom_logit_processor": "x"}, "custom_logit_processor", "code never comes"),
    ("/abort_request", {}, "rid", "the name of a request is needed"),
    ("/abort_request", {"abort_all": True}, "abort_all", "only requests that are named"),
    ("/tokenize", {"prompt": "a", "text": "b"}, "prompt", "exactly one of"),
    ("/tokenize", {"prompt": "y" * (1 << 20) + "y"}, "prompt", "1048577 characters; the context holds 4096 tokens"),
    ("/detokenize", {"tokens": [[1] * (1 << 20), [1]]}, "tokens", "more than the 1048576 allowed in one request"),
    ("/detokenize", {"tokens": "abc"}, "tokens", "array of token ids is needed"),
    ("/detokenize", {"tokens": [[1], "abc"]}, "tokens", "array of token ids is needed"),
    ("/detokenize", {"tokens": [[1]] * 4097}, "tokens", "4097 lists given, at most 4096"),
]  # fmt: skip


async def test_bad_requests_are_refused_by_field_and_the_server_serves_on():
    engine = FakeEngine()
    with anyio.fail_after(60):
        async with serving(engine) as served:
            for path, body, field, words in REFUSED:
                reply = await served.client.post(path, json=body)
                error = reply.json()["error"]
                assert reply.status_code == 400, (path, body, error)
                assert error["param"] == field, (path, body, error)
                assert words in error["message"], (path, body, error)
                assert error["type"] == "invalid_request_error"
                assert set(error) == {"message", "type", "param", "code"}
            assert engine.started == 0
            assert (await served.post(NATIVE, text="still")).json()["text"] == "still"


async def test_bad_requests_are_refused_the_same_when_they_ask_for_a_stream():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            long = await served.post(TEXT, prompt="x" * 5000, stream=True)
            full = await served.post(CHAT, messages=[{"role": "user", "content": "OVERLOAD"}], stream=True)
    assert long.status_code == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert full.status_code == 429


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"prompt": "\\ud800"}', "not JSON"),
        (b'{"temperature": NaN}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
async def test_what_is_not_json_is_refused(body: bytes, words: str):
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.client.post(TEXT, content=body, headers={"content-type": "application/json"})
            assert (await served.post(TEXT, prompt="ok")).status_code == 200
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]


async def test_a_body_over_the_cap_is_refused_declared_or_not():
    async def pieces():
        for _ in range(64):
            yield b" " * 65536

    kind = {"content-type": "application/json"}
    with anyio.fail_after(30):
        async with serving(FakeEngine(), body_bytes=1 << 20) as served:
            declared = await served.client.post(TEXT, content=b" " * (1 << 20) + b"{}", headers=kind)
            assert declared.status_code == 413
            # No bound is worth reading for ever: a body that goes on and on is cut off in the middle.
            try:
                chunked = await served.client.post(TEXT, content=pieces(), headers=kind)
            except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
                pass
            else:
                assert chunked.status_code == 413
                assert "larger than the 1048576 bytes" in chunked.json()["error"]["message"]
            assert (await served.post(TEXT, prompt="ok")).status_code == 200
    assert "larger than the 1048576 bytes" in declared.json()["error"]["message"]


async def test_a_body_that_stalls_is_given_up():
    async def pieces():
        yield b'{"prompt":'
        await anyio.sleep_forever()

    with anyio.fail_after(20):
        async with serving(FakeEngine(), body_timeout_s=0.05) as served:
            async with anyio.create_task_group() as group:

                async def slow() -> None:
                    reply = await served.client.post(
                        TEXT, content=pieces(), headers={"content-type": "application/json"}
                    )
                    raise AssertionError(reply)  # the client never ends its body, so it never reads the reply

                group.start_soon(slow)
                while not (await served.client.get("/metrics")).text.count('route="/v1/completions",status="408"'):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()


async def test_headers_have_a_cap():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.client.get("/health", headers={"x-long": "y" * 100_000})
            assert reply.status_code in (400, 431)
            assert (await served.client.get("/health")).status_code == 200


async def test_overload_is_429_with_retry_after():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.post(NATIVE, text="OVERLOAD")
            batch = await served.post(NATIVE, text=["fine", "OVERLOAD"])
            assert (await served.post(NATIVE, text="fine")).status_code == 200
    for one in (reply, batch):
        assert one.status_code == 429
        assert one.headers["retry-after"] == "3"
        assert one.json()["error"]["type"] == "overloaded_error"


async def test_more_exchanges_than_allowed_are_told_503():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine, live_requests=1) as served:
            async with served.client.stream("POST", NATIVE, json={"text": "HANG", "stream": True}) as held:
                reply = await served.post(NATIVE, text="one more")
                assert reply.status_code == 503
                assert reply.headers["retry-after"] == "1"
                assert (await served.client.get("/health")).status_code == 200  # health is never crowded out
                await held.aclose()
            await engine.quiet.wait()
            while (await served.post(NATIVE, text="one more")).status_code != 200:
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_generation_is_500(stream: bool):
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.post(NATIVE, text="FAIL", stream=stream)
            assert (await served.post(NATIVE, text="fine")).status_code == 200
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "generation_failed"
    assert "failed 3 times" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", [NATIVE, TEXT])
async def test_a_stream_that_breaks_ends_with_an_error_and_without_done(path: str):
    body = {"text": "BREAK it"} if path == NATIVE else {"prompt": "BREAK it"}
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.client.post(path, json={**body, "stream": True})
            assert (await served.post(NATIVE, text="fine")).status_code == 200
    assert reply.status_code == 200
    *chunks, last = events(reply.text)
    assert len(chunks) == 3
    assert last["error"]["message"] == "the row's logits were not numbers"
    assert "[DONE]" not in reply.text


async def test_one_failure_ends_its_group():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            reply = await served.post(NATIVE, text=["HANG one", "HANG two", "BREAK three"])
            stream = await served.post(NATIVE, text=["HANG one", "BREAK two"], stream=True)
            await engine.quiet.wait()
    assert reply.status_code == 500
    assert "error" in events(stream.text)[-1]
    assert sorted(engine.ended) == ["closed", "closed", "closed", "failed", "failed"]


async def test_a_bug_is_500_and_tells_a_number_and_no_secret(caplog: pytest.LogCaptureFixture):
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            reply = await served.post(NATIVE, text="BUG")
            assert (await served.post(NATIVE, text="fine")).status_code == 200
    assert reply.status_code == 500
    message = reply.json()["error"]["message"]
    assert "secret" not in reply.text
    assert "secret state" in caplog.text
    assert message.split()[2].rstrip(";") in caplog.text


async def test_an_abort_by_name_is_an_error_at_its_client():
    engine = FakeEngine()
    with anyio.fail_after(20):
        async with serving(engine) as served:
            replies: dict[str, httpx.Response] = {}

            async def post(path: str, **body: Any) -> None:
                replies[path] = await served.client.post(path, json=body)

            async with anyio.create_task_group() as group:
                group.start_soon(lambda: post(NATIVE, text="HANG", rid="whole"))
                group.start_soon(lambda: post(TEXT, prompt="HANG", rid="streamed", stream=True))
                while len(+engine.live) < 2:
                    await anyio.lowlevel.checkpoint()
                for name in ("whole", "streamed", "whole", "nobody"):
                    assert (await served.post("/abort_request", rid=name)).status_code == 200
            assert (await served.post(NATIVE, text="fine")).status_code == 200
    assert replies[NATIVE].status_code == 499
    assert replies[NATIVE].json()["error"]["code"] == "aborted"
    assert events(replies[TEXT].text)[-1]["error"]["code"] == "aborted"
    assert "[DONE]" not in replies[TEXT].text


async def test_unknown_routes_methods_and_models():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            missing = await served.client.get("/v1/nothing")
            without_v1 = await served.client.post("/chat/completions", json={})
            method = await served.client.get(TEXT)
            other = await served.post(TEXT, prompt="x", model="gpt-4")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_route")
    assert missing.json()["error"]["message"].startswith("there is no route '/v1/nothing'; docs/gateway.md")
    assert "an address that ends in /v1" in without_v1.json()["error"]["message"]
    assert (method.status_code, method.headers["allow"]) == (405, "POST")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert "'fake'" in other.json()["error"]["message"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 70000}, "port: 70000 is outside 0 to 65535"),
        ({"certfile": "a.pem"}, "certfile, keyfile: both"),
        ({"api_key": ""}, "api_key: it must be printable"),
        ({"admin_api_key": "x"}, "admin_api_key: give api_key or api_keys too"),
        ({"body_bytes": 0}, "body_bytes: 0 is not above 0"),
        ({"grace_s": -1.0}, "grace_s: -1.0 is below 0"),
    ],
)
async def test_bad_options_fail_the_start(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words.split("[", maxsplit=1)[0]):
        GatewayOptions(**options).verify()


async def test_a_taken_address_fails_the_start():
    with anyio.fail_after(20):
        async with serving(FakeEngine()) as served:
            port = int(served.url.rpartition(":")[2])
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
                async with serving(FakeEngine(), port=port):
                    pass
