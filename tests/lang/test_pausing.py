"""While a program waits on the outside world, its backend knows, and computes what it has said if nothing else is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard import Engine
from callboard.actors.core import simulate

from .noting import noting, play

RULES = "These are the rules, and whoever plays must follow every one of them. " * 4
SHORT = "Go on."


def test_a_program_that_waits_is_told_with_all_it_has_said_and_tokenized_once(scripted: Any) -> None:
    async def body(s: Any) -> None:
        s += "One " + cb.gen("a")
        await s.aget("a")
        s += RULES
        await anyio.sleep(1)  # a tool
        s += cb.gen("b")

    backend = play(scripted, body)
    said = len("One said" + RULES)
    assert backend.told == [("pause", 1, said), ("resume", 1), ("release", 1)]
    assert backend.encoded == ["One ", RULES]
    assert len(backend.prompts[1].tokens) // 4 == said


def test_what_is_said_later_is_tokenized_together_with_what_was_told(scripted: Any) -> None:
    async def body(s: Any) -> None:
        s += "One " + cb.gen("a")
        await s.aget("a")
        s += RULES
        await anyio.sleep(1)
        s += SHORT
        s += cb.gen("b")

    backend = play(scripted, body)
    assert backend.encoded == ["One ", RULES, RULES + SHORT]


def test_a_program_that_goes_on_at_once_is_not_told(scripted: Any) -> None:
    async def body(s: Any) -> None:
        for name in "abc":
            s += RULES + cb.gen(name)
            await s.aget(name)
            await anyio.sleep(0.001)

    assert play(scripted, body).told == [("release", 1)]


def test_of_short_text_only_that_it_waits_is_told(scripted: Any) -> None:
    async def body(s: Any) -> None:
        s += "One " + cb.gen("a") + SHORT
        await s.aget("a")
        await anyio.sleep(1)
        s += cb.gen("b")

    assert play(scripted, body).told == [("pause", 1, 0), ("resume", 1), ("release", 1)]


def test_before_its_first_generation_it_is_told_too(scripted: Any) -> None:
    async def body(s: Any) -> None:
        with s.user():
            s += RULES
            await anyio.sleep(1)
        s += s.assistant(cb.gen("a"))

    told = play(scripted, body).told
    assert [word for word, *_ in told] == ["pause", "resume", "release"]


def test_a_program_that_says_more_and_waits_again_is_told_again(scripted: Any) -> None:
    async def body(s: Any) -> None:
        for _ in range(2):
            s += RULES
            await anyio.sleep(1)

    told = play(scripted, body).told
    once = len(RULES)
    assert told == [("pause", 1, once), ("resume", 1), ("pause", 1, 2 * once), ("resume", 1), ("release", 1)]


def test_branches_tell_for_themselves_and_their_parent_does_not_wait(scripted: Any) -> None:
    async def body(s: Any) -> None:
        s += "One " + cb.gen("a")
        await s.aget("a")
        forks = s.fork(2)
        for branch in forks:
            branch += RULES
        await anyio.sleep(1)
        for branch in forks:
            branch += cb.gen("b")
        await forks.ajoin()

    told = play(scripted, body).told
    assert sorted(word for word in told if word[0] == "pause") == [
        ("pause", 2, len("One said" + RULES)),
        ("pause", 3, len("One said" + RULES)),
    ]
    assert sorted(word for word in told if word[0] == "resume") == [("resume", 2), ("resume", 3)]


@pytest.mark.parametrize("cause", ["a failure", "a cancellation"])
def test_a_program_that_ends_while_it_waits_takes_it_back(scripted: Any, cause: str) -> None:
    async def body(s: Any) -> None:
        s += RULES
        await anyio.sleep(1)
        if cause == "a failure":
            raise LookupError(cause)
        await anyio.sleep_forever()

    async def main() -> Any:
        async with noting(scripted) as backend:
            with anyio.move_on_after(2):
                with suppress(LookupError):
                    await cb.function(body).arun(backend=backend)
            return backend.told

    assert simulate.run(main, seed=1).value == [("pause", 1, len(RULES)), ("resume", 1), ("release", 1)]


def test_at_any_moment_it_may_go_on(scripted: Any) -> None:
    for step in range(30):

        async def body(s: Any, seconds: float = 0.0005 * step) -> None:
            s += RULES
            await anyio.sleep(seconds)
            s += SHORT + cb.gen("a")
            await s.aget("a")

        backend = play(scripted, body)
        words = [word for word, *_ in backend.told]
        assert words in (["release"], ["pause", "resume", "release"])
        assert len(backend.prompts[0].tokens) // 4 == len(RULES + SHORT)


def test_what_cannot_be_tokenized_is_refused_where_it_is_needed_and_not_before(scripted: Any) -> None:
    async def main() -> None:
        class Refusing(type(noting(scripted))):
            async def encode(self, text: str, *, beginning: bool = True) -> bytes:
                raise cb.InvalidRequest("text", "it holds half a character")

        async def body(s: Any) -> None:
            s += RULES
            await anyio.sleep(1)
            if backend.wanted:
                s += cb.gen("a")

        async with Refusing() as backend:
            backend.wanted = False
            assert await (await cb.function(body).arun(backend=backend)).atext() == RULES
            backend.wanted = True
            with pytest.raises(cb.InvalidRequest, match="half a character"):
                await cb.function(body).arun(backend=backend)

    simulate.run(main, seed=1)


# --- on the engine ----------------------------------------------------------------------------------------------------


async def computed(engine: Engine, tokens: int) -> None:
    """Wait until so many tokens were computed ahead."""
    with anyio.fail_after(60):
        while (await engine.statistics())["scheduler"]["eager_tokens"] < tokens:
            await anyio.lowlevel.checkpoint()


@cb.function
async def two_turns(s: Any, tool: Callable[[Any], Awaitable[None]], result: str = "") -> None:
    s += "Once upon a time " + cb.gen("a", max_tokens=4, temperature=0)
    await s.aget("a")
    s += RULES
    await tool(s)
    s += result + cb.gen("b", max_tokens=12, temperature=0)


@pytest.mark.anyio
async def test_the_next_generation_begins_with_all_but_the_last_token_and_says_the_same() -> None:
    async with Engine(threads=1) as engine:

        async def tool(_: Any) -> None:
            await computed(engine, len(await engine.encode(RULES, beginning=False)) // 4)

        state = await two_turns.arun(tool, backend=engine)
        meta = await state.aget_meta_info("b")
        statistics = (await engine.statistics())["scheduler"]
        assert meta["cached_tokens"] == meta["prompt_tokens"] - 1
        assert statistics["eager_tokens_used"] == statistics["eager_tokens"] - 1
        assert statistics["slots_free"] + statistics["slots_tree"] == statistics["slots"]

    async def no_tool(_: Any) -> None:
        return

    async with Engine(threads=1, eager=False) as engine:
        other = await two_turns.arun(no_tool, backend=engine)
        assert (await engine.statistics())["scheduler"]["eager_tokens"] == 0
    assert other.text() == state.text()


@pytest.mark.anyio
async def test_the_tools_result_is_computed_behind_what_was_computed_ahead() -> None:
    async with Engine(threads=1) as engine:
        rules = len(await engine.encode(RULES, beginning=False)) // 4

        async def tool(_: Any) -> None:
            await computed(engine, rules)

        state = await two_turns.arun(tool, result="The tool says 42.", backend=engine)
        assert (await state.aget_meta_info("b"))["cached_tokens"] >= rules
        assert (await engine.statistics())["scheduler"]["eager_tokens_used"] >= rules - 1
