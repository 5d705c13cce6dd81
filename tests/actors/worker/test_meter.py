"""The worker's meter tells what a clock and its steps say, and no more."""

from __future__ import annotations

import pytest

from callboard.actors.worker.meter import StepMeter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(meter: StepMeter, clock: Clock, seconds: float, *, gap_s: float = 0.0, **more: float) -> None:
    """Let the device wait, then work, and tell the meter."""
    clock.now += gap_s
    started = clock.now
    clock.now += seconds
    meter.done(started=started, device_s=seconds, gap_s=gap_s, **more)  # type: ignore[arg-type]


def test_a_meter_that_has_seen_nothing_tells_zeros(clock: Clock) -> None:
    told = StepMeter(clock).statistics()
    assert told["steps"] == told["device_busy"] == told["last_second"]["device_busy"] == 0
    assert told["recent"] == {"steps": 0}


def test_the_share_of_the_whole_run_counts_idle_time(clock: Clock) -> None:
    meter = StepMeter(clock)
    meter.begin()
    clock.now += 3.0
    run(meter, clock, 1.0, tokens=5, failures=1, launch_s=0.25, collect_s=0.125)
    told = meter.statistics()
    assert told["wall_s"] == pytest.approx(4.0)
    assert told["device_busy"] == pytest.approx(0.25)
    assert (told["tokens_sampled"], told["rows_failed"]) == (5, 1)
    assert (told["launch_s"], told["collect_s"]) == (0.25, 0.125)


def test_the_last_second_holds_only_what_lies_within_it(clock: Clock) -> None:
    meter = StepMeter(clock)
    run(meter, clock, 0.5)
    clock.now += 5.0
    run(meter, clock, 0.2, prompt_tokens=100, tokens=1)
    run(meter, clock, 0.2, gap_s=0.1, tokens=7)
    last = meter.statistics()["last_second"]
    assert last == {"steps": 2, "device_busy": pytest.approx(0.4), "prompt_tokens": 100, "output_tokens": 8}
    clock.now += 0.9  # of the last step, a tenth of a second is left within; the one before it is out
    last = meter.statistics()["last_second"]
    assert last == {"steps": 1, "device_busy": pytest.approx(0.1), "prompt_tokens": 0, "output_tokens": 7}
    clock.now += 1.0
    last = meter.statistics()["last_second"]
    assert last == {"steps": 0, "device_busy": 0.0, "prompt_tokens": 0, "output_tokens": 0}


def test_a_step_longer_than_a_second_fills_it(clock: Clock) -> None:
    meter = StepMeter(clock)
    run(meter, clock, 7.0)
    assert meter.statistics()["last_second"]["device_busy"] == pytest.approx(1.0)


def test_recent_steps_tell_their_spread_and_the_gaps_before_them(clock: Clock) -> None:
    meter = StepMeter(clock)
    for number in range(10):
        run(meter, clock, 0.009, gap_s=0.001 if number else 0.0)
    recent = meter.statistics()["recent"]
    assert recent["steps"] == 10
    assert recent["device_ms_p50"] == pytest.approx(9.0)
    assert recent["gap_us_p90"] == pytest.approx(1000.0)
    assert recent["busy_p50"] == pytest.approx(0.9)


def test_only_the_latest_steps_count_as_recent_however_many_there_were(clock: Clock) -> None:
    meter = StepMeter(clock)
    for _ in range(5000):
        run(meter, clock, 0.5)
    for _ in range(256):
        run(meter, clock, 0.002)
    told = meter.statistics()
    assert told["steps"] == 5256
    assert told["recent"]["device_ms_p90"] == pytest.approx(2.0)
    assert told["recent"]["steps"] == 256


def test_steps_that_overlap_are_busy_once(clock: Clock) -> None:
    meter = StepMeter(clock)
    clock.now = 10.0
    meter.done(started=8.0, device_s=1.0)
    clock.now = 11.0
    meter.done(started=9.0, device_s=1.0)
    assert meter.statistics()["busy_s"] == pytest.approx(3.0)
