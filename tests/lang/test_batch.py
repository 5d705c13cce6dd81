"""Many at once: order, bounds, errors, progress."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb
from callboard import NullBackend

pytestmark = pytest.mark.anyio


@cb.function
def question(s: Any, word: str, mark: str = "?") -> None:
    s += word + mark + cb.gen("x")


class Gate:
    """A backend's text that depends on the prompt; words that begin with `slow` wait for `open`."""

    def __init__(self, scripted: Any) -> None:
        self.open = anyio.Event()
        self.running = self.most = 0
        self.backend = scripted()
        self.backend.generate = self.generate

    async def generate(self, prompt: Any, sampling: Any) -> Any:
        from callboard.actors.messages import Delta, Finish

        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await anyio.lowlevel.checkpoint()
            if prompt.text.startswith("slow"):
                await self.open.wait()
            if prompt.text.startswith("bad"):
                raise RuntimeError(prompt.text)
            yield Delta(text=prompt.text.upper(), finish=Finish(reason="stop"))
        finally:
            self.running -= 1


@pytest.fixture
def gate(scripted: Any) -> Gate:
    return Gate(scripted)


async def test_states_come_in_the_items_order(gate: Gate) -> None:
    async with gate.backend as backend:
        states = await question.arun_batch([{"word": "a"}, ("b", "!"), ["c"], {"word": "d"}], backend=backend)
    assert [state["x"] for state in states] == ["A?", "B!", "C?", "D?"]


async def test_an_empty_batch_is_an_empty_list(null: NullBackend) -> None:
    assert await question.arun_batch([], backend=null) == []
    assert [state async for state in question.arun_batch([], backend=null)] == []


async def test_one_by_one_in_order_or_as_they_end(gate: Gate) -> None:
    items = [{"word": "slow"}, {"word": "b"}, {"word": "c"}]
    with anyio.fail_after(20):
        async with gate.backend as backend:
            found = []
            async for state in question.arun_batch(items, backend=backend, order="completion"):
                found.append(state["x"])
                if len(found) == 2:
                    gate.open.set()
            assert found == ["B?", "C?", "SLOW?"]
            batch = question.arun_batch(items, backend=backend, generator_style=True)
            assert [state["x"] async for state in batch] == ["SLOW?", "B?", "C?"]


async def test_no_more_run_at_once_than_asked_for(gate: Gate) -> None:
    async with gate.backend as backend:
        await question.arun_batch([{"word": str(i)} for i in range(20)], backend=backend, num_threads=3)
        assert gate.most == 3
        gate.most = 0
        async for _ in question.arun_batch([{"word": str(i)} for i in range(20)], backend=backend, num_threads=3):
            pass
        assert gate.most <= 3


async def test_a_consumer_that_lags_holds_back_what_has_not_begun(gate: Gate) -> None:
    async with gate.backend as backend:
        batch = question.arun_batch([{"word": str(i)} for i in range(50)], backend=backend, num_threads=2)
        iterator = aiter(batch)
        await anext(iterator)
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        begun = sum(len(text.encode()) > 0 for text in backend.encoded)
        assert begun <= 6
        await iterator.aclose()


async def test_the_first_error_ends_the_batch(gate: Gate) -> None:
    items = [{"word": "slow"}, {"word": "bad"}]
    with anyio.fail_after(20):
        async with gate.backend as backend:
            with pytest.raises(RuntimeError, match=r"bad\?"):
                await question.arun_batch(items, backend=backend)
            assert gate.running == 0
            with pytest.raises(RuntimeError, match=r"bad\?"):
                async for _ in question.arun_batch(items, backend=backend):
                    pass
            assert gate.running == 0
            assert backend.programs.statistics() == []


async def test_errors_can_be_had_item_by_item(gate: Gate) -> None:
    items = [{"word": "a"}, {"word": "bad"}, {"word": "c"}]
    async with gate.backend as backend:
        states = await question.arun_batch(items, backend=backend, on_error="return")
        again = [state async for state in question.arun_batch(items, backend=backend, on_error="return")]
    for found in (states, again):
        assert [str(state.error()) for state in found] == ["None", "bad?", "None"]
        assert found[2]["x"] == "C?"
        with pytest.raises(RuntimeError, match=r"bad\?"):
            found[1]["x"]


async def test_leaving_early_cancels_the_rest(gate: Gate) -> None:
    with anyio.fail_after(20):
        async with gate.backend as backend:
            batch = question.arun_batch([{"word": "a"}, {"word": "slow"}], backend=backend)
            async for _ in batch:
                break
            del batch
            while gate.running or backend.programs.statistics():
                await anyio.lowlevel.checkpoint()


async def test_cancelling_a_batch_cancels_its_programs(gate: Gate) -> None:
    with anyio.fail_after(20):
        async with gate.backend as backend:
            async with anyio.create_task_group() as group:
                group.start_soon(question.arun_batch([{"word": "slow"}] * 3, backend=backend).collect)
                while gate.running < 3:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            assert gate.running == 0
            assert backend.programs.statistics() == []


