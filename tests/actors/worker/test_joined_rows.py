"""Rows behind joined branches read their slots where they lie and have positions of their own, on every runner."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from callboard.actors.messages import Extend, Step
from callboard.actors.sampling import SamplingParams

from ...kernels.triton_device import GPU
from .driver import Driver, packed, read
from .test_device_runner import make_device_driver

STEM, FIRST, SECOND, TAIL = [5, 6, 7, 8, 9], [10, 11, 12], [13, 14], [15, 16]
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=8)


def behind_a_join(driver: Driver, *, at_once: bool, shift: int | None = None) -> list[int]:
    """Compute a stem and two branches, and generate behind both; at_once: in the step that computes the second."""
    driver.step(driver.extend(0, STEM + FIRST, GREEDY, sample=False))
    stem = driver.slots[0][: len(STEM)]
    second = driver.extend(1, SECOND, GREEDY, start=len(STEM), sample=False, prefix_slots=stem)
    prefix = [*driver.slots[0], *driver.slots[1][len(STEM) :]]
    last = driver.extend(2, TAIL, GREEDY, start=len(prefix), prefix_slots=prefix)
    assert last.begin is not None
    begin = msgspec.structs.replace(last.begin, joined=True, shift=-len(SECOND) if shift is None else shift)
    last = msgspec.structs.replace(last, begin=begin)
    if not at_once:
        driver.step(second)
    done = driver.step(*([second] if at_once else []), last)
    tokens = read(done.tokens)
    while len(tokens) < 6:
        tokens += read(driver.step(decode=(2,)).tokens)
    driver.step(retire=(0, 1, 2))
    return tokens


def test_a_row_may_read_what_its_own_step_writes(driver: Driver) -> None:
    assert behind_a_join(driver, at_once=True) == behind_a_join(driver, at_once=False)


def test_positions_are_the_row_s_own(driver: Driver) -> None:
    assert behind_a_join(driver, at_once=False) != behind_a_join(driver, at_once=False, shift=60)


def test_a_gpu_s_runner_says_the_same(driver: Driver, tiny: Path) -> None:
    expected = behind_a_join(driver, at_once=True)
    with torch.inference_mode():
        other = make_device_driver(tiny, captured=False)
        assert behind_a_join(other, at_once=True) == behind_a_join(other, at_once=False) == expected


def behind_a_branch(driver: Driver, *, writes: bool) -> list[int]:
    """Let a branch say one token and write it, and generate behind it."""
    driver.step(driver.extend(0, STEM + FIRST, GREEDY))
    done = driver.runner.run(msgspec.structs.replace(driver.make(decode=(0,)), writes=writes))
    assert read(done.rows) == ([] if writes else [0])
    assert len(read(done.tokens)) == len(read(done.rows))
    prefix = list(driver.slots[0])
    driver.step(retire=(0,))
    tokens = read(driver.step(driver.extend(2, TAIL, GREEDY, start=len(prefix), prefix_slots=prefix)).tokens)
    while len(tokens) < 6:
        tokens += read(driver.step(decode=(2,)).tokens)
    driver.step(retire=(2,))
    return tokens


def test_a_step_that_only_writes_leaves_what_one_that_samples_does(driver: Driver, tiny: Path) -> None:
    expected = behind_a_branch(driver, writes=False)
    assert behind_a_branch(driver, writes=True) == expected
    with torch.inference_mode():
        other = make_device_driver(tiny, captured=False)
        assert behind_a_branch(other, writes=True) == behind_a_branch(other, writes=False) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_graphs_that_only_write_leave_the_same(driver: Driver, tiny: Path) -> None:
    expected = behind_a_branch(driver, writes=False)
    with torch.inference_mode():
        captured = make_device_driver(tiny, captured=True)
        for _ in range(4):
            assert behind_a_branch(captured, writes=True) == expected
        assert any(shape.writes for shape in captured.runner.graphs.captured)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_graphs_say_the_same(driver: Driver, tiny: Path) -> None:
    expected = behind_a_join(driver, at_once=True)
    with torch.inference_mode():
        captured = make_device_driver(tiny, captured=True)
        for _ in range(3):
            assert behind_a_join(captured, at_once=True) == expected


def test_a_token_may_stand_at_a_position_of_its_own_behind_a_stem(driver: Driver) -> None:
    """The last token of a stem, read once more where it stands, and what follows it 30 positions further on."""
    driver.step(driver.extend(0, STEM, GREEDY, sample=False))
    once = driver.slots[0][:-1]

    def go_on(extend: Extend, shift: int, positions: list[int] | None) -> list[int]:
        assert extend.begin is not None
        begin = msgspec.structs.replace(extend.begin, joined=True, shift=shift)
        told = packed(positions) if positions else b""
        tokens = read(driver.step(msgspec.structs.replace(extend, begin=begin, positions=told)).tokens)
        tokens += read(driver.step(decode=(1,)).tokens)
        tokens += read(driver.step(decode=(1,)).tokens)
        driver.number += 1
        driver.runner.run(Step(driver.number, retired_rows=packed((1,))))
        return tokens

    at = len(STEM) - 1
    plain = go_on(driver.extend(1, STEM[-1:], GREEDY, start=at, prefix_slots=once), 0, None)
    told = go_on(driver.extend(1, STEM[-1:], GREEDY, start=at, prefix_slots=once), 30, [at])
    other = go_on(driver.extend(1, STEM[-1:], GREEDY, start=at, prefix_slots=once), 30, None)
    assert told[0] == plain[0], "read where it stands"
    assert told != other, "not 30 positions further on"
