"""A worker without a model: each token is a hash of the KV it would have read, so that any mix-up shows.

`FakeModel` keeps what each slot holds: a hash over everything that was read when it was written, its token and its
position.  A sampled token hashes the row's slots.  `expected` tells a request's right tokens from its prompt alone.
Of a row with a grammar, some of these are forced: the fake says them at once, and nonsense until it is given them back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from callboard.actors.core import Actor
from callboard.actors.joins import Line, read_line
from callboard.actors.messages import (
    Begin,
    Forced,
    InputLogprobs,
    NextLogprobs,
    Reset,
    RowFailure,
    Step,
    StepDone,
    WorkerStatistics,
)

__all__ = [
    "FakeModel",
    "FakeWorker",
    "KvError",
    "expected",
    "expected_input_logprobs",
    "expected_next_logprobs",
    "read_groups",
]

_MASK = (1 << 64) - 1


class KvError(Exception):
    """Raised when a step breaks the contract: an unwritten slot read, a slot in use written, an unknown row."""


def _mix(*parts: int) -> int:
    value = 0x243F6A8885A308D3
    for part in parts:
        value = ((value ^ (part & _MASK)) * 0x9E3779B97F4A7C15) & _MASK
        value ^= value >> 29
    return value


def _token(total: int, seed: int, position: int, vocabulary: int) -> int:
    return _mix(total, seed, position) % vocabulary


def _logprob(total: int, token: int) -> float:
    return -(_mix(total, token) % 4096) / 256  # exact in float32


def expected(
    prompt: list[int], seed: int, count: int, *, vocabulary: int = 61, stops: tuple[int, ...] = (), joins: bytes = b""
) -> list[int]:
    """Tell what a request of this prompt and seed generates, up to `count` tokens or the first of `stops`."""
    line = read_line(np.array(prompt, np.int32).tobytes(), joins)
    total = sum(_columns(line)) & _MASK
    output: list[int] = []
    for index in range(count):
        token = _token(total, seed, len(prompt) + index, vocabulary)
        output.append(token)
        if token in stops:
            break
        total = (total + _mix(total, token, line.position + index)) & _MASK
    return output


def _columns(line: Line) -> list[int]:
    """Tell what the slots of a line's columns hold."""
    columns: list[int] = []
    if (origin := line.origin) is not None:
        columns = _columns(origin.lines[0])
        for other in origin.lines[1:]:
            columns += _columns(other)[origin.stem :]
    total, position = sum(columns) & _MASK, line.position - len(line.tokens) // 4
    for token in np.frombuffer(line.tokens, np.int32).tolist():
        columns.append(_mix(total, token, position))
        total, position = (total + columns[-1]) & _MASK, position + 1
    return columns


def expected_input_logprobs(prompt: list[int], start: int) -> list[tuple[int, float]]:
    """Tell tokens and log-probabilities of the prompt's positions from `start`."""
    total, found = 0, []
    for position, token in enumerate(prompt):
        if position >= max(1, start):
            found.append((token, _logprob(total, token)))
        total = (total + _mix(total, token, position)) & _MASK
    return found


def expected_next_logprobs(prompt: list[int], *, vocabulary: int = 61) -> bytes:
    """Tell the row of log-probabilities behind a prompt, float32 [vocabulary]."""
    total = 0
    for position, token in enumerate(prompt):
        total = (total + _mix(total, token, position)) & _MASK
    return _next_logprobs(total, vocabulary)


def _next_logprobs(total: int, vocabulary: int) -> bytes:
    return np.array([_logprob(total, token) for token in range(vocabulary)], np.float32).tobytes()


class _Row:
    def __init__(self, begin: Begin) -> None:
        self.begin = begin
        self.slots: list[int] = []
        self.last: int | None = None  # the token sampled last, not written yet
        self.forced = False  # further than what it was given


