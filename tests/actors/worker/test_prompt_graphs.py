"""Steps with prompts that run in fixed room give the tokens, log-probabilities and cached keys of those that do not.

Without a GPU nothing is captured, and the kernels run in Triton's interpreter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.actors.messages import Step, StepDone
from callboard.actors.sampling import SamplingParams
from callboard.actors.worker import prompt_graphs
from callboard.actors.worker.device_runner import DeviceRunner
from callboard.actors.worker.padding import Room, room_words
from callboard.actors.worker.prompt_graphs import PromptGraphs, tokens_at_most
from callboard.models.config import ModelConfig, Rope

from ...kernels.triton_device import DEVICE, GPU
from .driver import Driver, floats, packed, read
from .test_groups import GROUPS, make_driver

pytest.importorskip("triton")

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=40)
WARM = SamplingParams(temperature=0.8, max_new_tokens=40, return_logprob=True)
HEAVY = SamplingParams(temperature=0.0, frequency_penalty=0.5, logit_bias={7: 2.0}, max_new_tokens=40)


@pytest.fixture
def small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pad to fewer tokens: the interpreter takes its time for each."""
    monkeypatch.setattr(prompt_graphs, "_TOKENS", (8, 16, 48, 512))


def make(tiny: Path, *, padded: bool, capture: bool = False) -> Driver:
    """Make a driver; padded: whose steps with prompts have fixed room from the first one on, or never."""
    driver = make_driver(tiny, capture=capture)
    prompts = runner_of(driver).prompts
    prompts.patience = 0
    if not padded:
        prompts.limit = 0
    return driver


def runner_of(driver: Driver) -> DeviceRunner:
    assert isinstance(driver.runner, DeviceRunner)
    return driver.runner


@pytest.mark.usefixtures("small_rooms")
def test_padded_steps_give_what_others_do(tiny: Path) -> None:
    """Prompts alone, beside rows that decode, cut in chunks, behind cached slots that they share."""
    told = []
    with torch.inference_mode():
        for is_padded in (False, True):
            driver = make(tiny, padded=is_padded)
            seen = [driver.step(driver.extend(0, [1, 2, 3], WARM), driver.extend(3, list(range(4, 30)), GREEDY))]
            seen.append(driver.step(driver.extend(5, [8, 9], HEAVY, sample=False), decode=(0, 3)))
            shared = driver.slots[3][:20]
            branches = [driver.extend(row, [row], WARM, start=20, prefix_slots=shared) for row in (1, 2)]
            seen.append(driver.step(driver.extend(5, [10, 11], start=2), *branches, decode=(0,)))
            seen.append(driver.step(driver.extend(7, [6], GREEDY, sample=False)))
            seen.append(driver.step(driver.extend(7, [5, 4], start=1), decode=(0, 1, 2, 3, 5), retire=()))
            seen.append(driver.step(decode=(0, 1, 2, 3, 5, 7)))
            told.append((seen, driver))
            assert bool(runner_of(driver).prompts._met) == is_padded
    (wanted, plain), (given_, room) = told
    for one, other in zip(wanted, given_, strict=True):
        assert_same(one, other)
    assert_same_pools(plain, room)


def assert_same(wanted: StepDone, told: StepDone) -> None:
    assert read(told.rows) == read(wanted.rows)
    assert read(told.tokens) == read(wanted.tokens)
    assert floats(told.logprobs) == pytest.approx(floats(wanted.logprobs), abs=1e-4)
    assert told.failures == wanted.failures


def assert_same_pools(one: Driver, other: Driver) -> None:
    """Compare what rows have cached, and see that nobody wrote anywhere else: slots that are free hold NaN."""
    pools = [runner_of(driver)._pool for driver in (one, other)]
    for left, right in zip(*(pool.entries for pool in pools), strict=True):
        torch.testing.assert_close(left[:-1], right[:-1], rtol=1e-4, atol=1e-4, equal_nan=True)


chunk = st.tuples(st.integers(1, 9), st.booleans())


@pytest.mark.usefixtures("small_rooms")
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(chunk, min_size=1, max_size=3), min_size=2, max_size=4), st.integers(0, 2**31))
def test_any_mixture_of_chunks_and_decoding_rows(tiny: Path, steps: list[list[tuple[int, bool]]], seed: int) -> None:
    """Each step extends the first rows, ending their prompts or not; all that have ended theirs decode beside."""
    told: list[list[StepDone]] = []
    drivers = []
    with torch.inference_mode():
        for is_padded in (False, True):
            driver = make(tiny, padded=is_padded)
            random, lengths, decoding = np.random.default_rng(seed), dict[int, int](), list[int]()
            done: list[StepDone] = []
            for chunks in steps:
                free = [row for row in range(8) if row not in decoding][: len(chunks)]
                extends = []
                for row, (size, ends) in zip(free, chunks, strict=False):
                    tokens, start = random.integers(1, 250, size).tolist(), lengths.get(row, 0)
                    sampling = None if start else WARM
                    extends.append(driver.extend(row, tokens, sampling, start=start, sample=ends))
                    lengths[row] = start + size
                done.append(driver.step(*extends, decode=tuple(decoding)))
                decoding += [row for row, (_, ends) in zip(free, chunks, strict=False) if ends]
            told.append(done)
            drivers.append(driver)
    for one, other in zip(*told, strict=True):
        assert_same(one, other)
    assert_same_pools(*drivers)


