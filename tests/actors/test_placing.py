"""Where requests go: programs stay, prefixes are found again, loads are kept alike and exactly undone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from callboard.actors.placing import Place, Placing
from callboard.actors.sent_prefixes import BLOCK, SentPrefixes, block_digests

HEADER = np.arange(10 * BLOCK, dtype=np.int32)


def behind(*parts: int, header: np.ndarray = HEADER) -> bytes:
    """Give a prompt that goes on from a header with tokens of its own."""
    return np.concatenate((header, np.array(parts, np.int32))).tobytes()


def other(number: int, tokens: int = 2 * BLOCK) -> bytes:
    """Give a prompt that shares nothing with any other number's."""
    return np.arange(1000 * number, 1000 * number + tokens, dtype=np.int32).tobytes()


def loads(placing: Placing) -> list[tuple[int, int]]:
    return [(load.requests, load.tokens) for load in placing.loads]


def test_with_one_replica_there_is_nothing_to_choose_and_nothing_is_kept() -> None:
    placing = Placing()
    places = {placing.place(other(number), "", program=number, lease=number, outputs=9) for number in range(100)}
    assert places == {Place(0, 0)}
    assert (placing.home(5), placing.home(777), placing.pause(3, b"", "")) == (0, 0, 0)
    placing.over(places.pop())
    assert loads(placing) == [(0, 0)]
    assert placing._homes == {}


def test_a_program_stays_where_its_first_request_went_however_busy_that_becomes() -> None:
    placing = Placing(3)
    home = placing.place(other(1), "", program=7, lease=7, outputs=512).replica
    for branch in range(20, 60):
        assert placing.place(other(branch), "", program=7, lease=branch, outputs=512).replica == home
    assert placing.place(other(2), "", program=8, lease=8, outputs=1).replica != home
    assert {placing.home(number) for number in (7, *range(20, 60))} == {home}


def test_a_program_that_is_over_is_nowhere_and_its_number_may_go_anywhere() -> None:
    placing = Placing(2)
    first = placing.place(other(1), "", program=7, lease=9, outputs=100)
    placing.release((7, 9, 1234))
    assert (placing.home(7), placing.home(9)) == (None, None)
    assert placing.place(other(2), "", program=7, lease=7, outputs=1).replica != first.replica
    placing.release((7,))
    assert placing._homes == {}
    assert placing._homed == [0, 0]


def test_programs_that_share_nothing_are_spread_also_where_each_is_idle_when_the_next_comes() -> None:
    placing = Placing(4)
    homes = []
    for number in range(1, 9):
        place = placing.place(other(number), "", program=number, lease=number, outputs=4)
        placing.over(place)
        homes.append(place.replica)
    assert sorted(homes) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_prompt_goes_where_most_of_it_was_sent_before() -> None:
    placing = Placing(3)
    places = [placing.place(prompt, "", outputs=8) for prompt in (behind(1), other(1), other(2))]
    for place in places:
        placing.over(place)
    assert len({place.replica for place in places}) == 3
    assert placing.place(behind(2, 3), "", outputs=8).replica == places[0].replica
    assert placing.place(other(2) + b"\7\0\0\0", "", outputs=8).replica == places[2].replica


def test_a_program_s_first_prompt_finds_what_requests_of_none_have_left_and_leaves_as_much() -> None:
    placing = Placing(2)
    placing.over(placing.place(other(5), "", outputs=8))
    first = placing.place(behind(1), "", outputs=8)
    placing.over(first)
    assert placing.place(behind(2), "", program=3, lease=3, outputs=8).replica == first.replica
    assert placing.place(behind(4), "", program=4, lease=4, outputs=8).replica == first.replica


def test_what_one_namespace_has_sent_another_does_not_find() -> None:
    placing = Placing(2)
    first = placing.place(behind(1), "alice", outputs=8)
    assert placing.place(behind(1), "bob", outputs=8).replica != first.replica
    assert block_digests(behind(1), "alice") != block_digests(behind(1), "bob")


def test_a_prefix_is_worth_twice_its_tokens_of_waiting_and_no_more() -> None:
    placing = Placing(2)
    first = placing.place(behind(), "", outputs=0)  # 640 tokens that the replica waits for
    replicas = [placing.place(behind(number), "", outputs=499).replica for number in range(4)]
    # 640, 1,140 and 1,640 tokens before it: the last is more than twice what is saved.
    assert replicas[:2] == [first.replica] * 2
    assert replicas[2] != first.replica


def test_while_all_are_busy_a_prefix_is_computed_twice_for_a_quarter_of_the_load_alone() -> None:
    placing = Placing(2)
    placing.over(placing.place(behind(header=HEADER[:BLOCK]), "", outputs=0))  # on 0, and small
    placing.over(placing.place(other(3), "", outputs=0))
    for number in range(40, 80):  # of no program: alike on both
        placing.place(other(number), "", outputs=512)
    before = [tokens for _, tokens in loads(placing)]
    assert before[0] == before[1]
    grown = next(
        number
        for number in range(1000)
        if placing.place(behind(number, header=HEADER[:BLOCK]), "", outputs=100).replica != 0
    )
    assert before[0] // 4 < 101 * grown < before[0] // 3


def test_load_counts_what_is_new_and_what_may_be_said_and_is_undone_exactly() -> None:
    placing = Placing(2)
    place = placing.place(behind(1, 2, 3), "", outputs=20)
    assert place.tokens == len(HEADER) + 3 + 20
    again = placing.place(behind(4), "", outputs=100_000)
    assert (again.replica, again.tokens) == (place.replica, 1 + 512), "an output counts 512 tokens at most"
    placing.over(again)
    placing.over(place)
    assert loads(placing) == [(0, 0), (0, 0)]


