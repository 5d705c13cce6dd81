"""A row's mask is that of its matcher as it stands, whoever fills it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from callboard.actors.grammar import GrammarCache
from callboard.actors.sampling import Constraint
from callboard.actors.worker import masks
from callboard.actors.worker.masks import RowMasks

REGEXES = ("[0-9]+", "a|b", "(x|y)z", ".*")


def token_of(byte: str) -> int:
    return ord(byte) - ord("!")


@pytest.fixture(params=["at once", "beside"])
def beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(masks, "_WORTH_HANDING_OVER", 0)
    return request.param == "beside"


def test_masks_are_those_of_the_matchers(tiny: Path, beside: bool) -> None:
    cache = GrammarCache(tiny)
    kept = RowMasks(8, cache.mask_words, beside=beside)
    numbered = [(cache.matcher(Constraint("regex", regex)), 2 * row) for row, regex in enumerate(REGEXES)]
    kept.begin(numbered)
    kept.take(numbered)
    for matcher, row in numbered:
        assert kept.words_RW[row].tobytes() == matcher.compute_bitmask()[: 4 * cache.mask_words]


def test_a_matcher_that_went_on_has_a_new_mask(tiny: Path, beside: bool) -> None:
    cache = GrammarCache(tiny)
    kept = RowMasks(1, cache.mask_words, beside=beside)
    matcher = cache.matcher(Constraint("regex", "[0-9]-[a-z]"))
    masks_seen: list[bytes] = []
    for _ in range(3):
        kept.begin([(matcher, 0)])
        kept.take([(matcher, 0)])
        mask = kept.words_RW[0].copy()
        masks_seen.append(mask.tobytes())
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        assert matcher.consume_token(int(np.flatnonzero(bits)[0]))
    assert len(set(masks_seen)) == 3


def test_no_thread_is_left_behind(tiny: Path, beside: bool) -> None:
    at_rest = set(threading.enumerate())
    cache = GrammarCache(tiny)
    kept = RowMasks(1, cache.mask_words, beside=beside)
    kept.begin([(cache.matcher(Constraint("regex", "[0-9]+")), 0)])
    kept.end()
    assert set(threading.enumerate()) <= at_rest


def test_a_row_that_begins_anew_has_nothing_of_the_one_before(
    tiny: Path, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = GrammarCache(tiny)
    kept = RowMasks(1, cache.mask_words, beside=beside)
    before, after = (cache.matcher(Constraint("regex", regex)) for regex in ("[0-9]+", "[a-z]+"))
    kept.begin([(before, 0)])
    monkeypatch.setattr(masks, "_WORTH_HANDING_OVER", 1 << 30)  # too little to hand over
    kept.begin([(after, 0)])
    kept.take([(after, 0)])
    assert kept.words_RW[0].tobytes() == after.compute_bitmask()[: 4 * cache.mask_words]


def test_matchers_take_their_tokens_before_their_masks_are_filled(tiny: Path, beside: bool) -> None:
    cache = GrammarCache(tiny)
    kept = RowMasks(3, cache.mask_words, beside=beside)
    numbered = [(cache.matcher(Constraint("regex", "[0-9]-?")), row) for row in range(3)]
    kept.advance(numbered, [*map(token_of, "78x")])
    kept.take(numbered)
    after = cache.matcher(Constraint("regex", "[0-9]-?"))
    assert after.consume_token(token_of("7"))
    for _, row in numbered[:2]:
        assert kept.words_RW[row].tobytes() == after.compute_bitmask()[: 4 * cache.mask_words]
    assert kept.stopped(np.arange(3)).tolist() == [False, False, True]
    assert [matcher.is_error() for matcher, _ in numbered] == [False, False, True]


def test_rows_that_can_only_end_are_told(tiny: Path, beside: bool) -> None:
    cache = GrammarCache(tiny)
    kept = RowMasks(2, cache.mask_words, beside=beside)
    numbered = [(cache.matcher(Constraint("regex", regex)), row) for row, regex in enumerate(("[0-9]", "[0-9]+"))]
    for tokens, stopped in (([], [False, False]), ([token_of("1")] * 2, [True, False])):
        kept.advance(numbered, tokens)
        kept.take(numbered)
        assert kept.stopped(np.arange(2)).tolist() == stopped


def test_a_row_among_others_is_not_taken_for_them(tiny: Path, beside: bool) -> None:
    cache = GrammarCache(tiny)
    kept = RowMasks(3, cache.mask_words, beside=beside)
    numbered = [(cache.matcher(Constraint("regex", "[0-9]-[a-z]")), row) for row in range(3)]
    kept.advance(numbered, [token_of("1")] * 3)
    kept.advance(numbered[1:2], [token_of("-")])
    for taken in (numbered, numbered):  # twice: a line holds
        kept.take(taken)
        for matcher, row in numbered:
            assert kept.words_RW[row].tobytes() == matcher.compute_bitmask()[: 4 * cache.mask_words]
    assert kept.words_RW[0].tobytes() == kept.words_RW[2].tobytes() != kept.words_RW[1].tobytes()


def test_nothing_is_filled_beside_before_the_start(tiny: Path) -> None:
    cache = GrammarCache(tiny)
    kept = RowMasks(64, cache.mask_words, beside=True)
    matcher = cache.matcher(Constraint("regex", "[0-9]{2}"))
    numbered = [(cache.matcher(Constraint("regex", "[0-9]{2}")), row) for row in range(64)]
    assert kept.hands_over(64)
    kept.advance(numbered, [token_of("1")] * 64)
    assert matcher.compute_bitmask() == numbered[0][0].compute_bitmask()
    kept.start()
    kept.end()
    assert matcher.consume_token(token_of("1"))
    assert matcher.compute_bitmask() == numbered[0][0].compute_bitmask()