@pytest.mark.usefixtures("small_rooms")
def test_rows_attend_together_in_padded_steps(tiny: Path) -> None:
    told: list[StepDone] = []
    pools = []
    with torch.inference_mode():
        for is_padded in (False, True):
            driver = make(tiny, padded=is_padded)
            driver.step(driver.extend(6, list(range(1, 40)), GREEDY), driver.extend(3, list(range(100, 112)), GREEDY))
            slots = driver.slots
            begun = driver.make(
                driver.extend(4, [7, 8], GREEDY, start=31, prefix_slots=slots[6][:31]),
                driver.extend(1, [9], GREEDY, start=20, prefix_slots=slots[6][:20]),
                driver.extend(0, [10, 11, 12], GREEDY, start=9, prefix_slots=slots[3][:9]),
            )
            together = packed([4, 0, 20, 2, 4, 1])
            begun = driver.runner.run(msgspec.structs.replace(begun, extend_groups=together))
            told.append(begun)
            step = driver.make(driver.extend(5, [21, 22, 23], GREEDY), decode=(0, 1, 3, 4, 6))
            told.append(driver.runner.run(msgspec.structs.replace(step, groups=GROUPS)))
            reads = driver.runner.statistics()
            assert reads["kv_bytes_read"] < reads["kv_bytes_unshared"]
            pools.append(driver)
    assert_same(told[0], told[2])
    assert_same(told[1], told[3])
    assert_same_pools(*pools)


class Replays:
    """Stands in for a CUDA graph: runs its kernels again on what its inputs hold then, into the same result."""

    def __init__(self, prompts: PromptGraphs, key: Any) -> None:
        self.prompts, self.key = prompts, key
        self.inputs = torch.zeros(room_words(*key), dtype=torch.int32)
        self.hidden_RC = prompts._pass(torch.zeros_like(self.inputs), key)
        self.graph, self.count = self, 0

    def replay(self) -> None:
        self.count += 1
        self.hidden_RC.copy_(self.prompts._pass(self.inputs, self.key))


