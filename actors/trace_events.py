"""A recorder's tracks as Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

After "Trace Event Format" (Google, 2016): complete events ("X") with `ts` and `dur` in microseconds, flows ("s", "f"),
and metadata ("M") that name processes and threads.  A program is a process, each of its branches a thread of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from .recorder import Recorder, Span, Track

__all__ = ["trace_events", "trace_json"]

_PHASES = ("X", "s", "f", "i")  # of events at one time: a slice is there before an arrow begins or ends in it


def trace_json(recorder: Recorder) -> bytes:
    """Give the whole file; what is still under way ends now, or when the recorder was closed."""
    return msgspec.json.encode(
        {
            "displayTimeUnit": "ms",
            "otherData": {"left_out": recorder.left_out},
            "traceEvents": trace_events(recorder),
        }
    )


def trace_events(recorder: Recorder) -> list[dict[str, Any]]:
    """Give the events: names first, then what happened, in the order of time."""
    end = recorder.clock() if recorder.closed_at is None else recorder.closed_at
    tracks = (*recorder.tracks, recorder.steps)
    known = end if recorder.full_at is None else recorder.full_at  # behind it, spans before one may be missing
    under_way = [span for track in tracks if (span := track.latest(end)) is not None and span.start < known]
    spans = [*recorder.spans, *under_way]
    places = _places(recorder, {span.track for span in spans})
    events = [event for span in spans if (event := _event(span, places, recorder.begun))["dur"]]
    for number, arrow in enumerate(recorder.arrows, 1):
        if arrow.source in places and arrow.target in places:
            told: dict[str, Any] = {"name": arrow.name, "cat": "flow", "id": number}
            for phase, track, time in (("s", arrow.source, arrow.start), ("f", arrow.target, arrow.end)):
                binding = {"bp": "e"} if phase == "f" else {}  # to the slice around it, not to the next
                at = {"ts": _microseconds(time - recorder.begun), **places[track]}
                events.append({**told, "ph": phase, **binding, **at})
    if recorder.full_at is not None and places:
        told = {"name": "the recording is full", "ph": "i", "s": "g", **next(iter(places.values()))}
        events.append({**told, "ts": _microseconds(recorder.full_at - recorder.begun)})
    events.sort(key=lambda event: (event["ts"], _PHASES.index(event["ph"])))
    return [*_names(places), *events]


def _places(recorder: Recorder, shown: set[Track]) -> dict[Track, dict[str, int]]:
    """Number processes and threads: programs as they came, their branches as they nest, the engine behind them."""
    roots = [*dict.fromkeys(track.root for track in recorder.tracks if track.root is not recorder.outside)]
    order = {root: number for number, root in enumerate((*roots, recorder.outside, recorder.engine), 1)}
    ordered = sorted(shown, key=lambda track: (order[track.root], track.path))
    return {track: {"pid": order[track.root], "tid": thread} for thread, track in enumerate(ordered, 1)}


def _event(span: Span, places: dict[Track, dict[str, int]], begun: int) -> dict[str, Any]:
    start, end = _microseconds(span.start - begun), _microseconds(span.end - begun)
    event = {"name": span.name, "cat": "step" if "step" in span.about else "state", "ph": "X", "ts": start}
    return {**event, "dur": end - start, **places[span.track], "args": span.about}


def _names(places: dict[Track, dict[str, int]]) -> Iterable[dict[str, Any]]:
    """Name every process, the second of a name with its number, and every thread."""
    named: dict[int, str] = {}
    counts: Counter[str] = Counter()
    for track, place in places.items():
        pid = place["pid"]
        if pid not in named:
            counts[track.root.name] += 1
            count = counts[track.root.name]
            named[pid] = track.root.name if count == 1 else f"{track.root.name} ({count})"
            yield _metadata("process_name", place, name=named[pid])
            yield _metadata("process_sort_index", place, sort_index=pid)
        yield _metadata("thread_name", place, name=track.name)
        yield _metadata("thread_sort_index", place, sort_index=place["tid"])


def _metadata(kind: str, place: dict[str, int], **arguments: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, **place, "args": arguments}


def _microseconds(nanoseconds: int) -> int:
    # Whole ones: readers multiply fractions back to nanoseconds and cut, and then neighbours overlap by one.
    return nanoseconds // 1000
