"""Forks at the price of one: what branches share is computed once, however it arrives, and they begin together."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from callboard.actors.messages import Extend
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.admission import Admission
from callboard.actors.scheduler.options import SchedulerOptions

from ...support.schedule_driver import ScheduleDriver, pack, simulate


def driver(**options: Any) -> ScheduleDriver:
    """A driver without the check of every slot after every move, which costs as much as the pool is large."""
    return ScheduleDriver(
        SchedulerOptions(**{"slots": 40_000, "rows": 64, "chunk_tokens": 512, **options}), check=False
    )


def sampling(count: int = 4) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, seed=5)


def distinct(prompts: list[list[int]]) -> int:
    """Count the prefixes there are: what a cache without bounds computes."""
    return len({tuple(prompt[:length]) for prompt in prompts for length in range(1, len(prompt) + 1)})


def length(extend: Extend) -> int:
    return extend.start + len(extend.tokens) // 4


def computed(run: ScheduleDriver) -> int:
    return sum(len(extend.tokens) // 4 for step in run.steps for extend in step.extends)


@pytest.mark.parametrize("policy", ["longest-prefix", "first-come"])
def test_64_branches_over_8192_tokens_cost_one_prompt_and_64_suffixes(policy: str) -> None:
    run = driver(policy=policy)
    prompt = list(range(8192))
    for number in range(64):
        run.submit(number, [*prompt, *range(20_000 + 10 * number, 20_008 + 10 * number)], sampling())
    run.run()
    assert computed(run) == 8192 + 64 * 8
    begun = [asked.begun_at for asked in run.asked.values()]
    assert sorted(begun) == [1] + 63 * [17]  # all together, as soon as the prompt's 16 chunks are sent
    assert [len(step.decode_rows) // 4 for step in run.steps[17:]] == [64] * 3


@pytest.mark.parametrize("policy", ["longest-prefix", "first-come"])
@pytest.mark.parametrize("chunk", [64, 200, 1000])
def test_every_level_of_a_tree_of_forks_is_computed_once(policy: str, chunk: int) -> None:
    """Depth 3, all branches in the same instant, in random order."""
    rng = random.Random(3)
    words = iter(range(1, 1 << 20))

    def text(length: int) -> list[int]:
        return [next(words) for _ in range(length)]

    system = text(300)
    prompts = []
    for _ in range(3):
        document = system + text(150)
        for _ in range(3):
            question = document + text(60)
            prompts += [question + text(20) for _ in range(3)]
    rng.shuffle(prompts)
    run = driver(chunk_tokens=chunk, policy=policy, share_tokens=1)
    for number, prompt in enumerate(prompts):
        run.submit(number, prompt, sampling())
    run.run()
    assert computed(run) == distinct(prompts)
    run.verify()


def test_a_prefix_in_flight_is_not_computed_again_by_who_comes_later() -> None:
    """Branches that arrive while the first is in the middle of their prompt wait for it, chunk after chunk."""
    run = driver(chunk_tokens=64)
    prompt = list(range(1000))
    run.submit(0, [*prompt, 5000], sampling())
    for number in range(1, 12):
        run.send()
        run.submit(number, [*prompt, 5000 + number], sampling())
        run.done()
    run.run()
    assert computed(run) == 1000 + 12
    run.verify()


def test_a_prefix_in_flight_is_not_computed_again_beside_rows_that_decode() -> None:
    run = driver(chunk_tokens=64, rows=32)
    for number in range(8):
        run.submit(number, [9000 + number], sampling(60))
    prompt = list(range(1000))
    for number in range(8, 24):
        run.submit(number, [*prompt, 5000 + number], sampling())
    run.run()
    assert computed(run) == 8 + 1000 + 16
    run.verify()


def test_a_prefix_in_flight_is_not_computed_again_in_little_memory() -> None:
    run = driver(slots=1200, chunk_tokens=64, rows=16, share_tokens=1, reserve_all=8, reserve_least=4)
    prompt = list(range(900))
    for number in range(16):
        run.submit(number, [*prompt, 5000 + number, 1, 2], sampling(30))
    run.run()
    places = [place for step in run.steps for extend in step.extends for place in range(extend.start, length(extend))]
    assert sorted(place for place in places if place < 900) == prompt
    assert run.state.counters.retractions > 0  # whose answers are computed again, their prompt is not
    run.verify()


def test_branches_of_an_answer_find_all_of_it() -> None:
    """An answer is shared from the step in which it ended on, though its row is still in flight."""
    run = driver(share_tokens=1)
    prompt = list(range(100))
    stop = SamplingParams(max_new_tokens=200, seed=5, stop_token_ids=(7,))
    first = run.submit(0, prompt, stop)
    while first.finish is None:
        run.send()
        run.send()
        run.done()
    before = computed(run)
    for number in range(1, 9):
        run.submit(number, [*prompt, *first.output, 900 + number], sampling())
    run.run()
    assert computed(run) - before <= 1 + 8  # the answer's last token and their own
    run.verify()


def test_holding_back_looks_at_the_step_at_hand_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the same branches compute their prompt more than once: these tests can fail."""
    monkeypatch.setattr(Admission, "_shares_soon", lambda *_: False)
    run = driver(chunk_tokens=4096)
    for number in range(8):
        run.submit(number, [*range(300), 5000 + number], sampling())
    run.run()
    assert computed(run) > 300 + 8
    run.verify()