def replaying(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = make(tiny, padded=True)
    prompts = runner_of(driver).prompts
    monkeypatch.setattr(prompts, "_capture", True)
    monkeypatch.setattr(prompts, "_record", lambda key: Replays(prompts, key))
    return driver


@pytest.mark.usefixtures("small_rooms")
@pytest.mark.skipif(GPU, reason="captures nothing")
def test_a_replay_reads_what_its_step_sends(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same room with other rows, lengths, tables and groups, longer ones and shorter ones in turn."""
    told: list[list[StepDone]] = []
    with torch.inference_mode():
        for driver in (make(tiny, padded=False), replaying(tiny, monkeypatch)):
            done = [driver.step(driver.extend(6, list(range(1, 40)), GREEDY))]
            for turn, rows in enumerate(((1, 2), (3, 0, 4), (5, 7))):
                start = (30, 20, 39)[turn]
                shared = driver.slots[6][:start]
                branches = [
                    driver.extend(row, [9 - row] * (row % 3 + 1), GREEDY, prefix_slots=shared, start=start)
                    for row in rows
                ]
                decoding = (6,) if turn < 2 else (6, 3)
                begun = driver.make(*branches, decode=decoding)
                together = packed([rows[0], 0, start, len(rows), *rows])
                done.append(driver.runner.run(msgspec.structs.replace(begun, extend_groups=together)))
            told.append(done)
            last = driver
    for one, other in zip(*told, strict=True):
        assert_same(one, other)
    held = {key: each.count for key, each in runner_of(last).prompts._captured.items()}
    assert list(held.values()) == [0, 2], "once without rows that decode, three times with some"
    assert [key.sharing.extend_kind for key in held] == [-1, 0]


@pytest.mark.usefixtures("small_rooms")
@pytest.mark.skipif(GPU, reason="captures nothing")
def test_the_graph_that_was_not_used_for_longest_goes_first(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_graphs, "_MOST_GRAPHS", 2)
    with torch.inference_mode():
        driver = replaying(tiny, monkeypatch)
        prompts = runner_of(driver).prompts
        for row, size in enumerate((3, 9, 5, 20)):
            driver.step(driver.extend(row, [7] * size, GREEDY))
    assert [room.tokens for room in prompts.captured] == [8, 48]
    assert runner_of(driver).statistics()["prompt_graphs"] == 2


def step(*sizes: int, decoding: int = 0, start: int = 0, **changes: object) -> Step:
    """Make a step that extends rows by so many tokens."""
    driver = Driver.__new__(Driver)
    driver.slots, driver.free, driver.number = {}, list(range(9999)), 0
    extends = [
        msgspec.structs.replace(driver.extend(row, [1] * size, start=start), **changes)
        for row, size in enumerate(sizes)
    ]
    return driver.make(*extends, decode=tuple(range(decoding)))


def test_rooms_are_few_and_hold_their_steps(tiny: Path) -> None:
    prompts = runner_of(make(tiny, padded=True)).prompts
    assert prompts.room_for(step(3)) == Room(16, 4, 0, short=True)
    assert prompts.room_for(step(9, 8)) == Room(64, 4, 0)
    assert prompts.room_for(step(60, 5, 1, 1, 1, decoding=1)) == Room(128, 8, 8), "as many rows as there are"
    assert prompts.room_for(step(700, 68)) == Room(768, 4, 0)
    assert prompts.room_for(step(2047, 2047)) == Room(4096, 4, 0)


@pytest.mark.parametrize(
    "unfit",
    [
        step(),
        step(decoding=3),
        step(2048),
        step(2047, 2047, 3),
        step(2047, 2047, decoding=1),
        step(3, 2, next_logprobs=True),
        step(3, targets=packed([5])),
    ],
    ids=("nothing", "none extends", "a long prompt", "many tokens", "many with room", "all tokens' scores", "scores"),
)
def test_other_steps_run_as_they_are(tiny: Path, unfit: Step) -> None:
    assert runner_of(make(tiny, padded=True)).prompts.room_for(unfit) is None


def test_a_room_is_used_once_it_has_been_met_before(tiny: Path) -> None:
    prompts = runner_of(make(tiny, padded=True)).prompts
    prompts.patience = 1
    assert prompts.room_for(step(50)) is None
    assert prompts.room_for(step(65)) is None
    assert prompts.room_for(step(64)) == Room(64, 4, 0)


def config(**shape: int) -> ModelConfig:
    rope = Rope(theta=10000.0)
    return ModelConfig(architecture="Q", vocabulary=9, context_length=99, norm_epsilon=1e-6, rope=rope, **shape)


def test_small_models_have_graphs_of_more_tokens_than_large_ones() -> None:
    small = config(layers=28, heads=16, kv_heads=8, head_dim=128, hidden=1024, intermediate=3072)
    large = config(layers=32, heads=32, kv_heads=8, head_dim=128, hidden=4096, intermediate=14336)
    assert 3000 < tokens_at_most(small) < 4096
    assert 200 < tokens_at_most(large) < 400


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="no GPU")
def test_graphs_give_what_their_kernels_do_and_nothing_waits(tiny: Path) -> None:
    """The same kind of steps again with other lengths and tables; torch raises at whatever waits from then on."""
    told = []
    with torch.inference_mode():
        for is_padded in (False, True):
            driver = make(tiny, padded=is_padded, capture=True)
            seen = []
            for turn, sizes in enumerate(((3, 26), (17, 9), (1, 40))):
                mode = torch.cuda.get_sync_debug_mode()
                first, second = ([turn + token for token in range(size)] for size in sizes)
                steps = [driver.make(driver.extend(0, first, WARM), driver.extend(3, second, GREEDY))]
                shared = driver.slots[3][:1]
                branch = driver.extend(1, [5] * (turn + 1), WARM, start=1, prefix_slots=shared)
                steps.append(driver.make(branch, decode=(0, 3)))
                steps.append(driver.make(decode=(0, 1, 3)))
                steps.append(driver.make(retire=(0, 1, 3)))
                torch.cuda.set_sync_debug_mode("error" if turn else "default")
                try:
                    launched = []
                    for each in steps:
                        running = driver.runner.forward(each)
                        driver.runner.sample(running)
                        launched.append(running)
                finally:
                    torch.cuda.set_sync_debug_mode(mode)
                seen += [driver.runner.collect(running) for running in launched]
            told.append(seen)
        captured = runner_of(driver).prompts.captured
    assert captured == (Room(64, 4, 0), Room(16, 4, 8, short=True))
    assert driver.runner.statistics()["prompt_graphs"] == 2
    for one, other in zip(*told, strict=True):
        assert_same(one, other)
    assert DEVICE.type == "cuda"
