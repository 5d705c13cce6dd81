"""A backend is told which generations a join waits for that takes their KV as it is, and keeps that for the join."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import callboard as cb
from callboard.actors.errors import GenerationFailed

from . import noting
from .noting import Body


def play(scripted: Any, body: Body, *lines: Any) -> Any:
    return noting.play(scripted, body, *lines, joining=True)


def told(backend: Any) -> set[tuple[str, bool]]:
    """Tell of generations what was the last that was said before them, and whether a join waits for them."""
    return {(prompt.text.split()[-1], prompt.joining) for prompt in backend.prompts}


async def joined(s: Any) -> None:
    s += "stem " + cb.gen("a")
    forks = s.fork(2)
    forks += " one " + cb.gen("b")
    forks += " two " + cb.gen("c")
    await forks.ajoin("concate_and_append")
    s += " end " + cb.gen("d")


async def nested(s: Any) -> None:
    s += "stem "
    forks = s.fork(2)
    forks += "outer " + cb.gen("b")
    inner = forks[0].fork(2)
    inner += " inner " + cb.gen("c")
    await inner.ajoin("concate_and_append")
    await forks.ajoin("concate_and_append")


async def gathered(s: Any) -> None:
    forks = s.fork(2)
    forks += "one " + cb.gen("b")
    await forks.ajoin()


async def read_before(s: Any) -> None:
    forks = s.fork(2)
    forks += "one " + cb.gen("b")
    for branch in forks:
        await branch.aget("b")
    await forks.ajoin("concate_and_append")


async def followed_by_text(s: Any) -> None:
    forks = s.fork(2)
    forks += "one " + cb.gen("b") + "."
    await forks.ajoin("concate_and_append")


@pytest.mark.parametrize(
    ("body", "right"),
    [
        (joined, {("stem", False), ("one", False), ("two", True), ("end", False)}),
        (nested, {("outer", False), ("inner", True)}),
        (gathered, {("one", False)}),
        (read_before, {("one", False)}),
        (followed_by_text, {("one", False)}),
    ],
)
def test_only_the_last_of_a_branch_is_waited_for_by_a_join(
    scripted: Any, body: Body, right: set[tuple[str, bool]]
) -> None:
    assert told(play(scripted, body)) == right


def test_nothing_is_waited_for_where_text_is_joined(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cb.global_config, "enable_parallel_encoding", False)
    assert not any(waited for _, waited in told(play(scripted, joined)))


def test_what_branches_left_waits_with_their_program_and_goes_when_it_goes_on(scripted: Any) -> None:
    async def body(s: Any) -> None:
        s += "A stem. " + cb.gen("a")
        forks = s.fork(2)
        forks += "One " + cb.gen("b")
        await forks.ajoin("concate_and_append")
        await s.atext()
        await anyio.sleep(1)  # a tool
        s += cb.gen("c")

    waits = [("pause", 1), ("pause", 2), ("pause", 3), ("resume", 1), ("resume", 2), ("resume", 3)]
    assert [each[:2] for each in play(scripted, body).told] == [*waits, ("release", 2), ("release", 3), ("release", 1)]


@pytest.mark.parametrize("ends", ["fails", "is cancelled", "goes on"])
def test_what_branches_left_is_given_up_once_however_they_end(scripted: Any, ends: str) -> None:
    async def body(s: Any) -> None:
        s += "A stem. " + cb.gen("a")
        forks = s.fork(3, on_error="collect")
        forks += "One " + cb.gen("b")
        if ends == "is cancelled":
            forks[2].cancel()
        await forks.ajoin("concate_and_append")

    lines = ["said", "said", GenerationFailed("for the test"), "said"] if ends == "fails" else []
    released = [lease for kind, lease, *_ in play(scripted, body, *lines).told if kind == "release"]
    assert sorted(released) == list(range(1, 1 + len(released)))
    assert len(released) >= 3
