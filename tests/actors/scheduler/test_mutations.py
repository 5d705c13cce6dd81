"""The checks find bugs: each of these, put into the scheduler on purpose, is caught by some random life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from callboard.actors.scheduler.admission import Admission
from callboard.actors.scheduler.draft import Draft
from callboard.actors.scheduler.foresight import Foresight
from callboard.actors.scheduler.leases import Leases
from callboard.actors.scheduler.queue import WaitingQueue
from callboard.actors.scheduler.radix_tree import Node, RadixTree
from callboard.actors.scheduler.request import Request
from callboard.actors.scheduler.rows import Beginning
from callboard.actors.scheduler.state import State

from ...support.fake_worker import KvError
from ...support.schedule_driver import simulate

Patch = Callable[[pytest.MonkeyPatch], None]


def frees_rows_while_they_are_in_flight(patch: pytest.MonkeyPatch) -> None:
    def release_done(self: State) -> None:
        leaving, self.leaving = self.leaving, []
        for row in leaving:
            self._release(row)

    patch.setattr(State, "release_done", release_done)
    leave = State.leave

    def now(self: State, row: int) -> None:
        leave(self, row)
        self.release_done()

    patch.setattr(State, "leave", now)


def does_not_lock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RadixTree, "lock", lambda *_, **__: None)
    patch.setattr(RadixTree, "unlock", lambda *_: None)


def never_unlocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RadixTree, "unlock", lambda *_: None)


def takes_the_whole_prompt_from_the_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "match_limit", property(lambda self: self.length))


def takes_wanted_logprobs_from_the_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "match_limit", property(lambda self: self.length - 1))


def asks_for_targets_one_position_late(patch: pytest.MonkeyPatch) -> None:
    first = Request.first_target.fget
    assert first is not None
    patch.setattr(Request, "first_target", property(lambda self: min(first(self) + 1, self.prompt_tokens)))


def leaks_duplicates(patch: pytest.MonkeyPatch) -> None:
    insert = RadixTree.insert
    patch.setattr(RadixTree, "insert", lambda *args, **more: (insert(*args, **more)[0], np.empty(0, np.int32)))


def frees_duplicates_that_the_tree_owns(patch: pytest.MonkeyPatch) -> None:
    insert = RadixTree.insert

    def wrong(self: RadixTree, tokens: bytes, slots: Any, *more: Any) -> Any:
        node, duplicates = insert(self, tokens, slots, *more)
        return node, slots[-1:] if len(duplicates) else duplicates

    patch.setattr(RadixTree, "insert", wrong)


def cuts_leaves_at_the_wrong_end(patch: pytest.MonkeyPatch) -> None:
    cut = RadixTree._cut

    def wrong(self: RadixTree, leaf: Node, wanted: int) -> Any:
        leaf.slots = leaf.slots[::-1]
        return cut(self, leaf, wanted)

    patch.setattr(RadixTree, "_cut", wrong)


def loses_the_lock_when_it_splits(patch: pytest.MonkeyPatch) -> None:
    split = RadixTree._split

    def wrong(self: RadixTree, node: Node, size: int) -> Node:
        upper = split(self, node, size)
        upper.locks = 0
        return upper

    patch.setattr(RadixTree, "_split", wrong)


def collects_a_path_backwards(patch: pytest.MonkeyPatch) -> None:
    slots = RadixTree.slots
    patch.setattr(RadixTree, "slots", lambda self, node: slots(self, node)[::-1].copy())


def publishes_within_the_step(patch: pytest.MonkeyPatch) -> None:
    begin = Draft.begin

    def wrong(self: Draft, request: Request, *where: Any) -> int:
        size = begin(self, request, *where)
        if size:
            self.settle()
            self._state.publish(request.row)
        return size

    patch.setattr(Draft, "begin", wrong)
    patch.setattr(Admission, "_shares_soon", lambda *_: False)


def publishes_what_was_never_sent(patch: pytest.MonkeyPatch) -> None:
    release = State._release

    def wrong(self: State, row: int) -> None:
        if self.rows.outputs[row] and not self.rows.ended[row]:
            self.rows.outputs[row] -= 1
        release(self, row)

    patch.setattr(State, "_release", wrong)


def gives_surplus_tokens_out(patch: pytest.MonkeyPatch) -> None:
    finish = State.finish

    def wrong(self: State, request: Request, *args: Any, **more: Any) -> None:
        row = request.row
        finish(self, request, *args, **more)
        if row >= 0:
            self.rows.ended[row] = False

    patch.setattr(State, "finish", wrong)


def decodes_once_too_often(patch: pytest.MonkeyPatch) -> None:
    counts = Beginning.counts

    def wrong(self: Beginning) -> tuple[int, ...]:
        found = list(counts(self))
        found[5] += 1  # the most it may come to hold
        return tuple(found)

    patch.setattr(Beginning, "counts", wrong)


def forgets_to_retire_rows(patch: pytest.MonkeyPatch) -> None:
    release = State._release

    def wrong(self: State, row: int) -> None:
        release(self, row)
        self.retired.clear()

    patch.setattr(State, "_release", wrong)


def ignores_stop_tokens(patch: pytest.MonkeyPatch) -> None:
    init = Request.__init__

    def wrong(self: Request, *args: Any) -> None:
        init(self, *args)
        self.stops = ()

    patch.setattr(Request, "__init__", wrong)


def keeps_input_logprobs_of_an_earlier_life(patch: pytest.MonkeyPatch) -> None:
    go_on = Request.continue_with

    def wrong(self: Request, output: bytes) -> None:
        kept = self.input_logprobs
        go_on(self, output)
        self.input_logprobs = kept

    patch.setattr(Request, "continue_with", wrong)


def loses_retracted_requests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WaitingQueue, "put_back", lambda *_: None)


def forgets_the_output_of_retracted_requests(patch: pytest.MonkeyPatch) -> None:
    go_on = Request.continue_with
    patch.setattr(Request, "continue_with", lambda self, output: go_on(self, output[:-4]))


def publishes_answers_but_keeps_their_slots(patch: pytest.MonkeyPatch) -> None:
    publish = State._publish_answer

    def wrong(self: State, row: int) -> None:
        shared = self.rows.shared[row]
        publish(self, row)
        self.rows.shared[row] = shared

    patch.setattr(State, "_publish_answer", wrong)


def keeps_the_lease_of_who_has_begun(patch: pytest.MonkeyPatch) -> None:
    lease = WaitingQueue._lease
    patch.setattr(WaitingQueue, "_lease", lambda self, request, node: lease(self, request, node or request.leased))


def ends_leases_where_they_were(patch: pytest.MonkeyPatch) -> None:
    """Where eviction has cut a lease short, what is left of it is never ended."""
    end = RadixTree.end_lease
    patch.setattr(RadixTree, "end_lease", lambda self, node, **how: None if node.heir else end(self, node, **how))


def forgets_a_lease_in_a_split(patch: pytest.MonkeyPatch) -> None:
    split = RadixTree._split

    def wrong(self: RadixTree, node: Node, size: int) -> Node:
        upper = split(self, node, size)
        upper.leases = 0
        return upper

    patch.setattr(RadixTree, "_split", wrong)


def holds_for_who_was_released(patch: pytest.MonkeyPatch) -> None:
    hold = Leases.hold

    def wrong(self: Leases, program: int, node: Node) -> None:
        self.open(program)
        hold(self, program, node)
        self._held[program + 100] = self._held.pop(program, None)

    patch.setattr(Leases, "hold", wrong)


def forgets_a_pause_in_a_split(patch: pytest.MonkeyPatch) -> None:
    split = RadixTree._split

    def wrong(self: RadixTree, node: Node, size: int) -> Node:
        upper = split(self, node, size)
        upper.paused = 0
        return upper

    patch.setattr(RadixTree, "_split", wrong)


def forgets_that_it_paused_when_it_asks_again(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Leases, program: int) -> None:
        self._paused.pop(program, None)

    patch.setattr(Leases, "resume", wrong)


def computes_ahead_of_what_waits(patch: pytest.MonkeyPatch) -> None:
    admit = Admission.admit

    def wrong(self: Admission) -> None:
        live, self._state.live = self._state.live, {}
        Foresight(self._state, self._draft).compute()
        self._state.live = live
        if not self._draft.extends:
            admit(self)

    patch.setattr(Admission, "admit", wrong)


def keeps_what_it_computed_ahead(patch: pytest.MonkeyPatch) -> None:
    leave = State.leave

    def wrong(self: State, row: int) -> None:
        if self.rows.number[row] >= 0:
            leave(self, row)

    patch.setattr(State, "leave", wrong)


def does_not_count_what_it_has_promised(patch: pytest.MonkeyPatch) -> None:
    """Not a wrong result: too many are admitted, and the retractions show it.  Kept apart below."""
    patch.setattr(Admission, "_fits", lambda _, request, __: request.most_slots)


BUGS: list[Patch] = [
    frees_rows_while_they_are_in_flight,
    does_not_lock,
    never_unlocks,
    takes_the_whole_prompt_from_the_cache,
    takes_wanted_logprobs_from_the_cache,
    asks_for_targets_one_position_late,
    leaks_duplicates,
    frees_duplicates_that_the_tree_owns,
    cuts_leaves_at_the_wrong_end,
    loses_the_lock_when_it_splits,
    collects_a_path_backwards,
    publishes_within_the_step,
    publishes_what_was_never_sent,
    gives_surplus_tokens_out,
    decodes_once_too_often,
    forgets_to_retire_rows,
    ignores_stop_tokens,
    keeps_input_logprobs_of_an_earlier_life,
    loses_retracted_requests,
    forgets_the_output_of_retracted_requests,
    publishes_answers_but_keeps_their_slots,
    keeps_the_lease_of_who_has_begun,
    ends_leases_where_they_were,
    forgets_a_lease_in_a_split,
    holds_for_who_was_released,
    forgets_a_pause_in_a_split,
    forgets_that_it_paused_when_it_asks_again,
    computes_ahead_of_what_waits,
    keeps_what_it_computed_ahead,
]


def lives() -> Any:
    """Random lives in plenty, in shortage, and with little to reserve, in turns."""
    for seed in range(40):
        yield {"seed": seed, "requests": 25}
        yield {"seed": seed, "requests": 25, "slots": 40, "rows": 6, "share": 0.0, "reserve_all": 0, "reserve_least": 1}
        yield {"seed": seed, "requests": 25, "slots": 64, "rows": 8, "chunk_tokens": 4, "share": 0.0, "reserve_all": 0}


def live_all() -> None:
    for life in lives():
        simulate(**life)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_found(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, KvError, RuntimeError, ValueError, IndexError, KeyError)):
        live_all()


def test_without_a_bug_these_lives_pass() -> None:
    for count, life in enumerate(lives()):
        if count % 8 == 0:
            simulate(**life)


def test_admitting_more_than_was_promised_only_costs_retractions(monkeypatch: pytest.MonkeyPatch) -> None:
    life = {"requests": 25, "slots": 64, "rows": 8, "reserve_all": 64}
    before = sum(simulate(seed, **life).state.counters.retractions for seed in range(4))
    does_not_count_what_it_has_promised(monkeypatch)
    after = sum(simulate(seed, **life).state.counters.retractions for seed in range(4))
    assert after > before == 0