def test_branches_come_into_one_group_and_decode_in_the_same_steps() -> None:
    run = driver()
    for number in range(32):
        run.submit(number, [*range(2048), 5000 + number], sampling(20))
    run.run()
    sizes = [len(np.frombuffer(step.decode_rows, np.int32)) for step in run.steps if step.groups]
    assert max(sizes) == 32
    counters = run.state.counters
    assert counters.group_members / counters.groups > 30
    assert counters.decode_kv_tokens > 20 * (counters.decode_kv_tokens - counters.saved_kv_tokens)
    assert run.state.memory.tree.known(pack(list(range(2048)))) == 2048


@pytest.mark.parametrize(("own", "at_once"), [(3, False), (4, True)])
def test_a_few_tokens_of_its_own_are_known_with_a_branchs_answer(own: int, at_once: bool) -> None:
    run = driver()
    prompt = [*range(100)]
    run.submit(0, prompt, sampling(1))
    run.run()
    branch = prompt + [1000 + number for number in range(own)]
    run.submit(1, branch, sampling(8))
    run.send()
    assert run.state.memory.tree.known(pack(branch)) == (len(branch) if at_once else len(prompt))
    run.run()
    assert run.state.memory.tree.known(pack(branch)) == len(branch)
    run.verify()


def test_branches_of_a_step_share_one_copy_of_their_prefix() -> None:
    """Of the same path the same bytes, that nobody writes anew for each; of another, others."""
    run = driver()
    prompts = [[*range(first, first + 100)] for first in (0, 200)]
    for number, prompt in enumerate(prompts):
        run.submit(number, prompt, sampling(1))
    run.run()
    for number in range(6):
        run.submit(2 + number, [*prompts[number // 3], 1000 + number], sampling(2))
    step = run.send()
    assert step is not None
    first, second = {}, {}
    for extend in step.extends:
        assert extend.begin is not None
        told = first if extend.begin.request < 5 else second
        told[id(extend.prefix_slots)] = extend.prefix_slots
    assert [len(first), len(second)] == [1, 1]
    assert set(first.values()).isdisjoint(second.values())
    run.run()
    run.verify()


def test_what_running_rows_are_promised_is_what_a_sum_over_them_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summed once a step and carried on from row to row, whoever begins, is retracted or lets go of a join."""
    looked = 0
    begin = Admission._begin

    def checked(self: Admission, request: Any, **how: Any) -> int:
        nonlocal looked
        if self._promised is not None:
            self._draft.settle()
            rows = self._state.rows
            assert self._promised == self._state.estimate.promised(rows.expected, rows.limit, rows.length)
            looked += 1
        return begin(self, request, **how)

    monkeypatch.setattr(Admission, "_begin", checked)
    for seed in range(8):
        simulate(seed, requests=60, check=False, slots=400, rows=8, chunk_tokens=128)
    assert looked > 100
