"""A thread beside does what it is given in order, and tells what went wrong to who waits."""

from __future__ import annotations

import threading

import pytest

from callboard.actors.worker.beside import Beside


def test_jobs_are_done_in_order_in_the_thread() -> None:
    done: list[tuple[int, str]] = []
    beside = Beside("beside")
    jobs = [
        beside.begin(lambda number=number: done.append((number, threading.current_thread().name)))
        for number in range(5)
    ]
    assert not done
    beside.start()
    jobs[3].wait()
    assert done[:4] == [(number, "beside") for number in range(4)]
    beside.end()
    assert len(done) == 5


def test_what_a_job_raises_is_raised_to_all_who_wait_and_the_thread_goes_on() -> None:
    beside, done = Beside("beside"), list[int]()

    def breaks() -> None:
        raise ValueError("broken")

    broken, fine = beside.begin(breaks), beside.begin(lambda: done.append(1))
    beside.start()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            broken.wait()
    fine.wait()
    assert done == [1]
    beside.end()


def test_the_end_does_what_was_begun_first() -> None:
    at_rest, done = set(threading.enumerate()), list[int]()
    beside = Beside("beside")
    beside.begin(lambda: done.append(1))
    beside.end()
    assert done == [1]
    assert set(threading.enumerate()) <= at_rest
