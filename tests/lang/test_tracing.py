"""A traced program says what it would, with marks for what nobody knows; a cached one has its beginning computed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import callboard as cb
from callboard.actors.engine import Engine
from callboard.lang.graph import Graph
from callboard.lang.house import HOUSE, Settings

from ..actors.tiny_model import write_tiny_model


@cb.function
def advise(s, question, tips=2):
    s += cb.system("Be brief.") + cb.user(f"Q: {question:>3}?")
    s += cb.assistant("I: " + cb.gen("plan"))
    forks = s.fork(tips)
    forks += lambda index: f"tip {index} {s['plan'].upper()}" + cb.gen("tip", max_tokens=3)
    forks.join()
    with s.var_scope("end"):
        s += "".join(s["tip"]) + cb.select("verdict", ["yes", "no"])


def said(graph: Graph) -> list[str]:
    return [str(node) for node in graph.nodes]


def test_what_is_said_is_there_in_order_arguments_and_variables_by_name() -> None:
    graph = advise.trace()
    assert said(graph)[:12] == [
        "begin system", "text 'Be brief.'", "end system",
        "begin user", "text 'Q: '", "argument question", "text '?'", "end user",
        "begin assistant", "text 'I: '", "gen plan", "end assistant",
    ]  # fmt: skip
    assert said(graph)[12:] == [
        "fork 2", "text 'tip 0 '", "variable plan", "gen tip", "text 'tip 1 '", "variable plan", "gen tip", "join 2",
        "open end", "variable tip", "variable tip", "select verdict of ['yes', 'no']", "close end",
    ]  # fmt: skip
    fork, join = graph.nodes[12], graph.nodes[19]
    assert [node.after for node in graph.nodes if node.label.startswith("'tip")] == [(fork.number,)] * 2
    assert join.after == (fork.number, 15, 18)
    assert [node.branch for node in graph.nodes[12:20]] == [0, 1, 1, 1, 2, 2, 2, 0]


def test_an_argument_that_is_given_is_what_it_is() -> None:
    assert "text 'Q: why?'" in said(advise.trace("why"))
    assert "fork 3" in said(advise.trace(tips=3))
    assert "text 'Q: why?'" in said(advise.bind(question="why").trace())
    with pytest.raises(cb.InvalidRequest, match="arguments: advise"):
        advise.trace(colour="red")


def test_it_is_printed_and_drawn() -> None:
    graph = advise.trace()
    out = io.StringIO()
    assert graph.print_graph_dfs(out) == graph.last_node.print_graph_dfs() == str(graph)
    lines = out.getvalue().splitlines()
    assert lines[0] == "advise"
    assert "  10 gen plan" in lines
    assert [line for line in lines if line.startswith("    ")] == [
        "    13 text 'tip 0 '", "    14 variable plan", "    15 gen tip",
        "    16 text 'tip 1 '", "    17 variable plan", "    18 gen tip",
    ]  # fmt: skip
    assert len(lines) == len(graph.nodes) + 1
    mermaid = graph.mermaid()
    assert mermaid.startswith("flowchart TD\n")
    assert mermaid.count(" --> ") == sum(len(node.after) for node in graph.nodes)
    picture = ET.fromstring(graph.svg())
    count = {name: len(picture.findall(f"{{http://www.w3.org/2000/svg}}{name}")) for name in ("rect", "line")}
    assert count == {"rect": len(graph.nodes), "line": mermaid.count(" --> ")}


def test_async_bodies_and_programs_in_programs_are_traced() -> None:
    @cb.function
    async def inner(s):
        s += "inner" + cb.gen("deep")
        return await s.aget("deep")

    @cb.function
    async def outer(s):
        async with s.fork(2) as forks:
            forks[0] += "left"
            forks[1] += "right"
        s += (await inner.arun())["deep"] + "!"
        async for text in s.text_async_iter():
            s += text[:1]

    assert said(inner.trace()) == ["text 'inner'", "gen deep"]
    assert said(outer.trace())[-5:-1] == ["join 2", "call inner", "variable deep", "text '!'"]


@pytest.mark.anyio
async def test_what_the_body_raises_comes_out_and_waiting_for_the_world_is_refused() -> None:
    import asyncio

    @cb.function
    def broken(s):
        s += "x"
        raise KeyError("mine")

    @cb.function
    async def waits(s):
        await asyncio.Event().wait()

    with pytest.raises(KeyError, match="mine"):
        broken.trace()
    with pytest.raises(cb.InvalidRequest, match="trace: waits waits for something"):
        waits.trace()


entered: list[str] = []


@cb.function
def judge(s, rules, essay):
    s += cb.system("Judge by these rules: " + rules)
    s += cb.user("The essay is: " + essay)
    entered.append(essay)
    s += cb.assistant(cb.gen("verdict", max_tokens=2))


@pytest.mark.anyio
async def test_a_batch_has_computed_first_what_all_begin_with(scripted: Any) -> None:
    items = [{"rules": "be fair", "essay": f"number {index}"} for index in range(4)]
    async with scripted() as backend:
        await judge.arun_batch(items, backend=backend)
        assert backend.prefilled == []
        entered.clear()
        await judge.arun_batch(items, backend=backend, precache=True)
        (prompt,) = backend.prefilled
        assert prompt.text == "system: Judge by these rules: be fair\nuser: The essay is: "
        assert backend.encoded.count(prompt.text) == 1
        assert sorted(entered) == [f"number {index}" for index in range(4)]  # the trace has not come so far
        assert len(backend.prompts) == 8
        await judge.arun_batch(items[:1], backend=backend, precache=True)
        assert len(backend.prefilled) == 1  # one has nothing in common


@pytest.mark.anyio
async def test_the_process_may_say_it_for_all_its_batches(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"rules": "be fair", "essay": f"number {index}"} for index in range(2)]
    monkeypatch.setattr(HOUSE, "settings", Settings())
    async with scripted() as backend:
        cb.global_config.enable_precache_with_tracing = True
        await judge.arun_batch(items, backend=backend)
        assert len(backend.prefilled) == 1
        await judge.arun_batch(items, backend=backend, precache=False)
        assert len(backend.prefilled) == 1
        cb.global_config.enable_precache_with_tracing = False
        await judge.arun_batch(items, backend=backend)
        assert len(backend.prefilled) == 1


@pytest.mark.anyio
async def test_a_program_s_beginning_is_cached_for_all_its_runs(scripted: Any) -> None:
    async with scripted() as backend:
        assert await judge.acache(backend) == "system: Judge by these rules: "
        assert (
            await judge.bind(rules="short").acache(backend)
            == "system: Judge by these rules: short\nuser: The essay is: "
        )
        assert len(backend.prefilled) == 2
        assert backend.prompts == []

        @cb.function
        def nothing(s, word):
            s += word

        assert await nothing.acache(backend) == ""
        assert len(backend.prefilled) == 2


@pytest.mark.anyio
async def test_on_the_engine_a_batch_computes_its_common_prefix_once_either_way(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    items = [{"rules": "be fair and short " * 4, "essay": f"number {index}"} for index in range(8)]
    computed: dict[bool, int] = {}
    for precache in (False, True):
        options: dict[str, Any] = {"load_format": "dummy", "seed": 1, "max_rows": 8, "kv_slots": 2048, "threads": 1}
        async with Engine(folder, **options) as engine:
            states = await judge.arun_batch(items, backend=engine, precache=precache)
            prompts = [(await state.aget_meta_info("verdict"))["prompt_tokens"] for state in states]
            computed[precache] = (await engine.statistics())["scheduler"]["computed_tokens"]
    common = len(await _tokens(folder, "".join(("<|im_start|>system\nJudge by these rules: ", items[0]["rules"]))))
    ends = sum(prompts) - 8 * common
    assert computed[False] <= common + ends + 8 * 16  # what the scheduler holds back for, it does not compute again
    assert computed[False] <= computed[True]


async def _tokens(folder: Path, text: str) -> list[int]:
    from callboard.actors.tokenizer import load_vocabulary

    return load_vocabulary(folder).encode(text).ids
