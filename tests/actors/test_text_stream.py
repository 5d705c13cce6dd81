"""Streamed text equals decoded tokens; stop strings end it where they stand, in text and in tokens."""

from __future__ import annotations

import random
import re
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from callboard.actors.text_stream import TextStream, first_characters, is_byte_level, token_text

from .vocabularies import TEXT, byte_level, metaspace

TOKENIZERS: dict[str, Tokenizer] = {"byte-level": byte_level(), "metaspace": metaspace()}


def run(
    tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...] = (), expressions: tuple[str, ...] = (), *,
    skip: bool = True,
):  # fmt: skip
    """Feed ids; give the text let go, and the stream at its end."""
    stream = TextStream(token_text(tokenizer)(skip), stops, expressions)
    shown = ""
    for token in ids:
        shown += stream.feed(token)
        if stream.matched is not None:
            return shown, stream
    return shown + stream.finish(), stream


class _Decoder:
    """A tokenizer of which only the decoder may be asked: all else takes as long as the vocabulary is large."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.decoder = tokenizer.decoder


def test_what_kind_a_tokenizer_is_costs_the_same_whatever_its_vocabulary() -> None:
    """Every prompt that is healed asks for it, on the loop."""
    kinds = {kind: is_byte_level(cast("Tokenizer", _Decoder(tokenizer))) for kind, tokenizer in TOKENIZERS.items()}
    assert kinds == {"byte-level": True, "metaspace": False}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("skip", [True, False])
def test_streamed_text_of_random_ids_is_the_whole_decode(kind: str, skip: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    rng = random.Random(7)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(1, 40))]
        text, stream = run(tokenizer, ids, skip=skip)
        assert text == tokenizer.decode(ids, skip_special_tokens=skip)
        assert stream.whole == len(ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_streamed_text_of_real_text_is_the_text(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    for text in TEXT:
        ids = tokenizer.encode(text).ids
        assert run(tokenizer, ids)[0] == tokenizer.decode(ids)


def test_half_a_character_is_held_back_until_it_is_whole() -> None:
    tokenizer = Tokenizer.from_str(byte_level(260).to_str())
    stream = TextStream(token_text(tokenizer)(True))
    pieces = [stream.feed(token) for token in tokenizer.encode("😀").ids]
    assert pieces == ["", "", "", "😀"]


def test_half_a_character_at_the_end_is_shown_as_the_whole_decode_shows_it() -> None:
    tokenizer = byte_level(260)
    ids = tokenizer.encode("a😀").ids[:3]
    assert run(tokenizer, ids)[0] == tokenizer.decode(ids) == "a\ufffd"


def test_a_text_that_only_looks_like_a_stop_is_held_and_then_shown() -> None:
    tokenizer = byte_level(260)
    stream = TextStream(token_text(tokenizer)(True), ("STOP",))
    shown = [stream.feed(token) for token in tokenizer.encode("aSTO!").ids]
    assert shown == ["a", "", "", "", "STO!"]


def test_of_two_stops_the_earlier_wins_and_then_the_longer() -> None:
    tokenizer = byte_level(260)
    text, stream = run(tokenizer, tokenizer.encode("one two three").ids, ("three", "two", "two t"))
    assert (text, stream.matched) == ("one ", "two")
    tokenizer = byte_level()
    text, stream = run(tokenizer, tokenizer.encode("The capital of").ids, ("cap", "capital"))
    assert (text, stream.matched) == ("The ", "capital")


def test_a_stop_that_begins_inside_a_token_leaves_whole_tokens_and_a_tail() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("The capital of France").ids
    text, stream = run(tokenizer, ids, ("ital of Fr",))
    assert text == "The cap"
    assert tokenizer.decode(ids[: stream.whole]) + stream.tail == text
    assert stream.tail == " cap"


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(TOKENIZERS)),
    text=st.text(st.sampled_from("aβ stop\n東😀xyzTe"), min_size=1, max_size=40),
    stops=st.lists(st.text(st.sampled_from("stop aβ\n東xT"), min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_text_stops_before_the_first_stop_string_and_tokens_with_it(kind: str, text: str, stops: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text).ids
    whole = tokenizer.decode(ids)
    shown, stream = run(tokenizer, ids, tuple(stops))
    ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]
    if not ends:
        assert (shown, stream.matched) == (whole, None)
        return
    assert stream.matched in stops
    assert whole.startswith(shown + stream.matched)
    assert not any(stop in shown for stop in stops)
    assert tokenizer.decode(ids[: stream.whole]) + stream.tail == shown


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(TOKENIZERS)),
    text=st.text(st.sampled_from("aβ stop\n東😀xyzTe"), min_size=1, max_size=40),
    stops=st.lists(st.text(st.sampled_from("stop aβ\n東xT"), min_size=1, max_size=4), max_size=3),
    expressions=st.lists(st.sampled_from([r"\d+\.", "s.{1,3}p"]), max_size=1),
)
def test_a_token_that_passes_is_as_if_it_had_been_fed(
    kind: str, text: str, stops: list[str], expressions: list[str]
) -> None:
    tokenizer = TOKENIZERS[kind]
    make = token_text(tokenizer)
    alone, firsts = make(True), first_characters(stops)
    fed, passed = (TextStream(make(True), stops, expressions) for _ in range(2))
    for token in tokenizer.encode(text).ids:
        said = alone.alone(token)
        if said is not None and passed.is_quiet() and firsts.isdisjoint(said):
            shown = said
            passed.seen += 1
        else:
            shown = passed.feed(token)
        assert shown == fed.feed(token)
        assert (passed.seen, passed.whole, passed.tail) == (fed.seen, fed.whole, fed.tail)
        assert passed.matched == fed.matched
        if fed.matched is not None:
            return
    assert passed.finish() == fed.finish()
    assert (passed.whole, passed.tail, passed.matched) == (fed.whole, fed.tail, fed.matched)


def test_a_text_is_quiet_unless_something_is_held_back_or_an_expression_looks() -> None:
    make = token_text(byte_level(260))
    a, first_byte = TOKENIZERS["byte-level"].encode("a").ids[0], byte_level(260).encode("😀").ids[0]
    plain, stopping = TextStream(make(True)), TextStream(make(True), ("STOP",))
    assert plain.is_quiet()
    assert stopping.is_quiet()
    stopping.feed(byte_level(260).encode("S").ids[0])
    assert not stopping.is_quiet()
    plain.feed(first_byte)
    assert not plain.is_quiet()
    assert plain.feed(a) == "\ufffda"
    assert plain.is_quiet()
    assert not TextStream(make(True), expressions=("b",)).is_quiet()


def test_a_stop_expression_ends_the_text_where_it_first_ends() -> None:
    tokenizer = byte_level()
    text, stream = run(tokenizer, tokenizer.encode("The capital of France").ids, expressions=(r"it\w+ o",))
    assert (text, stream.matched) == ("The cap", r"it\w+ o")
    assert tokenizer.decode(tokenizer.encode("The capital of France").ids[: stream.whole]) + stream.tail == text


def test_of_a_stop_string_and_an_expression_the_earlier_wins() -> None:
    tokenizer = byte_level(260)
    ids = tokenizer.encode("one 22 three").ids
    assert run(tokenizer, ids, ("three",), (r"\d\d",))[1].matched == r"\d\d"
    assert run(tokenizer, ids, ("ne 2",), (r"\d+ t",))[1].matched == "ne 2"


def test_what_may_become_a_stop_expression_is_held_and_then_shown() -> None:
    tokenizer = byte_level(260)
    stream = TextStream(token_text(tokenizer)(True), expressions=(r"\d\d\.",))
    shown = [stream.feed(token) for token in tokenizer.encode("a12b3").ids]
    assert shown == ["a", "", "", "12b", ""]
    assert stream.finish() == "3"


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(sorted(TOKENIZERS)),
    text=st.text(st.sampled_from("aβ stop\n東😀12.Te"), min_size=1, max_size=40),
    stops=st.lists(st.text(st.sampled_from("stop aβ\n東"), min_size=1, max_size=3), max_size=2),
    expression=st.sampled_from([r"\d+\.", r"\n\s", "[^a-z]東", "s.{1,3}p", "(?i)te", "a.*2"]),
)
def test_no_stop_expression_is_shown_and_tokens_end_with_the_text(
    kind: str, text: str, stops: list[str], expression: str
) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text).ids
    whole = tokenizer.decode(ids)
    shown, stream = run(tokenizer, ids, tuple(stops), (expression,))
    assert not re.search(expression, shown)
    if stream.matched is None:
        assert shown == whole
        return
    assert whole.startswith(shown)
    if stream.matched == expression:
        assert re.compile(expression).match(whole, len(shown))
    assert tokenizer.decode(ids[: stream.whole]) + stream.tail == shown
