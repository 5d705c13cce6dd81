"""What every remote backend does when its service refuses, breaks or falls silent, over the real wire formats."""

from __future__ import annotations

import socket
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from callboard import GenerationFailed, InvalidRequest, Overloaded, Retries
from callboard.actors.backend import Prompt
from callboard.actors.sampling import SamplingParams
from callboard.lang.backends.remote import RemoteBackend

from .dialects import DIALECTS, GOOGLE, NATIVE, Dialect, service_of
from .service import CUT, HANG, Act, serving, stream

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)]

ASKED = Prompt(text="user: France?\nassistant: ", messages=({"role": "user", "content": "France?"},), role="assistant")
SAMPLING = SamplingParams(max_new_tokens=16, temperature=0.0)


async def heard(backend: RemoteBackend, into: list[str] | None = None) -> str:
    """Give the text of one generation; `into` keeps what came, whatever happens then."""
    pieces: list[str] = [] if into is None else into
    ends = 0
    async for delta in backend.generate(ASKED, SAMPLING):
        assert not ends, "nothing comes behind the end"
        pieces.append(delta.text)
        ends += delta.finish is not None
    assert ends == 1
    return "".join(pieces)


async def failing(dialect: Dialect, *script: Act, **options: Any) -> tuple[Exception, str, int]:
    """Give the error, the text before it, and how many requests there were."""
    pieces: list[str] = []
    async with serving(service_of(dialect, *script)) as service, dialect.make(service.url, **options) as backend:
        with pytest.raises((GenerationFailed, InvalidRequest, Overloaded, TimeoutError)) as caught:
            await heard(backend, pieces)
        error, count = caught.value, len(service.asked)
        assert await heard(backend) == "re: France?"  # and the next one is answered
    return error, "".join(pieces), count


async def recovering(dialect: Dialect, *script: Act, **options: Any) -> int:
    """Hear the answer that comes after the script, once; give how many requests it took."""
    async with serving(service_of(dialect, *script)) as service, dialect.make(service.url, **options) as backend:
        assert await heard(backend) == "re: France?"
        return len(service.asked)


async def test_text_comes_as_it_is_written(dialect: Dialect):
    with anyio.fail_after(20):
        read = anyio.Event()
        first, *rest = dialect.told("Par", "is")[len(dialect.opening()) :]
        script = stream(*dialect.opening(), first, read.wait, *rest)
        async with serving(service_of(dialect, script)) as service, dialect.make(service.url) as backend:
            pieces: list[str] = []
            async for delta in backend.generate(ASKED, SAMPLING):
                pieces.append(delta.text)
                read.set()  # the service says no more before the first piece is read
                finish = delta.finish
        assert "".join(pieces) == "Paris"
        assert pieces[0] == "Par"
        assert finish is not None
        assert (finish.reason, finish.prompt_tokens, finish.cached_tokens) == ("stop", 7, 3)
        assert finish.completion_tokens in (2, 5)


async def test_an_answer_that_is_cut_short_says_so(dialect: Dialect):
    with anyio.fail_after(20):
        script = stream(*dialect.told("Par", reason="length"))
        async with serving(service_of(dialect, script)) as service, dialect.make(service.url) as backend:
            deltas = [delta async for delta in backend.generate(ASKED, SAMPLING)]
        assert [delta.finish.reason for delta in deltas if delta.finish] == ["length"]


async def test_a_busy_service_is_asked_again(dialect: Dialect):
    with anyio.fail_after(20):
        busy = dialect.refusal(429, "slow down", kind="rate_limit_error", retry_after="0")
        closed = dialect.refusal(503, "not now", kind="overloaded_error")
        assert await recovering(dialect, busy, closed) == 3


async def test_a_service_that_stays_busy_is_overloaded(dialect: Dialect):
    with anyio.fail_after(20):
        busy = dialect.refusal(429, "slow down", kind="rate_limit_error", retry_after="0.001")
        error, _, count = await failing(dialect, busy, busy, busy)
        assert isinstance(error, Overloaded)
        assert "slow down" in str(error)
        assert (error.retry_after_s, count) == (0.001, 3)


async def test_nobody_waits_longer_than_they_said(dialect: Dialect):
    with anyio.fail_after(20):
        busy = dialect.refusal(429, "come back tomorrow", kind="rate_limit_error", retry_after="86400")
        error, _, count = await failing(dialect, busy)
        assert isinstance(error, Overloaded)
        assert (error.retry_after_s, count) == (86400.0, 1)


async def test_a_mistake_is_told_in_the_service_s_words_and_not_repeated(dialect: Dialect):
    with anyio.fail_after(20):
        error, _, count = await failing(dialect, dialect.refusal(400, "the prompt is too long: 9 > 8"))
        assert isinstance(error, InvalidRequest)
        assert "the prompt is too long: 9 > 8" in str(error)
        assert count == 1