def test_a_number_without_a_lease_binds_nobody() -> None:
    placing = Placing(2)
    replicas = [placing.place(other(number), "", program=5, outputs=10).replica for number in range(6)]
    assert sorted(replicas) == [0, 0, 0, 1, 1, 1]
    assert placing._homes == {}
    home = placing.place(other(7), "", program=6, lease=6, outputs=500).replica
    assert placing.place(other(8), "", program=6, outputs=5).replica == home, "what its program has is its own"


def test_a_program_s_prompt_counts_once_for_all_of_its_branches() -> None:
    placing = Placing(2)
    placing.place(behind(), "", program=1, lease=1, outputs=0)
    counted = [placing.place(behind(branch), "", program=1, lease=10 + branch, outputs=5).tokens for branch in range(3)]
    assert counted == [6, 5, 5]


def test_who_is_down_gets_nobody_new_while_another_is_up_and_comes_back_with_an_empty_cache() -> None:
    placing = Placing(2)
    known = placing.place(behind(1), "", program=1, lease=1, outputs=8).replica
    placing.stopped(known)
    assert {placing.place(behind(2), "", outputs=500).replica for _ in range(20)} == {1 - known}
    assert placing.place(behind(3), "", program=1, lease=1, outputs=8).replica == known, "it waits for its own"
    placing.stopped(1 - known)
    assert placing.place(other(9), "", outputs=8).replica == known, "the least busy of those that are down"
    placing.started(known)
    assert placing.loads[known].up
    assert placing._sent[known].known(block_digests(behind(1), "")) == 0


def test_a_branch_that_pauses_before_it_asks_is_placed_and_then_is_where_its_program_is() -> None:
    placing = Placing(2)
    placing.place(other(1), "", program=1, lease=1, outputs=500)
    elsewhere = placing.pause(2, other(2), "")
    assert (placing.home(1), elsewhere, placing.home(2)) == (0, 1, 1)
    assert placing.pause(2, other(1), "") == 1, "it stays until it asks"
    placing.place(other(1), "", program=1, lease=2, outputs=5)
    assert placing.home(2) == 0
    placing.release((1, 2))
    assert placing._homed == [0, 0]


def test_a_program_that_pauses_first_is_where_it_has_paused() -> None:
    placing = Placing(2)
    placing.place(other(1), "", outputs=500)
    assert placing.pause(5, other(2), "") == 1
    placing.place(other(3), "", outputs=5000)
    assert placing.place(other(2), "", program=5, lease=5, outputs=9).replica == 1


def test_after_the_caches_are_emptied_nothing_is_known() -> None:
    placing = Placing(2)
    first = placing.place(behind(1), "", outputs=8)
    placing.emptied()
    assert placing.place(behind(1), "", outputs=8).replica != first.replica


@pytest.mark.parametrize("seed", range(20))
def test_however_requests_come_and_end_every_load_is_what_is_live_and_ends_at_nothing(seed: int) -> None:
    rng, placing = random.Random(seed), Placing(2 + seed % 3, slots=40 * BLOCK)
    live: list[Place] = []
    programs: set[int] = set()
    for _ in range(600):
        match rng.randrange(5):
            case 0 | 1:
                prompt = behind(*[rng.randrange(9) for _ in range(rng.randrange(200))])
                program = rng.choice((0, rng.randrange(1, 30)))
                programs.add(program)
                live.append(placing.place(prompt, "", program=program, lease=program, outputs=rng.randrange(900)))
            case 2:
                if live:
                    placing.over(live.pop(rng.randrange(len(live))))
            case 3:
                placing.release((rng.randrange(1, 30),))
            case _:
                rng.choice((placing.started, placing.stopped))(rng.randrange(placing.replicas))
        told = [(0, 0)] * placing.replicas
        for replica, tokens in live:
            told[replica] = told[replica][0] + 1, told[replica][1] + tokens
        assert loads(placing) == told
        assert sum(placing._homed) == len(placing._homes)
    for place in live:
        placing.over(place)
    placing.release(tuple(programs))
    assert loads(placing) == [(0, 0)] * placing.replicas
    assert placing._homes == {}


def test_prefixes_are_remembered_as_far_as_the_cache_reaches_beginnings_longest() -> None:
    sent = SentPrefixes(8 * BLOCK)
    long = block_digests(HEADER.tobytes(), "")
    assert (len(long), sent.known(long)) == (10, 0)
    sent.add(long)
    assert (len(sent), sent.known(long)) == (8, 8 * BLOCK)
    other_digests = block_digests(other(1, 3 * BLOCK), "")
    sent.add(other_digests)
    assert sent.known(other_digests) == 3 * BLOCK
    assert (len(sent), sent.known(long)) == (8, 5 * BLOCK), "its end is forgotten before its beginning"
    sent.add(long[:2])
    sent.add(block_digests(other(2, 6 * BLOCK), ""))
    assert (sent.known(long), sent.known(other_digests)) == (2 * BLOCK, 0), "the longest idle goes first"
    sent.forget()
    assert (len(sent), sent.known(long)) == (0, 0)


def test_a_block_is_known_only_behind_all_that_was_before_it() -> None:
    sent = SentPrefixes(1 << 20)
    sent.add(block_digests(HEADER.tobytes(), ""))
    changed = HEADER.copy()
    changed[BLOCK + 5] += 1
    assert sent.known(block_digests(changed.tobytes(), "")) == BLOCK
    assert sent.known(block_digests(HEADER[BLOCK:].tobytes(), "")) == 0
    assert block_digests(HEADER[: BLOCK - 1].tobytes(), "") == []