class FakeModel:
    """Runs steps against a model of the KV pool.  failing: (request, position) -> message of a RowFailure, or None."""

    def __init__(
        self, slots: int, *, vocabulary: int = 61, failing: Callable[[int, int], str | None] = lambda *_: None
    ) -> None:
        self.vocabulary = vocabulary
        self.failing = failing
        self.rows: dict[int, _Row] = {}
        self.hashes = np.zeros(slots, np.uint64)
        self.tokens = np.full(slots, -1, np.int64)
        self.positions = np.full(slots, -1, np.int64)
        self.users = np.zeros(slots, np.int64)  # how many rows have a slot in their table
        self.steps = 0
        self.groups = self.extend_groups = 0
        self.forced = 0  # tokens
        self._written: set[int] = set()
        self._grouped: dict[bytes, bytes] = {}  # the decode rows of the last step that had any, and their groups

    def reset(self) -> None:
        """Forget every row."""
        self.rows.clear()
        self._grouped.clear()
        self.users[:] = 0

    def run(self, step: Step) -> StepDone:
        """Run one step; raises KvError where it breaks the contract."""
        self.steps += 1
        self._written = set()
        for row in np.frombuffer(step.retired_rows, np.int32).tolist():
            if row not in self.rows:
                raise KvError(f"step {step.number} retires row {row}, which never began")
            np.subtract.at(self.users, self.rows.pop(row).slots, 1)  # equal branches are one line, joined twice
        sampled: list[int] = []
        inputs: list[InputLogprobs] = []
        nexts: list[NextLogprobs | RowFailure] = []
        for extend in step.extends:
            self._extend(extend, inputs)
            if extend.next_logprobs:
                nexts.append(self._look_ahead(extend.row))
            if extend.sample:
                sampled.append(extend.row)
        decoding = np.frombuffer(step.decode_rows, np.int32).tolist()
        self._check_groups(step, decoding)
        for row, slot in zip(decoding, np.frombuffer(step.decode_slots, np.int32).tolist(), strict=True):
            self._decode(row, slot)
            if not step.writes:
                sampled.append(row)
        if step.writes and (step.extends or not decoding):
            raise KvError(f"step {step.number} has more to do than rows that write, or nothing")
        if len(set(sampled)) != len(sampled):
            raise KvError(f"a row is sampled twice in step {step.number}")
        return self._sample(step.number, sampled, tuple(inputs), nexts)

    def _check_groups(self, step: Step, decoding: list[int]) -> None:
        """Hold every word of `Step.groups` and of `Step.extend_groups` against the tables."""
        told = read_groups(step.groups)
        self.groups += len(told)
        if self._grouped.get(step.decode_rows, step.groups) != step.groups:
            raise KvError(f"the same rows decode in step {step.number}, in other groups")
        self._grouped = {step.decode_rows: step.groups}
        self._hold_groups(told, decoding)
        told = read_groups(step.extend_groups)
        self.extend_groups += len(told)
        self._hold_groups(told, [extend.row for extend in step.extends])
        starts = {extend.row: extend.start for extend in step.extends}
        for *_, end, rows in told:
            if any(end > starts[row] for row in rows):
                raise KvError(f"rows {rows} are to attend to [.., {end}) together, which some of them write")

    def _hold_groups(self, told: list[tuple[int, int, int, list[int]]], running: list[int]) -> None:
        """Hold groups against the tables of the rows that run."""
        reached = dict.fromkeys(running, 0)
        inside: dict[int, list[int]] = {}  # the rows of the last group each row was in
        for line_row, start, end, rows in told:
            if line_row != rows[0] or len(rows) < 2 or len(set(rows)) != len(rows) or not start < end:
                raise KvError(f"no group: {line_row, start, end, rows}")
            line = self._row(line_row).slots
            for row in rows:
                if row not in reached:
                    raise KvError(f"row {row} is in a group and does not run")
                if reached[row] != start:
                    raise KvError(f"a group of row {row} begins at {start}, and the last one ended at {reached[row]}")
                if end > len(line) or self._row(row).slots[start:end] != line[start:end]:
                    raise KvError(f"rows {line_row} and {row} have other slots in [{start}, {end})")
                reached[row] = end
            outer = inside.get(line_row, running)
            if line_row in inside and not any(outer[at : at + len(rows)] == rows for at in range(len(outer))):
                raise KvError(f"rows {rows} are no run of the group they are inside, {outer}")
            inside.update(dict.fromkeys(rows, rows))

    def _extend(self, extend: Any, inputs: list[InputLogprobs]) -> None:
        if extend.begin is not None:
            if extend.row in self.rows:
                raise KvError(f"row {extend.row} begins before it was retired")
            self.rows[extend.row] = _Row(extend.begin)
            for slot in np.frombuffer(extend.prefix_slots, np.int32).tolist():
                if slot in self._written and not extend.begin.joined:
                    raise KvError(f"slot {slot} is read in the step that writes it")
                self._hold(self.rows[extend.row], slot)
        row = self._row(extend.row)
        row.forced = False
        if len(row.slots) != extend.start:
            raise KvError(f"row {extend.row} holds {len(row.slots)} tokens, and a chunk starts at {extend.start}")
        tokens = np.frombuffer(extend.tokens, np.int32).tolist()
        slots = np.frombuffer(extend.slots, np.int32).tolist()
        targets = np.frombuffer(extend.targets, np.int32).tolist()
        if not tokens or len(tokens) != len(slots):
            raise KvError(f"a chunk of {len(tokens)} tokens has {len(slots)} slots")
        logprobs = []
        total = self._read(row)
        positions = np.frombuffer(extend.positions, np.int32).tolist() or [None] * len(tokens)
        for index, (token, slot, position) in enumerate(zip(tokens, slots, positions, strict=True)):
            total = self._write(row, slot, token, total, position)
            wanted = extend.start + index - extend.targets_start
            if 0 <= wanted < len(targets):
                logprobs.append(_logprob(total, targets[wanted]))
        if len(logprobs) != len(targets):
            raise KvError("targets reach beyond their chunk")
        if targets:
            inputs.append(InputLogprobs(extend.row, extend.targets_start, np.array(logprobs, np.float32).tobytes()))

    def _look_ahead(self, index: int) -> NextLogprobs | RowFailure:
        row = self._row(index)
        message = self.failing(row.begin.request, len(row.slots))
        if message is not None:
            return RowFailure(index, message)
        return NextLogprobs(index, _next_logprobs(self._read(row), self.vocabulary))

    def _decode(self, row_index: int, slot: int) -> None:
        row = self._row(row_index)
        if row.last is None:
            raise KvError(f"row {row_index} decodes before its prompt is complete")
        self._write(row, slot, row.last, self._read(row))
        row.last = None

    def _row(self, row: int) -> _Row:
        if row not in self.rows:
            raise KvError(f"row {row} was never begun")
        return self.rows[row]

    def _hold(self, row: _Row, slot: int) -> None:
        row.slots.append(slot)
        self.users[slot] += 1

    def _read(self, row: _Row) -> int:
        """Sum what the row's slots hold; each must have been written, at its position."""
        table = np.array(row.slots, np.int64)
        if row.begin.joined:
            if len(table) and self.positions[table].min() < 0:
                raise KvError(f"request {row.begin.request} reads slots {row.slots}, some of them never written")
        elif not np.array_equal(self.positions[table], np.arange(len(table))):
            raise KvError(f"request {row.begin.request} reads slots {row.slots} with positions {self.positions[table]}")
        return int(self.hashes[table].sum(dtype=np.uint64))

    def _write(self, row: _Row, slot: int, token: int, total: int, position: int | None = None) -> int:
        if slot in self._written:
            raise KvError(f"slot {slot} is written twice in one step")
        if self.users[slot]:
            raise KvError(f"request {row.begin.request} writes slot {slot}, which a row is using")
        position = len(row.slots) + row.begin.shift if position is None else position
        mixed = _mix(total, token, position)
        self._written.add(slot)
        self.hashes[slot], self.tokens[slot], self.positions[slot] = mixed, token, position
        self._hold(row, slot)
        return (total + mixed) & _MASK

    def _sample(
        self,
        number: int,
        sampled: list[int],
        inputs: tuple[InputLogprobs, ...],
        nexts: list[NextLogprobs | RowFailure],
    ) -> StepDone:
        tokens: list[int] = []
        logprobs: list[float] = []
        forced: list[Forced] = []
        failures = [part for part in nexts if isinstance(part, RowFailure)]
        found = tuple(part for part in nexts if isinstance(part, NextLogprobs))
        for index in sampled:
            row = self.rows[index]
            total, position = self._read(row), len(row.slots)
            earlier = np.frombuffer(row.begin.output, np.int32)
            held = self.tokens[np.array(row.slots)]
            if row.last is None and len(earlier) and not _within(held, earlier):
                raise KvError(f"request {row.begin.request}: its earlier output is not what its slots hold")
            message = None if row.forced else self.failing(row.begin.request, position)
            if message is not None:
                failures.append(RowFailure(index, message))
            row.last = _token(total, row.begin.seed + row.forced, position, self.vocabulary)
            if message is None and not row.forced and row.begin.sampling.constraint is not None:
                forced += self._force(index, row, total)
            tokens.append(-1 if message is not None else row.last)
            logprobs.append(_logprob(total, row.last))
        wanted = any(self.rows[index].begin.sampling.return_logprob for index in sampled)
        packed = np.array(sampled, np.int32).tobytes(), np.array(tokens, np.int32).tobytes()
        some = np.array(logprobs, np.float32).tobytes() if wanted else b""
        return StepDone(
            number,
            *packed,
            some,
            input_logprobs=inputs,
            next_logprobs=found,
            failures=tuple(failures),
            forced=tuple(forced),
        )

    def _force(self, index: int, row: _Row, total: int) -> list[Forced]:
        """Say the tokens behind the sampled one, as they would be sampled, if there are to be any."""
        count = total % 7
        assert row.last is not None
        if count < 2 or row.begin.sampling.return_logprob:
            return []
        row.forced = True
        tokens, last = list[int](), row.last
        for position in range(len(row.slots), len(row.slots) + count):
            total = (total + _mix(total, last, position)) & _MASK
            last = _token(total, row.begin.seed, position + 1, self.vocabulary)
            tokens.append(last)
        self.forced += count
        return [Forced(index, np.array(tokens, np.int32).tobytes())]


