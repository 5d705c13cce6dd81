"""Groups: rows that share slots attend to them together, at every level, where it pays, and nothing false is told."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.messages import Step
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.groups import GroupOptions, Groups
from callboard.actors.scheduler.options import SchedulerOptions
from callboard.actors.scheduler.radix_tree import RadixTree
from callboard.actors.scheduler.rows import Rows
from callboard.actors.scheduler.state import State

from ...support import schedule_driver
from ...support.fake_worker import KvError, read_groups
from ...support.schedule_driver import EVERY_GROUP, ScheduleDriver, pack


def driver(**options: Any) -> ScheduleDriver:
    chosen = {"slots": 4000, "rows": 16, "chunk_tokens": 512, "share_tokens": 1, "groups": EVERY_GROUP, **options}
    return ScheduleDriver(SchedulerOptions(**chosen))


def sampling(count: int, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": count, "seed": 5, **more})


def groups(step: Step | None) -> list[tuple[int, int, int, list[int]]]:
    assert step is not None
    return read_groups(step.groups)


def all_decoding(run: ScheduleDriver, count: int) -> Step:
    """Go on until so many rows decode in one step."""
    while True:
        run.done()
        step = run.send()
        assert step is not None
        if len(step.decode_rows) == 4 * count:
            return step


def test_branches_of_a_fork_attend_to_its_prompt_together() -> None:
    run = driver()
    for number in range(4):
        run.submit(number, [*range(50), 100 + number], sampling(20))
    assert groups(all_decoding(run, 4)) == [(0, 0, 50, [0, 1, 2, 3])]
    run.run()
    run.verify()


def test_every_level_of_forks_of_forks_is_told() -> None:
    run = driver()
    system, first, second = list(range(40)), list(range(50, 80)), list(range(100, 120))
    for number, prompt in enumerate(
        [[*system, *first, 1], [*system, *first, 2], [*system, *second, 3], [*system, *second, 4, 5], [*system, 9]]
    ):
        run.submit(number, prompt, sampling(20))
    told = {(start, end, frozenset(rows)) for _, start, end, rows in groups(all_decoding(run, 5))}
    asked = run.state.rows.number
    by_request = {(start, end, frozenset(asked[list(rows)].tolist())) for start, end, rows in told}
    assert by_request == {(0, 40, frozenset(range(5))), (40, 70, frozenset({0, 1})), (40, 60, frozenset({2, 3}))}
    run.run()
    run.verify()


def test_a_prompt_computed_in_many_chunks_is_one_level() -> None:
    run = driver(chunk_tokens=16)
    for number in range(3):
        run.submit(number, [*range(100), 100 + number], sampling(40))
    assert groups(all_decoding(run, 3)) == [(0, 0, 100, [0, 1, 2])]


def test_a_prefix_that_ended_long_ago_is_shared_too() -> None:
    run = driver()
    run.submit(0, list(range(30)), sampling(10))
    run.run()
    text = [*range(30), *run.asked[0].output]
    for number in (1, 2):
        run.submit(number, [*text, 100 + number], sampling(10))
    ((_, start, end, rows),) = groups(all_decoding(run, 2))
    assert (start, end, len(rows)) == (0, 40, 2)  # the parent's output with it, its last token written by the first
    run.run()
    run.verify()


def test_who_leaves_is_in_no_group_any_more() -> None:
    run = driver()
    for number in range(3):
        run.submit(number, [*range(50), 100 + number], sampling(5 if number else 30))
    run.run()
    run.verify()
    counts = [[len(rows) for *_, rows in groups(step)] for step in run.steps if step.decode_rows]
    assert (counts[0], counts[-1]) == ([], [])  # before the others come, after they have gone
    assert [3] in counts


def test_while_the_same_rows_decode_nothing_is_described_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[int] = []
    find = Groups._find
    monkeypatch.setattr(Groups, "_find", lambda self, *rows: described.append(1) or find(self, *rows))
    run = driver()
    for number in range(4):
        run.submit(number, [*range(50), 100 + number], sampling(100))
    all_decoding(run, 4)
    described.clear()
    for number in range(4, 8):  # one that only fills the cache splits nodes, and changes no row that decodes
        run.submit(number, [*range(10 * number), 7], sampling(0))
        run.done()
        run.send()
    assert described == []
    run.run()
    run.verify()


def test_rows_that_share_nothing_cost_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "_find", lambda *_: pytest.fail("it searched"))
    run = driver(groups=GroupOptions())
    for number in range(8):
        run.submit(number, [number, *range(300)], sampling(5))
    run.run()
    assert not any(step.groups for step in run.steps)


def test_a_prefix_too_short_to_pay_is_not_told() -> None:
    run = driver(groups=GroupOptions(least_tokens=64, item_tokens=1, step_tokens=1))
    for number in range(8):
        run.submit(number, [*range(63), 100 + number], sampling(5))
    run.run()
    assert not any(step.groups for step in run.steps)
    run.verify()


@pytest.mark.parametrize(("step_tokens", "told"), [(350, True), (351, False)])
def test_all_groups_of_a_step_must_pay_together(step_tokens: int, told: bool) -> None:
    run = driver(groups=GroupOptions(least_tokens=1, item_tokens=1, step_tokens=step_tokens))
    for number in range(8):
        run.submit(number, [*range(50), 100 + number], sampling(5))
    run.run()
    assert any(step.groups for step in run.steps) == told


def test_it_can_be_turned_off() -> None:
    run = driver(share_attention=False)
    for number in range(4):
        run.submit(number, [*range(50), 100 + number], sampling(5))
    run.run()
    assert not any(step.groups for step in run.steps)
    assert run.state.counters.saved_kv_tokens == 0 < run.state.counters.decode_kv_tokens


def test_what_is_saved_is_counted() -> None:
    run = driver()
    for number in range(4):
        run.submit(number, [*range(50), 100 + number], sampling(9))
    run.run()
    counters = run.state.counters
    right = sum((len(rows) - 1) * (end - start) for step in run.steps for _, start, end, rows in groups(step))
    assert counters.saved_kv_tokens == right > 0
    assert counters.decode_kv_tokens == 4 * sum(range(52, 60))  # each row reads its prompt and its output so far
    assert counters.grouped_steps == counters.groups == sum(bool(step.groups) for step in run.steps)
    assert counters.prompts_saved == pytest.approx(3 * 50 / 51)


@pytest.mark.parametrize("field", ["least_tokens", "item_tokens", "step_tokens"])
def test_a_threshold_out_of_range_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=f"^groups.{field}: "):
        driver(groups=GroupOptions(**{field: 0}))


def test_slots_of_ones_own_are_never_told_as_shared() -> None:
    """Rows that compute what the tree knows already (here for log-probabilities) read slots of their own."""
    run = driver()
    prompt = list(range(30))
    run.submit(0, prompt, sampling(20))
    run.submit(1, [*prompt, 1], sampling(20))
    run.submit(2, [*prompt, 2], sampling(20, logprob_start=10))
    run.submit(3, [*prompt, 3], sampling(20, logprob_start=20))
    step = all_decoding(run, 4)
    assert run.state.rows.duplicates.any()
    assert {row for *_, rows in groups(step) for row in rows} >= {0, 1}
    run.run()
    run.verify()


# --- lives of programs that fork ----------------------------------------------------------------------------------


def live(seed: int) -> ScheduleDriver:
    """Let programs fork and fork again, in little memory, with strangers, aborts and log-probabilities among them."""
    rng = random.Random(seed)
    run = driver(
        slots=rng.choice([150, 300, 1200]),
        chunk_tokens=rng.choice([8, 24, 64]),
        share_tokens=rng.choice([1, 8]),
        groups=rng.choice([EVERY_GROUP, EVERY_GROUP, GroupOptions(least_tokens=4, item_tokens=9, step_tokens=12)]),
        reserve_all=rng.choice([0, 64]),
        reserve_least=1,
        in_flight=rng.choice([1, 2, 3]),
    )
    run.state.estimate.share = 0.0
    texts = [[rng.randrange(8) for _ in range(rng.randint(5, 40))]]
    number = 0
    for _ in range(8):
        stem = rng.choice(texts)[:90]
        for branch in range(rng.randint(1, 6)):
            prompt = [*stem, branch, *(rng.randrange(8) for _ in range(rng.randint(0, 12)))]
            start = rng.choice([-1, -1, -1, -1, -1, rng.randrange(len(prompt))])
            stops = tuple(rng.sample(range(61), 3))
            run.submit(number, prompt, sampling(rng.randint(0, 20), logprob_start=start, stop_token_ids=stops))
            texts.append(prompt)
            number += 1
        while rng.random() < 0.85:
            (run.send if rng.random() < 0.6 else run.done)()
        texts += [asked.prompt + asked.output for asked in run.asked.values() if asked.finish is not None]
        if rng.random() < 0.3:
            run.abort(rng.randrange(number))
    run.run()
    run.verify()
    return run


def test_what_is_told_is_true_and_whole_in_lives_full_of_forks() -> None:
    lives = [live(seed) for seed in range(25)]
    assert sum(run.model.groups for run in lives) > 1000
    assert sum(run.state.counters.retractions for run in lives) > 0
    assert any(len(groups(step)) > 3 for run in lives for step in run.steps)


def calls_duplicates_shared(patch: pytest.MonkeyPatch) -> None:
    publish = State.publish

    def wrong(self: State, row: int) -> None:
        publish(self, row)
        self.rows.agreed[row] = self.rows.shared[row]

    patch.setattr(State, "publish", wrong)
    patch.setattr(schedule_driver, "check_state", State.count)  # which would find it first


def keeps_the_groups_of_an_earlier_step(patch: pytest.MonkeyPatch) -> None:
    describe = Groups.describe

    def wrong(self: Groups, decoding: bytes, chosen: Any) -> bytes:
        return describe(self, self._described or decoding, chosen)

    patch.setattr(Groups, "describe", wrong)


def looks_only_at_how_many_rows_decode(patch: pytest.MonkeyPatch) -> None:
    describe = Groups.describe
    patch.setattr(Groups, "describe", lambda self, decoding, chosen: describe(self, bytes(len(decoding)), chosen))


def begins_a_level_one_token_late(patch: pytest.MonkeyPatch) -> None:
    worthwhile = Groups._worthwhile
    patch.setattr(
        Groups,
        "_worthwhile",
        lambda *args: [(level, min(start + 1, level.end - 1)) for level, start in worthwhile(*args)],
    )


def ends_a_level_one_token_late(patch: pytest.MonkeyPatch) -> None:
    levels = Groups._levels

    def wrong(self: Groups, *args: Any) -> Any:
        order, found = levels(self, *args)
        for level in found:
            level.end += 1
        return order, found

    patch.setattr(Groups, "_levels", wrong)


def leaves_a_level_out(patch: pytest.MonkeyPatch) -> None:
    worthwhile = Groups._worthwhile
    patch.setattr(Groups, "_worthwhile", lambda *args: worthwhile(*args)[1:])


def takes_neighbours_in(patch: pytest.MonkeyPatch) -> None:
    sort = Groups._sort

    def wrong(self: Groups, *args: Any) -> Any:
        buckets = sort(self, *args)
        return [*buckets[1:], buckets[0]]

    patch.setattr(Groups, "_sort", wrong)


def takes_in_rows_that_do_not_decode(patch: pytest.MonkeyPatch) -> None:
    find = Groups._find

    def wrong(self: Groups, *_: Any) -> Any:
        taken = np.flatnonzero(self._rows.taken)
        return find(self, taken, self._rows.agreed[taken])

    patch.setattr(Groups, "_find", wrong)


def forgets_the_crowd_of_a_split_node(patch: pytest.MonkeyPatch) -> None:
    split = RadixTree._split

    def wrong(self: RadixTree, *args: Any) -> Any:
        upper = split(self, *args)
        self.crowded.pop(upper, None)
        return upper

    patch.setattr(RadixTree, "_split", wrong)
    patch.setattr(schedule_driver, "check_state", State.count)


def publishes_answers_with_a_token_that_nobody_knows_yet(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: State, row: int) -> None:
        shared, length = int(self.rows.shared[row]), int(self.rows.length[row])
        self._publish(row, shared, length, self.rows.tokens[row, shared:length].tobytes())

    patch.setattr(State, "_publish_answer", wrong)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    calls_duplicates_shared,
    keeps_the_groups_of_an_earlier_step,
    looks_only_at_how_many_rows_decode,
    begins_a_level_one_token_late,
    ends_a_level_one_token_late,
    leaves_a_level_out,
    takes_neighbours_in,
    takes_in_rows_that_do_not_decode,
    forgets_the_crowd_of_a_split_node,
    publishes_answers_with_a_token_that_nobody_knows_yet,
]


def live_often() -> None:
    for seed in range(60):
        live(seed)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_false_word_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((KvError, AssertionError, KeyError)):
        live_often()


# --- what pays --------------------------------------------------------------------------------------------------------


def crowd(paths: list[list[int]], lengths: list[int], options: GroupOptions) -> Groups:
    """Let a row stand at the end of each path of a tree; a word stands for a run of tokens of its length."""
    tree, rows = RadixTree(), Rows(len(paths))
    slots = iter(range(1 << 30))
    for row, path in enumerate(paths):
        tokens = [
            token for depth, word in enumerate(path) for token in [100 * depth + word] * lengths[100 * depth + word]
        ]
        known = tree.known(pack(tokens))
        own = np.fromiter(slots, np.int32, len(tokens))
        node, _ = tree.insert(pack(tokens), own)
        assert known <= len(tokens)
        tree.lock(node)
        rows.node[row], rows.shared[row], rows.agreed[row] = node, len(tokens), len(tokens)
    groups = Groups(options, tree, rows)
    chosen = np.arange(len(paths))
    groups.describe(pack(chosen.tolist()), chosen)
    return groups


def fewest(paths: list[list[int]], lengths: list[int], options: GroupOptions) -> int:
    """Tell the least cost of all choices of levels: tokens read, and item_tokens for each group."""
    levels = {tuple(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}
    members = {level: [path for path in paths if tuple(path[: len(level)]) == level] for level in levels}
    shared = [level for level in levels if len(members[level]) > 1]
    least = 1 << 60
    for chosen in chain.from_iterable(combinations(shared, count) for count in range(len(shared) + 1)):
        cost = options.item_tokens * len(chosen)
        read: set[tuple[Any, ...]] = set()
        for path in paths:
            ends = [len(level) for level in chosen if tuple(path[: len(level)]) == level]
            for depth in range(1, len(path) + 1):
                behind = [end for end in ends if end >= depth]
                reader = tuple(path[: min(behind)]) if behind else (id(path),)
                read.add((tuple(path[:depth]), reader))
        cost += sum(lengths[100 * (len(level) - 1) + level[-1]] for level, _ in read)
        least = min(least, cost)
    return least


WORDS = st.integers(0, 1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=2, max_size=6),
    st.lists(st.integers(1, 40), min_size=6, max_size=6),
    st.integers(1, 40),
)
def test_the_levels_chosen_cost_little_more_than_the_best_choice(
    paths: list[list[int]], sizes: list[int], item: int
) -> None:
    lengths = {100 * depth + word: sizes[2 * depth + word] for depth in range(3) for word in range(2)}
    table = [lengths.get(place, 0) for place in range(300)]
    options = GroupOptions(least_tokens=1, item_tokens=item, step_tokens=1)
    chosen = crowd(paths, table, options)
    alone = sum(lengths[100 * depth + word] for path in paths for depth, word in enumerate(path))
    cost = alone - chosen.saved + item * chosen.count
    best = fewest(paths, table, options)
    assert best <= cost <= min(alone, best + item)


def test_a_level_that_does_not_pay_is_read_by_those_below() -> None:
    table = [0] * 300
    table[0], table[100], table[101] = 10, 500, 600  # a short stem, two long branches with two rows each
    chosen = crowd([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]], table, GroupOptions(item_tokens=64, step_tokens=1))
    assert read_groups(chosen.packed) == [(2, 0, 610, [2, 3]), (0, 0, 510, [0, 1])]


def test_a_chain_as_deep_as_there_are_rows_is_no_trouble() -> None:
    table = [0] * 300_000
    for depth in range(1500):
        table[100 * depth] = 1
    chosen = crowd([[0] * depth for depth in range(1, 1500, 3)], table, EVERY_GROUP)
    assert chosen.count == 499


def test_branches_whose_texts_are_short_extend_together() -> None:
    run = driver(groups=GroupOptions(least_tokens=1, item_tokens=1, step_tokens=1, extend_tokens=8))
    run.submit(9, list(range(50)), sampling(0))
    run.run()
    for number in range(4):
        run.submit(number, [*range(50), *([100 + number] * (9 if number == 2 else 3))], sampling(2))
    step = run.send()
    assert step is not None
    told = read_groups(step.extend_groups)
    rows = [extend.row for extend in step.extends]
    assert [(start, end, sorted(members)) for _, start, end, members in told] == [(0, 50, [rows[0], rows[1], rows[3]])]
    run.run()
    run.verify()
    assert not any(step.extend_groups for step in run.steps if len(step.extends) < 2)


def test_what_a_row_computes_itself_is_in_no_group_of_its_extends() -> None:
    """Two rows whose prompt is computed in chunks: one that waited for the other reads its chunk and goes on alone."""
    run = driver(chunk_tokens=16)
    for number in range(3):
        run.submit(number, [*range(40), *[100 + number] * 9], sampling(2))
    run.run()
    run.verify()
    assert run.model.extend_groups


def test_without_shared_attention_no_extends_are_told_either() -> None:
    run = driver(share_attention=False)
    for number in range(4):
        run.submit(number, [*range(50), 100 + number, 7], sampling(2))
    run.run()
    assert not any(step.extend_groups for step in run.steps)
