"""Where programs run: synchronous code, threads, loops, notebooks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

import callboard as cb
from callboard import NullBackend
from callboard.lang import crossing
from callboard.lang.house import HOUSE, House


@cb.function
def question(s: Any, word: str) -> Any:
    s += word + cb.gen("x")
    return s["x"], threading.current_thread().name


@cb.function
async def asynchronous(s: Any, word: str) -> Any:
    s += word + cb.gen("x")
    return await s.aget("x"), threading.current_thread().name


@pytest.fixture
def house() -> Iterator[House]:
    yield HOUSE
    HOUSE.close()
    HOUSE.default = None


@pytest.mark.parametrize("program", [question, asynchronous])
def test_run_in_a_script_uses_one_background_loop(house: House, program: Any) -> None:
    backend = NullBackend(text="Paris")
    cb.set_default_backend(backend)
    state = program.run(word="a ")
    assert state.ret_value == ("Paris", "callboard")
    assert program("b ").text() == "b Paris"
    assert sum(thread.name == "callboard" for thread in threading.enumerate()) == 1
    house.close()
    assert all(thread.name != "callboard" for thread in threading.enumerate())
    assert state["x"] == "Paris"  # what was said is still there
    assert "".join(state.text_iter()) == "a Paris"


def test_batches_and_streams_in_a_script(house: House) -> None:
    cb.set_default_backend(NullBackend(text="Paris"))
    assert [s["x"] for s in question.run_batch([{"word": "a"}, ("b",)])] == ["Paris"] * 2
    assert [s.text() for s in question.run_batch([("a",), ("b",)], generator_style=True)] == ["aParis", "bParis"]
    state = question.run("a ", stream=True)
    assert "".join(state.text_iter()) == "a Paris"
    assert state["x"] == "Paris"
    for _ in question.run_batch([("a",), ("b",)] * 20, generator_style=True):
        break
    assert question.run_batch([]) == []


def test_errors_come_out_of_run(house: House) -> None:
    def fail(_: Any) -> str:
        raise RuntimeError("no model")

    cb.set_default_backend(NullBackend(text=fail))
    with pytest.raises(RuntimeError, match="no model"):
        question.run("a")
    with pytest.raises(RuntimeError, match="no model"):
        question.run_batch([("a",)])
    (state,) = question.run_batch([("a",)], on_error="return")
    assert str(state.error()) == "no model"
    state = question.run("a", stream=True)
    with pytest.raises(RuntimeError, match="no model"):
        list(state.text_iter())
    with pytest.raises(RuntimeError, match="no model"):
        state["x"]


@cb.function
def leaving(s: Any) -> None:
    s += cb.gen("x")
    sys.exit(f"after {s['x']}")


@cb.function
async def leaving_asynchronous(s: Any) -> None:
    s += cb.gen("x")
    sys.exit(f"after {await s.aget('x')}")


@pytest.mark.parametrize("program", [leaving, leaving_asynchronous])
def test_a_body_that_exits_ends_its_run_and_not_the_loop(house: House, program: Any) -> None:
    cb.set_default_backend(NullBackend())
    for run in (
        program.run,
        lambda: program.run_batch([{}, {}]),
        lambda: program.run_batch([{}, {}], on_error="return"),
        lambda: list(program.run_batch([{}, {}], generator_style=True)),
    ):
        with pytest.raises(SystemExit, match="after null"):
            run()
    with pytest.raises(cb.Aborted, match=r"its body raised SystemExit\('after null'\)"):
        program.run(stream=True).sync()
    assert question.run("a ").text() == "a null"


def test_a_loop_that_does_not_run_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def live() -> None:
        async with NullBackend() as backend:
            found.append(backend)
            loop.stop()
            await done.wait()

    monkeypatch.setattr(crossing, "LOOK_S", 0.01)
    loop, done, found = asyncio.new_event_loop(), asyncio.Event(), list[NullBackend]()
    life = loop.create_task(live())
    loop.run_forever()
    with pytest.raises(RuntimeError, match="the loop in which the backend lives does not run"):
        question.run("a", backend=found[0])
    done.set()
    loop.run_until_complete(life)
    loop.close()


def test_a_thread_that_waits_for_a_blocked_loop_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @cb.function
    def blocking(s: Any) -> None:
        thread.start()
        while not caplog.records:
            thread.join(0.01)

    monkeypatch.setattr(crossing, "LOOK_S", 0.01)
    backend = NullBackend()
    thread = threading.Thread(target=lambda: question.run("a", backend=backend))
    blocking.run(backend=backend)
    thread.join()
    assert "the loop in which the backend lives is blocked" in caplog.text


def test_a_backend_that_cannot_start_says_why(house: House) -> None:
    class Broken(NullBackend):
        async def __aenter__(self) -> Any:
            raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        question.run("a", backend=Broken())


@pytest.mark.anyio
async def test_run_inside_a_running_loop_works_when_the_backend_lives_elsewhere(house: House) -> None:
    cb.set_default_backend(NullBackend(text="Paris"))
    assert question.run("a ").text() == "a Paris"  # as in a notebook
    assert (await question.arun("b ")).text() == "b Paris"
    assert [state.text() async for state in question.arun_batch([("c ",)])] == ["c Paris"]
    state = await question.arun("d ", stream=True)
    assert "".join([text async for text in state.text_async_iter()]) == "d Paris"
    assert await state.aget("x") == "Paris"
    state = await question.arun("e ", stream=True)
    assert state["x"] == "Paris"  # waits: the loop that does the work is another


@pytest.mark.anyio
async def test_run_in_the_backends_own_loop_is_refused_and_does_not_hang(null: NullBackend) -> None:
    for call in (
        lambda: question.run("a", backend=null),
        lambda: question.run_batch([("a",)], backend=null),
        lambda: list(question.run_batch([("a",)], backend=null, generator_style=True)),
    ):
        with pytest.raises(RuntimeError, match=r"program\.arun"):
            call()
    assert (await question.arun("a", backend=null)).ret_value[0] == "Paris"


@pytest.mark.anyio
async def test_a_thread_can_use_a_backend_of_a_loop(null: NullBackend) -> None:
    state = await anyio.to_thread.run_sync(lambda: question.run("a ", backend=null))
    assert state.text() == "a Paris"
    assert state.ret_value == ("Paris", threading.current_thread().name)  # the body ran where its backend lives

    def other_loop() -> str:
        async def main() -> str:
            state = await asynchronous.arun("b ", backend=null)
            return await state.atext()

        return asyncio.run(main())

    assert await anyio.to_thread.run_sync(other_loop) == "b Paris"


@pytest.mark.anyio
async def test_cancelling_in_another_loop_cancels_the_program_here(scripted: Any) -> None:
    async with scripted([anyio.sleep_forever]) as backend:

        def other_loop() -> None:
            async def main() -> None:
                task = asyncio.ensure_future(question.arun("b ", backend=backend))
                while not backend.open:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert backend.open == 0

            asyncio.run(main())

        with anyio.fail_after(20):
            await anyio.to_thread.run_sync(other_loop)
        assert backend.aborted == 1


@pytest.mark.anyio
async def test_a_body_may_use_its_state_from_a_thread_it_started(null: NullBackend) -> None:
    @cb.function
    async def body(s: Any) -> str:
        def in_thread() -> str:
            nonlocal s
            s += "a "
            s += cb.gen("x")
            branch = s.fork(1)[0]
            branch += "!"
            return s["x"] + branch.text()

        return await anyio.to_thread.run_sync(in_thread)

    with anyio.fail_after(20):
        assert (await body.arun(backend=null)).ret_value == "Parisa Paris!"


def test_only_a_backend_can_be_the_default() -> None:
    with pytest.raises(cb.InvalidRequest, match="backend"):
        cb.set_default_backend("http://localhost")  # type: ignore[arg-type]


def _script(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_a_script_ends_by_itself_even_in_the_middle_of_a_program() -> None:
    done = _script(
        "import callboard as cb\n"
        "class Backend(cb.NullBackend):\n"
        "    async def __aexit__(self, *error):\n"
        "        await super().__aexit__(*error)\n"
        "        print('left')\n"
        "cb.set_default_backend(Backend(latency_s=3600))\n"
        "@cb.function\n"
        "def body(s):\n"
        "    s += cb.gen('x')\n"
        "    s['x']\n"
        "state = body.run(stream=True)\n"
        "print('running')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "running\nleft\n", "")


def test_a_script_ends_quietly_with_a_batch_that_was_left_in_the_middle() -> None:
    done = _script(
        "import callboard as cb\n"
        "cb.set_default_backend(cb.NullBackend(latency_s=0.01))\n"
        "@cb.function\n"
        "def body(s):\n"
        "    s += cb.gen('x')\n"
        "states = body.run_batch([{}] * 10_000, num_threads=1, generator_style=True)\n"
        "print(next(states)['x'])\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "null\n", "")


FORKED = """
import os
import callboard as cb