def read_groups(packed: bytes) -> list[tuple[int, int, int, list[int]]]:
    """Unpack `Step.groups`: line row, start, end, rows."""
    numbers = np.frombuffer(packed, np.int32).tolist()
    found: list[tuple[int, int, int, list[int]]] = []
    at = 0
    while at < len(numbers):
        line_row, start, end, count = numbers[at : at + 4]
        rows = numbers[at + 4 : at + 4 + count]
        if len(rows) != count:
            raise KvError("a group is cut short")
        found.append((line_row, start, end, rows))
        at += 4 + count
    return found


def _within(held: np.ndarray, part: np.ndarray) -> bool:
    windows = np.lib.stride_tricks.sliding_window_view(held, len(part)) if len(held) >= len(part) else np.empty((0, 1))
    return bool((windows == part).all(axis=1).any()) if len(windows) else False


class FakeWorker(Actor[Any]):
    """The actor around a FakeModel.  report: where its StepDone goes, like Worker's.

    It is deaf to steps until the first Reset: in its mailbox may lie those that a worker before it did not live to run.
    """

    def __init__(self, model: FakeModel, report: Callable[[StepDone], None]) -> None:
        self.model = model
        self.report = report
        self.deaf = True

    async def receive(self, message: Any) -> Any:
        match message:
            case Step() if not self.deaf:
                self.report(self.model.run(message))
            case Reset():
                self.deaf = False
                self.model.reset()
            case WorkerStatistics():
                return {"steps": self.model.steps}
        return None
