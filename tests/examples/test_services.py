"""Services on asyncio: the engine in their own loop, clients that leave, no room, events, deadlines, threads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard.actors.backend import Prompt
from callboard.actors.messages import Delta
from callboard.actors.sampling import SamplingParams

pytestmark = pytest.mark.anyio
Load = Callable[[str], ModuleType]


class Talker(cb.NullBackend):
    """Say a word and then nothing more, for ever; or have no room."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__()
        self.full = full
        self.open = 0
        self.talking = asyncio.Event()

    async def generate(self, prompt: Prompt, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        if self.full:
            raise cb.Overloaded("64 requests are live, at most 64 may be", retry_after_s=7)
        self.open += 1
        try:
            yield Delta(text="Well")
            self.talking.set()
            await asyncio.Event().wait()
        finally:
            self.open -= 1


class Client:
    """Speak ASGI to an application, and leave when told to."""

    def __init__(self, app: Any, engine: Any) -> None:
        self.app = app
        self.engine = engine
        self.leave = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def post(self, path: str, body: bytes) -> Client:
        messages = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await self.leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                self.body += message.get("body", b"")

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "method": "POST", "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [(b"content-type", b"application/json")], "root_path": "",
            "state": {"engine": self.engine},
        }  # fmt: skip
        with anyio.fail_after(60):
            await self.app(scope, receive, send)
        return self


QUESTION = json.dumps({"question": "What is the capital of Peru?"}).encode()


@pytest.fixture(params=["starlette_app", "fastapi_app"])
def service(request: pytest.FixtureRequest, load: Load) -> ModuleType:
    if request.param == "fastapi_app":
        pytest.importorskip("fastapi")
    return load(f"examples/services/{request.param}.py")


async def test_it_answers_and_streams_from_an_engine_in_its_own_loop(service: ModuleType) -> None:
    async with service.lifespan(service.app) as state:
        assert state["engine"].loop is asyncio.get_running_loop()
        client = await Client(service.app, state["engine"]).post("/ask", QUESTION)
        assert (client.status, json.loads(client.body)) == (200, {"answer": "The capital of Peru is Lima."})
        client = await Client(service.app, state["engine"]).post("/stream", QUESTION)
    assert client.headers["content-type"].startswith("text/event-stream")
    *events, done = client.body.decode().split("\n\n")[:-1]
    assert "".join(json.loads(event.removeprefix("data: ")) for event in events) == "The capital of Peru is Lima."
    assert done == "data: [DONE]"


@pytest.mark.parametrize("path", ["/ask", "/stream"])
async def test_a_client_that_leaves_ends_its_generation(service: ModuleType, path: str) -> None:
    async with Talker() as engine:
        client = Client(service.app, engine)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.post(path, QUESTION))
            await engine.talking.wait()
            assert engine.open == 1
            client.leave.set()
        assert engine.open == 0
        assert engine.programs.statistics() == []
    assert b"[DONE]" not in client.body


@pytest.mark.parametrize("path", ["/ask", "/stream"])
async def test_no_room_is_503_and_says_when_to_come_again(service: ModuleType, path: str) -> None:
    async with Talker(full=True) as engine:
        client = await Client(service.app, engine).post(path, QUESTION)
    assert (client.status, client.headers["retry-after"]) == (503, "7")
    assert json.loads(client.body) == {"error": "64 requests are live, at most 64 may be"}


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"question": 3}', b"{}"])
async def test_what_is_no_question_is_refused(body: bytes, load: Load) -> None:
    async with Talker() as engine:
        client = await Client(load("examples/services/starlette_app.py").app, engine).post("/ask", body)
    assert (client.status, client.body.startswith(b'{"error":"question: ')) == (400, True)


async def test_a_plain_loop_has_deadlines_and_gets_its_room_back(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    await load("examples/services/plain_loop.py").main()
    said = capsys.readouterr().out
    assert said.startswith("The capital of France is Paris. (too late) 12 + 30 = 42\n")
    assert said.endswith("live: 0\n")


async def test_threads_call_run_and_the_engine_stays_in_its_loop(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    await load("examples/services/threads.py").main()
    assert "The capital of Peru is Lima." in capsys.readouterr().out


def test_the_page_shows_the_files_as_they_are(load: Load, root: Path) -> None:
    text = (root / "docs/services.md").read_text(encoding="utf-8")
    assert load("docs/refresh.py").embed(text) == text
    for file in sorted((root / "examples/services").glob("*.py")):
        assert f"<!-- examples/services/{file.name} -->" in text
