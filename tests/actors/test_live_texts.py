"""Tokens that come together are told as if each had been fed to its text by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.detokenizer import Detokenizer
from callboard.actors.messages import Close, Delta, Deltas, Finished, Open, Tokens
from callboard.actors.sampling import SamplingParams
from callboard.actors.text_stream import TextStream, token_text
from callboard.actors.wires import Wires

from .vocabularies import byte_level

TOKENIZER = byte_level(260)
TEXTS = st.text(st.sampled_from("aβ stop\n東😀xyzTe"), min_size=1, max_size=30)


class Heard:
    """An address that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def tell(self, message: Any) -> None:
        self.messages.append(message)


class Stage:
    """A detokenizer whose messages are handed to it one by one; what it tells is to be the same in both forms."""

    def __init__(self) -> None:
        wires = Wires()
        wires.dispatcher, wires.schedulers = Heard(), [Heard()]  # type: ignore[assignment]
        self.told: list[Any] = wires.dispatcher.messages
        self.detokenizer = Detokenizer(wires, token_text(TOKENIZER))

    def send(self, message: Any) -> None:
        before = len(self.told)
        asyncio.run(self.detokenizer.receive(message))
        for told in self.told[before:]:
            assert packed(told) == unpacked(told)

    def step(self, entries: list[tuple[int, int, int]], *ends: Finished) -> None:
        """entries: request, offset, token."""
        requests, offsets, tokens = zip(*entries, strict=True) if entries else ((), (), ())
        packed = np.array(requests, np.int64), np.array(offsets, np.int32), np.array(tokens, np.int32)
        self.send(Tokens(0, *(part.tobytes() for part in packed), finished=ends))

    def deltas(self, request: int) -> list[Delta]:
        pairs = [pair for message in self.told for pair in zip(message.requests, message.deltas, strict=True)]
        return [delta for number, delta in pairs if number == request]


def packed(told: Deltas) -> dict[int, list[int]]:
    """Give the tokens that a ledger reads, by the request, of those that go on."""
    said: dict[int, list[int]] = {}
    whose, tokens = np.frombuffer(told.whose, np.int64).tolist(), np.frombuffer(told.tokens, np.int32).tolist()
    for request, token in zip(whose, tokens, strict=True):
        if request not in ended(told):
            said.setdefault(request, []).append(token)
    return said


def unpacked(told: Deltas) -> dict[int, list[int]]:
    """Give the tokens that readers get, in the same form."""
    said: dict[int, list[int]] = {}
    for request, delta in zip(told.requests, told.deltas, strict=True):
        if delta.tokens and request not in ended(told):
            said.setdefault(request, []).extend(delta.tokens)
    return said


def ended(told: Deltas) -> set[int]:
    return {request for request, delta in zip(told.requests, told.deltas, strict=True) if delta.finish is not None}


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(
        st.tuples(TEXTS, st.lists(st.text(st.sampled_from("stopaβ\n東x"), min_size=1, max_size=3), max_size=2)),
        min_size=1,
        max_size=5,
    ),
    rates=st.lists(st.integers(1, 3), min_size=5, max_size=5),
)
def test_a_step_of_many_is_as_many_texts_alone(texts: list[tuple[str, list[str]]], rates: list[int]) -> None:
    stage = Stage()
    lines = {number: TOKENIZER.encode(text).ids for number, (text, _) in enumerate(texts, 1)}
    for number, (_, stops) in enumerate(texts, 1):
        stage.send(Open(number, SamplingParams(stop=tuple(stops), skip_special_tokens=number % 2 == 0), 5))
    at = dict.fromkeys(lines, 0)
    while any(at[number] < len(ids) for number, ids in lines.items()):
        entries: list[tuple[int, int, int]] = []
        for number, ids in lines.items():
            for _ in range(rates[number - 1]):  # several in one step, as where a grammar forces them
                if at[number] < len(ids):
                    entries.append((number, at[number], ids[at[number]]))
                    at[number] += 1
        stage.step(entries)
    stage.step([], *(Finished(number, "length", completion_tokens=len(ids)) for number, ids in lines.items()))
    for number, (_, stops) in enumerate(texts, 1):
        alone, shown = TextStream(token_text(TOKENIZER)(number % 2 == 0), stops), ""
        for token in lines[number]:
            shown += alone.feed(token)
            if alone.matched is not None:
                break
        else:
            shown += alone.finish()
        told = stage.deltas(number)
        finish = told[-1].finish
        assert finish is not None
        assert [delta.finish for delta in told[:-1]] == [None] * (len(told) - 1)
        assert "".join(delta.text for delta in told) == shown
        assert (finish.matched, finish.kept_tokens, finish.tail) == (alone.matched, alone.whole, alone.tail)
        assert [token for delta in told for token in delta.tokens] == lines[number][: alone.whole]


def test_places_are_found_again_as_requests_come_and_go() -> None:
    a, b = TOKENIZER.encode("ab").ids
    stage = Stage()
    seen = dict.fromkeys(range(1, 201), 0)
    for number in seen:  # more than there are places at first
        stage.send(Open(number, SamplingParams(), 5))
    for turn in range(4):
        for _ in range(2):
            stage.step([(number, offset, a) for number, offset in seen.items()])
            seen = {number: offset + 1 for number, offset in seen.items()}
        gone = [*seen][turn::3]
        for number in gone:
            stage.send(Close(number))
            del seen[number]
        stage.step([(number, 99, b) for number in gone])  # nobody's any more
        stage.send(Open(1000 + turn, SamplingParams(), 5))
        seen[1000 + turn] = 0
    for number, offset in seen.items():
        assert "".join(delta.text for delta in stage.deltas(number)) == "a" * offset


def test_a_text_is_made_when_it_is_first_spoken_of() -> None:
    """Of hundreds that begin at once the first step waits for none."""
    a = TOKENIZER.encode("a").ids[0]
    stage, made = Stage(), list[bool]()
    make = stage.detokenizer._make_text
    stage.detokenizer._make_text = lambda skip: made.append(skip) or make(skip)  # type: ignore[func-returns-value]
    for number in range(1, 5):
        stage.send(Open(number, SamplingParams(), 5))
    assert not made
    stage.step([(1, 0, a), (2, 0, a)])
    assert len(made) == 2
    stage.send(Open(2, SamplingParams(), 5))  # said again, as behind a restart
    stage.step([(2, 1, a)], Finished(3, "abort"))
    assert len(made) == 3
    assert [delta.text for delta in stage.deltas(2)] == ["a", "a"]
    assert [delta.finish.reason for delta in stage.deltas(3) if delta.finish is not None] == ["abort"]
    stage.send(Close(4))
    stage.step([(4, 0, a)])
    assert not stage.deltas(4)


def test_a_repeat_and_a_gap_are_seen_among_tokens_that_pass() -> None:
    a = TOKENIZER.encode("a").ids[0]
    stage = Stage()
    for number in (1, 2, 3):
        stage.send(Open(number, SamplingParams(), 5))
    stage.step([(1, 0, a), (2, 0, a), (3, 0, a)])
    stage.step([(1, 1, a), (2, 0, a), (3, 2, a)])
    assert [delta.text for delta in stage.deltas(1)] == ["a", "a"]
    assert [delta.text for delta in stage.deltas(2)] == ["a"]
    lost = stage.deltas(3)[-1].finish
    assert lost is not None
    assert lost.message == "tokens 1 to 1 of request 3 were lost when the detokenizer restarted"