async def test_bad_items_are_refused_before_anything_runs(null: NullBackend) -> None:
    for items in ([{"word": "a"}, {"wrong": "b"}], [("a", "b", "c")], ["a"], [{"word": "a", "temperature": 0}]):
        with pytest.raises(cb.InvalidRequest):
            await question.arun_batch(items, backend=null)
    for arguments in ({"num_threads": 0}, {"num_threads": "many"}, {"order": "random"}, {"on_error": "ignore"}):
        with pytest.raises(cb.InvalidRequest, match=next(iter(arguments))):
            await question.arun_batch([{"word": "a"}], backend=null, **arguments)
    with pytest.raises(cb.InvalidRequest, match="temprature.*temperature"):
        await question.arun_batch([{"word": "a"}], backend=null, temprature=0)
    assert null.generations == 0


async def test_a_batch_runs_once(null: NullBackend) -> None:
    batch = question.arun_batch([{"word": "a"}], backend=null)
    await batch
    with pytest.raises(RuntimeError, match="already"):
        await batch


async def test_a_progress_bar_counts_on_stderr(null: NullBackend, capsys: pytest.CaptureFixture[str]) -> None:
    await question.arun_batch([{"word": "a"}] * 3, backend=null, progress_bar=True)
    captured = capsys.readouterr()
    assert "3/3" in captured.err
    assert captured.out == ""


async def test_sampling_arguments_go_to_every_program(scripted: Any) -> None:
    async with scripted() as backend:
        await question.arun_batch([{"word": "a"}, {"word": "b"}], backend=backend, temperature=0.5, seed=7)
    assert [(s.temperature, s.seed) for s in backend.samplings] == [(0.5, 7)] * 2


async def test_a_waiting_body_of_a_batch_goes_on_generating(gate: Gate) -> None:
    @cb.function
    def body(s: Any, other: str) -> None:
        s += "slow" + cb.gen("x")
        question.run(other, backend=gate.backend)  # waits for something else meanwhile
        assert gate.running == 1
        gate.open.set()
        s["late"] = s["x"] + other

    with anyio.fail_after(20):
        async with gate.backend as backend:
            (state,) = await body.arun_batch([("a",)], backend=backend)
            assert state["late"] == "SLOWa"


async def test_a_body_of_a_batch_keeps_its_own_deadlines(gate: Gate) -> None:
    @cb.function
    def body(s: Any, seconds: float) -> str:
        s += "slow" + cb.gen("x")
        with anyio.move_on_after(seconds) as limit:  # noqa: ASYNC100  (it waits without an await)
            s["x"]
        gate.open.set()
        return "late" if limit.cancelled_caught else s["x"]

    with anyio.fail_after(20):
        async with gate.backend as backend:
            states = await body.arun_batch([(0.0,), (20.0,)], backend=backend)
            assert [state.ret_value for state in states] == ["late", "SLOW"]


async def test_each_body_of_a_batch_has_its_own_context(null: NullBackend) -> None:
    from contextvars import ContextVar

    who: ContextVar[str] = ContextVar("who", default="nobody")

    @cb.function
    def body(s: Any, name: str, wait: bool) -> list[str]:
        found = [who.get()]
        who.set(name)
        s += cb.gen("x")
        if wait:
            s["x"]
        return [*found, who.get()]

    who.set("caller")
    states = await body.arun_batch([("a", False), ("b", True), ("c", False)], backend=null, num_threads=1)
    assert [state.ret_value for state in states] == [["caller", "a"], ["caller", "b"], ["caller", "c"]]
    assert who.get() == "caller"


async def test_a_program_of_a_batch_can_be_cancelled_by_its_body(gate: Gate) -> None:
    @cb.function
    def body(s: Any, cancel: bool) -> None:
        s += "slow" + cb.gen("x")
        if cancel:
            s.cancel()
        else:
            gate.open.set()
        s["x"]

    with anyio.fail_after(20):
        async with gate.backend as backend:
            gone, fine = await body.arun_batch([(True,), (False,)], backend=backend, on_error="return")
            assert isinstance(gone.error(), cb.Aborted)
            assert fine["x"] == "SLOW"
            assert gate.running == 0


async def test_a_backend_that_closes_ends_a_batch_that_waits(scripted: Any) -> None:
    @cb.function
    def body(s: Any, read: bool) -> None:
        s += cb.gen("x")
        if read:
            s["x"]

    async def collect() -> None:
        with pytest.raises(cb.Aborted):
            await body.arun_batch([(True,), (False,)], backend=backend)
        ended.set()

    ended = anyio.Event()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            backend = scripted(*[[anyio.sleep_forever]] * 2)
            with pytest.raises(ZeroDivisionError):  # noqa: PT012  (an error gives no grace)
                async with backend:
                    group.start_soon(collect)
                    while backend.open < 2:
                        await anyio.lowlevel.checkpoint()
                    raise ZeroDivisionError
            await ended.wait()
    assert backend.open == 0
