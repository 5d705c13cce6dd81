"""Several generations by one call: the same texts as without, fewer calls, and nothing shared between programs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import callboard as cb
from callboard import InvalidRequest
from callboard.actors.backend import Prompt
from callboard.actors.messages import Delta, Finish
from callboard.actors.sampling import SamplingParams
from callboard.lang.ahead import Ahead

pytestmark = pytest.mark.anyio

CARD = "Name: Ada\nBorn: 1815\nWork: engines\n"
TOKEN = 3  # characters: tokens end where the whole text's length is a multiple of it
ENDLESS = 64 * TOKEN  # more than any call here asks for: a pattern has no end that would depend on where one asks


def continued(text: str, documents: tuple[str, ...]) -> str:
    """Give how a text goes on: as a document that begins with it, else by a pattern of its length."""
    for document in documents:
        if document.startswith(text):
            return document[len(text) :]
    return "".join("ab\ncd ef\n gh"[place % 12] for place in range(len(text), len(text) + ENDLESS))


def honest(text: str, documents: tuple[str, ...], sampling: SamplingParams) -> tuple[list[str], Finish]:
    """Write token by token, until a stop string is complete, the limit or the end."""
    rest, tokens, place = continued(text, documents), list[str](), len(text)
    while rest and len(tokens) < sampling.max_new_tokens:
        length = TOKEN - place % TOKEN
        token, rest = rest[:length], rest[length:]
        tokens.append(token)
        place += len(token)
        said = "".join(tokens)
        found = [(said.find(stop) + len(stop), said.find(stop), stop) for stop in sampling.stop if stop in said]
        if found:
            _, begin, stop = min(found)
            finish = Finish(reason="stop", matched=stop, prompt_tokens=len(text), completion_tokens=len(tokens))
            return [said[:begin]], finish
    reason = "length" if rest else "stop"
    return tokens, Finish(reason=reason, prompt_tokens=len(text), completion_tokens=len(tokens))


class Writer(cb.NullBackend):
    """Complete text honestly, and remember what it was asked; lumps: send it in one piece, which tells no tokens."""

    def __init__(self, *documents: str, lumps: bool = False) -> None:
        super().__init__()
        self.overruns = "text"
        self.documents = documents
        self.lumps = lumps
        self.asked: list[tuple[Prompt, SamplingParams]] = []

    async def generate(self, prompt: Prompt, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        self.asked.append((prompt, sampling))
        pieces, finish = honest(prompt.text, self.documents, sampling)
        for piece in ["".join(pieces)] if self.lumps else pieces:
            yield Delta(text=piece)
        yield Delta(finish=finish)

    @property
    def read(self) -> int:
        return sum(len(prompt.text) for prompt, _ in self.asked)


def card(s: Any) -> None:
    s += "Name:" + cb.gen("name", stop="\n", max_tokens=20)
    s += "\nBorn:" + cb.gen("born", stop="\n", max_tokens=20)
    s += "\nWork:" + cb.gen("work", stop="\n", max_tokens=20)


async def test_what_fits_is_taken_and_calls_and_input_are_saved() -> None:
    async with Writer(CARD) as plain, Writer(CARD) as ahead:
        one = await cb.function(card).arun(backend=plain)
        other = await cb.function(card, num_api_spec_tokens=64).arun(backend=ahead)
    assert [other[name] for name in ("name", "born", "work")] == [" Ada", " 1815", " engines"]
    assert one.text() == other.text()
    for name in ("name", "born", "work"):
        one_meta, other_meta = one.get_meta_info(name), other.get_meta_info(name)
        assert one_meta["finish_reason"] == other_meta["finish_reason"] == {"type": "stop", "matched": "\n"}
        assert one_meta["completion_tokens"] == other_meta["completion_tokens"]
    assert (len(plain.asked), len(ahead.asked)) == (3, 1)
    assert (plain.read, ahead.read) == (len("Name:") + len("Name: Ada\nBorn:") + len("Name: Ada\nBorn: 1815\nWork:"), 5)
    assert [other.get_meta_info(name)["prompt_tokens"] for name in ("name", "born", "work")] == [5, 0, 0]
    assert (ahead.asked[0][1].stop, ahead.asked[0][1].max_new_tokens) == ((), 64)


async def test_what_does_not_fit_is_thrown_away_and_asked_anew() -> None:
    def other_card(s: Any) -> None:
        s += "Name:" + cb.gen("name", stop="\n")
        s += "\nDied:" + cb.gen("died", stop="\n")  # the model went on with "Born:"

    async with Writer(CARD, "Name: Ada\nDied: 1852\n") as plain, Writer(CARD, "Name: Ada\nDied: 1852\n") as ahead:
        one = await cb.function(other_card).arun(backend=plain)
        other = await cb.function(other_card, num_api_spec_tokens=64).arun(backend=ahead)
    assert one.text() == other.text()
    assert other["died"] == " 1852"
    assert len(ahead.asked) == 2


async def test_roles_are_text_that_must_fit_too() -> None:
    document = "user: Hi\nassistant: Hello.\nuser: Bye\nassistant: So long.\n"

    def talk(s: Any, last: str) -> None:
        s += cb.user("Hi")
        s += cb.assistant(cb.gen("first", stop="\n"))
        s += cb.user(last)
        s += cb.assistant(cb.gen("second", stop="\n"))

    async with Writer(document) as backend:
        program = cb.function(talk, num_api_spec_tokens=64)
        state = await program.arun("Bye", backend=backend)
        assert (state["first"], state["second"], len(backend.asked)) == ("Hello.", "So long.", 1)
        await program.arun("Again", backend=backend)
        assert len(backend.asked) == 3


async def test_programs_of_a_batch_share_nothing() -> None:
    async with Writer(*(f"{index}: {index}{CARD}" for index in range(20))) as backend:

        def numbered(s: Any, index: int) -> None:
            s += f"{index}:" + cb.gen("number", stop="Name")
            s += "Name:" + cb.gen("name", stop="\n")

        program = cb.function(numbered, num_api_spec_tokens=64)
        states = await program.arun_batch([{"index": index} for index in range(20)], backend=backend)
        assert [state["number"] for state in states] == [f" {index}" for index in range(20)]
        assert {state["name"] for state in states} == {" Ada"}
        assert len(backend.asked) == 20


@pytest.mark.parametrize(("temperature", "calls"), [(0.0, 1), (0.7, 3)])
async def test_branches_share_what_is_left_only_if_all_draws_are_the_same(temperature: float, calls: int) -> None:
    def forked(s: Any) -> None:
        s += "Name:" + cb.gen("name", stop="\n")
        forks = s.fork(2)
        forks += "\nBorn:" + cb.gen("born", stop="\n")
        forks.join()

    async with Writer(CARD) as backend:
        state = await cb.function(forked, num_api_spec_tokens=64).arun(backend=backend, temperature=temperature)
        assert state["born"] == [" 1815", " 1815"]
        assert len(backend.asked) == calls


async def test_other_sampling_several_texts_and_constraints_are_asked_for_by_themselves() -> None:
    def mixed(s: Any) -> None:
        s += "Name:" + cb.gen("name", stop="\n", temperature=0.5)
        s += "\nBorn:" + cb.gen("born", stop="\n", temperature=0.25)
        s += "\nWork:" + cb.gen("work", stop="\n", temperature=0.25, n=2)

    async with Writer(CARD) as backend:
        state = await cb.function(mixed, num_api_spec_tokens=64).arun(backend=backend)
        assert (state["born"], state["work"]) == (" 1815", [" engines"] * 2)
        assert [sampling.stop for _, sampling in backend.asked] == [(), (), ("\n",), ("\n",)]


async def test_a_program_streams_in_the_same_text() -> None:
    async with Writer(CARD) as backend:
        state = await cb.function(card, num_api_spec_tokens=64).arun(backend=backend, stream=True)
        with anyio.fail_after(20):
            assert "".join([piece async for piece in state.text_async_iter("born")]) == " 1815"
            assert "".join([piece async for piece in state.text_async_iter()]) == CARD[:-1]
        assert len(backend.asked) == 1


async def test_elsewhere_it_has_no_effect(null: Any) -> None:
    state = await cb.function(card, num_api_spec_tokens=64).arun(backend=null)
    assert state.text() == "Name:Paris\nBorn:Paris\nWork:Paris"
    assert null.generations == 3


async def test_binding_and_runs_keep_it() -> None:
    def asks(s: Any, what: str) -> None:
        card(s)

    async with Writer(CARD) as backend:
        await cb.function(num_api_spec_tokens=64)(asks).bind(what="x").arun(backend=backend, max_new_tokens=9)
        assert len(backend.asked) == 1


@pytest.mark.parametrize("tokens", [0, -1, True, 1.5, "64", 1 << 21])
def test_a_bad_number_is_refused_where_the_program_is_made(tokens: Any) -> None:
    with pytest.raises(InvalidRequest, match="num_api_spec_tokens"):
        cb.function(num_api_spec_tokens=tokens)


# --- any program -----------------------------------------------------------------------------------------------------

PARTS = some.lists(
    some.one_of(
        some.sampled_from(["Name:", "\nBorn:", "\nWork:", "\n", "a", "ef"]),
        some.tuples(
            some.lists(some.sampled_from(["\n", "ef", "f\n", " ", "a\nb"]), max_size=2), some.integers(1, 9)
        ),
    ),
    min_size=1, max_size=7,
)  # fmt: skip


@given(PARTS, some.integers(1, 40), some.booleans())
@settings(max_examples=300, deadline=None)
def test_any_program_says_the_same_with_it(parts: list[Any], tokens: int, roles: bool) -> None:
    def program(s: Any) -> None:
        for number, part in enumerate(parts):
            if isinstance(part, str):
                s += part
            else:
                s += cb.gen(f"x{number}", stop=part[0], max_tokens=part[1])
            if roles:
                s += cb.user("a")

    async def run() -> None:
        async with Writer(CARD) as plain, Writer(CARD) as ahead:
            one = await cb.function(program).arun(backend=plain)
            other = await cb.function(program, num_api_spec_tokens=tokens).arun(backend=ahead)
            assert one.text() == other.text()
            for number, part in enumerate(parts):
                if not isinstance(part, str):
                    meta, other_meta = one.get_meta_info(f"x{number}"), other.get_meta_info(f"x{number}")
                    assert meta["finish_reason"] == other_meta["finish_reason"]
            assert len(ahead.asked) <= len(plain.asked)

    anyio.run(run)


# --- counting --------------------------------------------------------------------------------------------------------

DRAWN = SamplingParams()


def ahead_of(text: str, *, ends: tuple[int, ...] | None = None, tokens: int = 0, whole: bool = False) -> Ahead:
    return Ahead(0, text, ends, tokens, whole, DRAWN)


def test_tokens_are_counted_by_their_ends_or_by_their_share_or_by_their_bytes() -> None:
    text = "abcdefgh"
    exact = ahead_of(text, ends=(3, 6, 8), tokens=3)
    assert [exact.count(*place) for place in ((0, 3), (0, 4), (3, 8), (4, 5), (2, 4), (5, 5))] == [1, 2, 2, 1, 2, 0]
    share = ahead_of(text, tokens=2)
    assert [share.count(*place) for place in ((0, 4), (0, 5), (4, 8))] == [1, 2, 1]
    assert ahead_of("ab" * 10).count(0, 20) == 5


def test_a_limit_cuts_at_a_token_s_end_and_never_by_an_estimate() -> None:
    two = msgspec.structs.replace(DRAWN, max_new_tokens=2)
    piece = ahead_of("abcdefgh", ends=(3, 6, 8), tokens=3).serve(0, two)
    assert piece is not None
    assert (piece.text, piece.reason, piece.tokens) == ("abcdef", "length", 2)
    assert ahead_of("abcdefgh", tokens=3).serve(0, two) is None
    guessed = ahead_of("abcdefgh", tokens=4).serve(0, two, guess=True)
    assert guessed is not None
    assert (guessed.text, guessed.reason) == ("abcd", "length")


async def test_where_tokens_cannot_be_told_apart_the_service_cuts() -> None:
    def short(s: Any) -> None:
        s += "Name:" + cb.gen("name", max_tokens=2)
        s += cb.gen("more", stop="\n", max_tokens=20)

    async with Writer(CARD, lumps=True) as plain, Writer(CARD, lumps=True) as ahead:
        one = await cb.function(short).arun(backend=plain)
        other = await cb.function(short, num_api_spec_tokens=64).arun(backend=ahead)
        assert one.text() == other.text()
        assert [sampling.max_new_tokens for _, sampling in ahead.asked] == [64, 2, 64]
        both = await cb.function(card, num_api_spec_tokens=64).arun(backend=ahead)
        assert both.text() == CARD[:-1]
        assert len(ahead.asked) == 4
