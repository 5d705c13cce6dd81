"""Reading a timeline's file as strictly as those who open it may."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

__all__ = ["arrows", "read_trace", "states"]

Slices = dict[str, list[dict[str, Any]]]


def read_trace(written: bytes) -> Slices:
    """Check a file against the rules of the trace-event format, and give each track's slices by its name.

    Names come first, and every process and thread has one; what happened is in the order of time; slices of a track do
    not overlap; an arrow begins before it ends, each in a slice.  Of the two slices Perfetto takes the one that begins
    first for where the arrow comes from.
    """
    events = json.loads(written)["traceEvents"]
    metadata = [event for event in events if event["ph"] == "M"]
    happened = events[len(metadata) :]
    assert events[: len(metadata)] == metadata
    processes = {event["pid"]: event["args"]["name"] for event in metadata if event["name"] == "process_name"}
    threads = {event["tid"]: event["args"]["name"] for event in metadata if event["name"] == "thread_name"}
    assert len(set(processes.values())) == len(processes)
    assert {event["name"] for event in metadata} <= {
        "process_name", "process_sort_index", "thread_name", "thread_sort_index",
    }  # fmt: skip
    assert [event["ts"] for event in happened] == sorted(event["ts"] for event in happened)
    slices: dict[int, list[dict[str, Any]]] = {thread: [] for thread in threads}
    flows: dict[int, dict[str, dict[str, Any]]] = {}
    for event in happened:
        assert event["pid"] in processes
        assert event["tid"] in threads
        assert event["name"]
        assert type(event["ts"]) is int
        assert event["ts"] >= 0
        match event["ph"]:
            case "X":
                assert type(event["dur"]) is int
                assert event["dur"] > 0
                slices[event["tid"]].append(event)
            case "s" | "f":
                assert event["ph"] not in flows.setdefault(event["id"], {})
                flows[event["id"]][event["ph"]] = event
            case other:
                assert other == "i"
    for own in slices.values():
        assert own, "a track has something to show"
        for before, after in pairwise(own):
            assert before["ts"] + before["dur"] <= after["ts"]
    for flow in flows.values():
        assert flow.keys() == {"s", "f"}
        assert flow["s"]["ts"] <= flow["f"]["ts"]
        assert flow["f"]["bp"] == "e"
        begins, ends = (_slice_at(slices[flow[end]["tid"]], flow[end]["ts"]) for end in "sf")
        assert begins["ts"] <= ends["ts"]
    return {f"{processes[own[0]['pid']]}: {threads[thread]}": own for thread, own in slices.items()}


def _slice_at(slices: list[dict[str, Any]], time: int) -> dict[str, Any]:
    """Give the slice that is open at a time; the later, if one ends there and another begins."""
    return next(one for one in reversed(slices) if one["ts"] <= time <= one["ts"] + one["dur"])


def states(slices: list[dict[str, Any]]) -> list[str]:
    """Give what a track does, one behind the other, with the variable it is for; it must do something all the time."""
    for before, after in pairwise(slices):
        assert before["ts"] + before["dur"] == after["ts"], "there is no gap"
    return [f"{one['name']} {one['args']['for']}" if "for" in one["args"] else one["name"] for one in slices]


def arrows(written: bytes) -> list[tuple[str, str, str]]:
    """Give the name of each arrow, and the threads it goes from and to."""
    events = json.loads(written)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    ends = {event["id"]: names[event["tid"]] for event in events if event["ph"] == "f"}
    return [(event["name"], names[event["tid"]], ends[event["id"]]) for event in events if event["ph"] == "s"]
