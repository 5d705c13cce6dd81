"""A stop expression is found where it first ends, whatever the pieces, and in time linear in the text."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.errors import InvalidRequest
from callboard.actors.stop_regex import LOOK_BACK, STATES, StopSearch, stop_regex

PATTERNS = [
    "ab", "a+b", "a*b", "a|ab|b+c", "[ab]c", "[^ab]", r"\d+\.", r"\s\s", "(a|b){2,3}c", "a.c", "(?s)a.c", "^ab", r"\Ab",
    "(?m)^b", "(?i)aB", "(?i)[a-b]C", "a??b", "a*?b", "(?:a(?:b|c))+a", "(a*)*b", "((a|b)*c)+a", r"\W", "(?i:a)b",
    "(|a)b", "a{2}", "a{0,2}b", "[\\w-]b", "\u00e9", "a(?P<x>b)?c",
]  # fmt: skip


def search(patterns: list[str], pieces: list[str]) -> tuple[int, int, str] | None:
    found = StopSearch(patterns)
    for piece in pieces:
        if (match := found.feed(piece)) is not None:
            return match.start, match.end, match.pattern
    return None


def plainly(pattern: str, text: str) -> tuple[int, int, str] | None:
    """Try every end, and every beginning of each."""
    compiled = re.compile(pattern)
    for end in range(1, len(text) + 1):
        for start in range(end):
            if compiled.fullmatch(text, start, end):
                return start, end, pattern
    return None


@settings(max_examples=400, deadline=None)
@given(
    pattern=st.sampled_from(PATTERNS),
    text=st.text(st.sampled_from("abcABC \n1.é"), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=5),
)
def test_the_first_end_and_its_first_beginning_are_found_whatever_the_pieces(
    pattern: str, text: str, cuts: list[int]
) -> None:
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert search([pattern], pieces) == plainly(pattern, text)


@settings(max_examples=200, deadline=None)
@given(pattern=st.sampled_from(PATTERNS), text=st.text(st.sampled_from("abc \n1."), max_size=30))
def test_nothing_that_a_match_takes_was_let_go_before(pattern: str, text: str) -> None:
    found = StopSearch([pattern])
    shown = 0
    for index, character in enumerate(text):
        if (match := found.feed(character)) is not None:
            assert match.start >= shown
            return
        shown = index + 1 - found.held


def test_of_several_the_one_that_ends_first_counts() -> None:
    assert search(["b+c", "abc?", "a"], ["xxabc"]) == (2, 3, "a")
    assert search(["bc", "abc"], ["abc"]) == (0, 3, "abc")


def test_what_is_held_is_bounded_and_a_longer_match_is_still_found() -> None:
    found = StopSearch(["a.*b"])
    assert found.feed("a" + "x" * 1000) is None
    assert found.held == LOOK_BACK
    match = found.feed("b")
    assert match is not None
    assert (match.start, match.end) == (1002 - LOOK_BACK, 1002)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*(a*)*b", "(a?){60}a{60}b", "(.*.*.*.*)b"])
def test_what_makes_others_backtrack_for_ever_costs_a_step_a_character(pattern: str) -> None:
    assert search([pattern], ["a" * 5000 + "!"]) is None


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "no regular expression"), ("a{3,1}", "no regular expression"), ("*", "no regular expression"),
        ("a*", "empty text"), ("^", "empty text"), ("a|", "empty text"), ("a$", "end or a word boundary"),
        (r"\bend", "word boundary"), (r"end\Z", "end or"), ("(?=a)b", "look-around"), ("(?<!a)b", "look-around"),
        (r"(a)\1", "reference"), (r"(a)?(?(1)b|c)", "condition"), ("a++b", "possessive"), ("(?>a)b", "atomic"),
        (f"a{{{STATES + 1}}}", "counts"), ("((a{50}){50}){50}", "too large"), ("(((){256}){256}){256}a", "too large"),
        ("(" * 100 + "a" * 300 + ")" * 100, "too large"), ("a{99999999999}", "no regular expression|counts"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_as_the_text_comes_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"(?s)stop_regex.*({words})"):
        stop_regex(pattern)


@pytest.mark.parametrize("flags", ["", "(?i)", "(?a)", "(?ai)"])
@pytest.mark.parametrize(
    "part", ["k", "[^k]", "[a-cK]", "[^\\d_]", "[\\W\\n]", "[\\s\\u0100-\\u0180]", "[^A-\\u212a]", "[\\D]"]
)
def test_what_one_character_is_python_says(flags: str, part: str) -> None:
    """Of small letters and capitals too, the odd ones among them: the Kelvin sign is a k."""
    compiled = re.compile(flags + part)
    for character in (*map(chr, range(0x250)), "\u212a", "\u0663", "\u3000", "\U0001f600"):
        assert (search([flags + part], [character]) is not None) == (compiled.fullmatch(character) is not None)


def test_an_expression_that_ignores_the_case_of_too_much_is_refused() -> None:
    """`re` looks at each character of such a range, on the loop where every request is waiting."""
    wide = "[\u4e00-\u9fff]"
    assert search(["(?i)" + wide * 20], ["\u4e00" * 20]) is not None  # one class, looked at once
    with pytest.raises(InvalidRequest, match="ignores the case of ranges of more than 65536 characters"):
        stop_regex("(?i)" + "".join(f"[{chr(low)}-\uffff]" for low in range(0x4E00, 0x4E04)))
    stop_regex("".join(f"[{chr(low)}-\uffff]" for low in range(0x4E00, 0x4E28)))