async def test_a_wrong_key_is_told_and_not_repeated(dialect: Dialect):
    with anyio.fail_after(20):
        error, _, count = await failing(dialect, dialect.refusal(401, "no such key", kind="authentication_error"))
        assert isinstance(error, GenerationFailed)
        assert "no such key" in str(error)
        assert "401" in str(error)
        assert count == 1


async def test_a_fault_before_the_first_text(dialect: Dialect):
    with anyio.fail_after(20):
        ill = dialect.refusal(500, "the lights went out", kind="api_error")
        if dialect is NATIVE:  # the engine's own servers repeat what is worth it themselves
            error, _, count = await failing(dialect, ill)
            assert isinstance(error, GenerationFailed)
            assert "the lights went out" in str(error)
            assert count == 1
        else:
            assert await recovering(dialect, ill) == 2


async def test_an_error_event_before_the_first_text_is_another_try(dialect: Dialect):
    with anyio.fail_after(20):
        broken = stream(*dialect.opening(), dialect.broken("too much to do", "overloaded_error"))
        assert await recovering(dialect, broken) == 2


async def test_no_text_is_streamed_twice(dialect: Dialect):
    with anyio.fail_after(20):
        for breaking in (dialect.broken("the lights went out", "overloaded_error"), CUT):
            error, text, count = await failing(dialect, stream(*dialect.begun("Par"), breaking))
            assert isinstance(error, (GenerationFailed, Overloaded))
            assert ("the lights went out" if breaking is not CUT else "cut") in str(error)
            assert (text, count) == ("Par", 1)


async def test_a_connection_cut_before_the_first_text_is_another_try(dialect: Dialect):
    with anyio.fail_after(20):
        # Google's SDK reads no comments; to it, an event without text is as little.
        nothing = b'data: {"usageMetadata": {}}\n\n' if dialect is GOOGLE else b": well\n\n"
        broken = stream(*dialect.opening(), nothing, CUT)
        assert await recovering(dialect, broken, broken) == 3


async def test_a_stream_that_just_ends_has_failed(dialect: Dialect):
    with anyio.fail_after(20):
        error, text, count = await failing(dialect, stream(*dialect.begun("Par")))
        assert isinstance(error, GenerationFailed)
        assert "cut before its end" in str(error)
        assert (text, count) == ("Par", 1)


async def test_what_is_no_json_has_failed(dialect: Dialect):
    with anyio.fail_after(20):
        nonsense = b"event: content_block_delta\ndata: {nonsense\n\n"
        error, text, count = await failing(dialect, stream(*dialect.begun("Par"), nonsense))
        assert isinstance(error, GenerationFailed)
        assert (text, count) == ("Par", 1)


@pytest.mark.parametrize("begun", [False, True])
async def test_silence_ends_in_a_timeout_that_closes_the_connection(dialect: Dialect, begun: bool):
    with anyio.fail_after(20):
        act = stream(*dialect.begun("Par"), HANG) if begun else Act((HANG,), silent=True)
        async with serving(service_of(dialect, act)) as service, dialect.make(service.url, timeout_s=0.5) as backend:
            with pytest.raises(TimeoutError, match=r"silent for 0\.5 s"):
                await heard(backend)
            await service.gone.wait()
            assert len(service.asked) == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_cancelling_closes_the_connection(dialect: Dialect, begun: bool):
    with anyio.fail_after(20):
        act = stream(*dialect.begun("Par"), HANG) if begun else Act((HANG,), silent=True)
        async with serving(service_of(dialect, act)) as service, dialect.make(service.url) as backend:
            pieces: list[str] = []
            async with anyio.create_task_group() as group:
                group.start_soon(heard, backend, pieces)
                await service.hanging.wait()
                while begun and not pieces:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            await service.gone.wait()
            assert (pieces, service.left) == (["Par"] if begun else [], 1)
            assert await heard(backend) == "re: France?"


async def test_closing_a_generation_early_closes_the_connection(dialect: Dialect):
    with anyio.fail_after(20):
        act = stream(*dialect.begun("Par"), HANG)
        async with serving(service_of(dialect, act)) as service, dialect.make(service.url) as backend:
            async with aclosing(backend.generate(ASKED, SAMPLING)) as deltas:
                assert (await anext(deltas)).text == "Par"
            await service.gone.wait()


async def test_nobody_there(dialect: Dialect):
    with anyio.fail_after(20):
        with socket.create_server(("127.0.0.1", 0)) as free:
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(GenerationFailed, match="cannot be reached"):
            async with dialect.make(url, retries=Retries(times=1, first_s=0.0)) as backend:
                await heard(backend)


async def test_no_more_requests_at_once_than_allowed(dialect: Dialect):
    with anyio.fail_after(20):
        async with serving(service_of(dialect)) as service, dialect.make(service.url, concurrency=2) as backend:
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(heard, backend)
            assert len(service.asked) == 8
            assert service.most <= 2