@cb.function
def question(s):
    s += cb.gen("x")

cb.set_default_backend(cb.NullBackend())
question.run()
if os.fork() == 0:
    try:
        question.run()
    except RuntimeError as error:
        print(error, flush=True)
    print(question.run(backend=cb.NullBackend(text="a backend of its own")).text(), flush=True)
    os._exit(0)
os.wait()
"""


def test_a_forked_process_has_backends_of_its_own_or_is_told() -> None:
    done = _script(FORKED)
    told, said = done.stdout.splitlines()
    assert told.startswith("this process was forked from one that uses callboard")
    assert said == "a backend of its own"


def test_ctrl_c_cancels_the_program_and_leaves_the_backend() -> None:
    done = _script(
        "import asyncio, signal, threading, callboard as cb\n"
        "main = threading.main_thread().ident\n"
        "class Backend(cb.NullBackend):\n"
        "    async def generate(self, prompt, sampling):\n"
        "        try:\n"
        "            asyncio.get_running_loop().call_later(0.1, signal.pthread_kill, main, signal.SIGINT)\n"
        "            await asyncio.sleep(3600)\n"
        "            yield\n"
        "        finally:\n"
        "            print('aborted')\n"
        "cb.set_default_backend(Backend())\n"
        "@cb.function\n"
        "def body(s):\n"
        "    s += cb.gen('x')\n"
        "try:\n"
        "    body.run()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    assert (done.returncode, done.stdout) == (0, "aborted\ninterrupted\n"), done.stderr


def test_without_a_backend_the_embedded_engine_starts_and_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = types.ModuleType("callboard.actors.engine")
    started: list[str] = []

    def make(model: str) -> NullBackend:
        started.append(model)
        return NullBackend(text="Paris")

    engine.Engine = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "callboard.actors.engine", engine)
    assert question.run("a ").text() == "a Paris"
    assert question.run("b ").text() == "b Paris"
    assert started == ["embedded"]
    assert capsys.readouterr().err == "callboard: no backend is set; starting the embedded engine\n"


def test_an_embedded_engine_that_cannot_start_leaves_advice(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "callboard.actors.engine", None)
    with pytest.raises(cb.BackendUnset, match="set_default_backend"):
        question.run("a")
