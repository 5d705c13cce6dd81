"""A track does one thing at a time; a recorder keeps what it has room for, and tells the rest."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from callboard.actors.messages import Extend, Finish, Step
from callboard.actors.recorded import Recorded
from callboard.actors.recorder import TRACK, Recorder, Track, current_track
from callboard.actors.trace_events import trace_json

from ..support.trace_file import arrows, read_trace, states


def recorder(limit: int = 1000, step_ns: int = 1_000_000) -> Recorder:
    """Make one whose clock goes on by a millisecond with every look."""
    ticks = itertools.count(0, step_ns)
    return Recorder(limit, lambda: next(ticks))


def program(of: Recorder, name: str = "qa") -> Track:
    track = of.open(name, None)
    assert track is not None
    track.begin()
    return track


def test_of_several_requests_the_furthest_counts_and_a_step_without_one_is_a_request() -> None:
    of = recorder()
    track = program(of)
    with track.acting():
        with track.waiting("answer"):
            with track.doing("request", "answer"):
                track.request(1, "queued")
                track.request(2, "queued")
                track.request(1, "prefill")
                track.request(1, "decode")
                track.request(2, "prefill")
                track.request(1, "retracted")
                track.request_over(1, {"completion_tokens": 7})
                track.request_over(2, {})
        with track.waiting("join"):
            pass
    track.end()
    read = read_trace(trace_json(of))
    assert states(read["qa: qa"]) == [
        "waiting", "tool", "waiting answer", "request answer", "queued answer", "prefill answer", "decode answer",
        "prefill answer", "request answer", "waiting answer", "tool", "waiting join", "tool", "waiting",
    ]  # fmt: skip


def test_what_a_body_does_beside_its_generation_has_a_track_of_its_own() -> None:
    of = recorder()
    track = program(of)
    with track.acting():
        with track.doing("request", "answer"):
            track.request(1, "queued")
            track.request(1, "decode")
            with track.waiting("answer"):
                track.request_over(1, {"completion_tokens": 7})
    track.end(ValueError("no"))
    read = read_trace(trace_json(of))
    assert [one["name"] for one in read["qa: qa (beside)"]] == ["tool", "tool"], "before it waited, and behind"
    assert read["qa: qa"][-1]["args"] == {"error": "ValueError: no"}
    decoded = next(one for one in read["qa: qa"] if one["name"] == "decode")
    assert decoded["args"] == {"for": "answer", "completion_tokens": 7}
    brief = recorder(step_ns=1000)  # a body says the next thing while the last is generated: that is no tool
    track = program(brief)
    with track.acting(), track.doing("request", "answer"):
        pass
    track.end()
    assert list(read_trace(trace_json(brief))) == ["qa: qa"]


def test_branches_nest_behind_their_program_and_programs_of_a_name_are_told_apart() -> None:
    of = recorder()
    first, second = program(of), program(of)
    left = of.open("qa/0", first)
    right = of.open("qa/1", first)
    assert left is not None
    assert right is not None
    left.begin()
    inner = of.open("qa/0/0", left)
    assert inner is not None
    inner.begin()
    of.draw("join", inner, left)  # while both are what they were
    for track in (inner, left, first, second):
        track.end()
    read = read_trace(trace_json(of))
    assert list(read) == ["qa: qa", "qa: qa/0", "qa: qa/0/0", "qa (2): qa"], "the other branch never began"
    assert arrows(trace_json(of)) == [
        ("fork", "qa", "qa/0"), ("fork", "qa/0", "qa/0/0"), ("join", "qa/0/0", "qa/0"),
    ]  # fmt: skip


def test_a_full_recorder_keeps_what_it_has_and_counts_the_rest() -> None:
    of = recorder(limit=3)
    track = program(of)
    for number in range(5):
        track.request(number, "queued")
        track.request_over(number, {})
    assert of.left_out == 8, "of ten spans, beside the track, two are kept"
    assert of.open("late", None) is None
    read = read_trace(trace_json(of))
    assert states(read["qa: qa"]) == ["waiting", "queued"]
    assert b"the recording is full" in trace_json(of)
    with pytest.raises(ValueError, match="limit is 0; it must be a number of events, at least 1"):
        Recorder(0)


def test_what_is_under_way_ends_when_a_recorder_is_closed_and_nothing_comes_behind() -> None:
    of = recorder()
    track = program(of)
    track.request(1, "queued")
    of.close()
    written = trace_json(of)
    track.request(1, "decode")
    assert of.open("late", None) is None
    assert [one["name"] for one in read_trace(written)["qa: qa"]] == ["waiting", "queued"]
    assert of.left_out == 0
    token = TRACK.set(track)
    assert current_track() is None
    TRACK.reset(token)


def test_requests_of_no_program_have_tracks_of_their_own_and_steps_follow_each_other() -> None:
    of = recorder()
    recorded = Recorded()
    assert not recorded.asked(1), "nobody records"
    token = TRACK.set(of.outside)
    assert recorded.asked(2)
    TRACK.reset(token)
    steps = [
        Step(7, (Extend(0, 0, bytes(12), bytes(12), sample=True),)),
        Step(8, (Extend(1, 0, bytes(8), bytes(8), sample=True),), decode_rows=bytes(4)),
        Step(9, decode_rows=bytes(8)),
    ]
    recorded.step(steps[0])
    recorded.phase(2, "prefill")
    recorded.phase(1, "prefill")  # somebody else's
    recorded.step(steps[1])  # sent before the first is done
    recorded.step_done(7, 0.0)
    recorded.phase(2, "decode")
    recorded.step_done(8, 0.0)
    recorded.step(steps[2])
    recorded.step_done(9, 0.0005)  # half of what has passed: word of it came late
    recorded.step_done(9, 0.0005)  # again
    recorded.answered(2, Finish(reason="length", prompt_tokens=3, completion_tokens=2))
    assert not recorded.tracks
    assert not recorded.sent
    read = read_trace(trace_json(of))
    assert states(read["requests: request 2"]) == ["waiting", "queued", "prefill", "decode", "waiting"]
    told: list[Any] = [(one["name"], one["args"]) for one in read["engine: steps"]]
    assert read["engine: steps"][-1]["dur"] == 500
    assert told == [
        ("prefill", {"step": 7, "rows": 1, "tokens": 3}),
        ("both", {"step": 8, "rows": 2, "tokens": 3}),
        ("decode", {"step": 9, "rows": 2, "tokens": 2}),
    ]
