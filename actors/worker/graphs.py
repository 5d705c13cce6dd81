"""Decode steps as CUDA graphs: one launch instead of some hundreds.

A graph is captured for a number of rows; a step with fewer is padded with rows that are nobody's.  What changes from
step to step is read on the device: rows, slots, positions and lengths from one tensor that each step's transfer fills.
Rows that attend together have graphs of their own, one for each kind of groups, so that steps without pay nothing; the
groups stand in the same tensor.  So have steps in which a row has a top-k, a top-p or a min-p, for the search of cuts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...kernels.attention.interface import Attention, AttentionBatch
from ...kernels.attention.row_groups import Groups, PackedGroups
from ...kernels.kv_pool import KVPool
from ...kernels.sampler.adjustments import Adjustments
from ...models.model import Model
from .decodes import Decodes, views, write_padded
from .graph_memory import GraphMemory
from .rows import Rows
from .staging import Staging
from .streams import launching_stream

__all__ = ["DecodeGraphs", "Decoded", "Draw", "Shape", "sizes"]

# Below so many rows, captured counts stand so far apart.
_STEPS = ((4, 1), (8, 2), (32, 4), (64, 8), (256, 16), (512, 32), (1 << 30, 64))


# How many steps that only write draw all the same, in a graph that there is, before one that does not is captured.
_DRAWING = 1


class Shape(NamedTuple):
    """What a graph is captured for: so many rows, a kind of groups, -1 for none, and whether rows may have cuts.

    writes: it ends when the last layer has stored keys and values, and draws nothing.
    """

    size: int
    kind: int
    cuts: bool
    writes: bool = False


class Draw(Protocol):
    """Sample rows on the device, and write their tokens to the rows' last tokens.

    blocks, block: into how many pieces of how many tokens it cuts a row.
    """

    blocks: int
    block: int

    def begin(self, row: int) -> None:
        """Note that a row has begun, and is to be sampled as Rows says."""
        ...

    def send(self, staging: Staging) -> None:
        """Send how rows that have begun are to be sampled, behind the layers that compute what they say first."""
        ...

    def __call__(self, logits_NV: Tensor, rows_N: Tensor, positions_N: Tensor, *, cuts: bool, room: int = 0) -> Tensor:
        """Give tokens, int32 [N], and each row's greatest logit, float32 [N], side by side as int32.

        positions_N: where the tokens will stand.  cuts: whether a row may have a top-k, a top-p or a min-p.  room: how
        many words are to be free behind them.
        """
        ...

    def redraw(self, logits_NV: Tensor, adjustments: Adjustments, words: Tensor, room: int, *, cuts: bool) -> None:
        """Sample some rows once more, from adjusted logits, and remember what they draw.

        logits_NV are not written to.  words: what a call gave; tokens stand at its front, greatest logits from `room`
        on.  cuts: of the rows that are adjusted.
        """
        ...

    def log_probabilities(
        self, logits_NV: Tensor, places_L: Tensor, tokens_N: Tensor, width: int, words: Tensor
    ) -> None:
        """Write tokens_N's log-probabilities, then the `width` most likely tokens, then theirs, to words, int32.

        places_L: which of the N lines are wanted.
        """
        ...


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a decode pass left on the device, padding included, until the next pass of its shape.

    rows_B, positions_B: int64, the rows and where their sampled tokens will stand.  logits_BV: not to be written to.
    packed_2B: what was drawn, as result.Packed has it: tokens, then greatest logits; right for rows with nothing else
    done to their logits, and without cuts unless the shape has them.
    """

    shape: Shape
    rows_B: Tensor
    positions_B: Tensor
    logits_BV: Tensor
    packed_2B: Tensor

    def first(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Give rows, positions and logits without padding."""
        whole = self.rows_B, self.positions_B, self.logits_BV
        return whole if count == len(self.rows_B) else (whole[0][:count], whole[1][:count], whole[2][:count])


@dataclass(slots=True)
class _Captured:
    """read: when the outputs have been read, and may be written again."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    outputs: Decoded | None
    read: torch.cuda.Event | None = None


def sizes(most: int) -> tuple[int, ...]:
    """Choose the row counts to capture: every one up to 4, then further apart, so that padding stays small."""
    chosen: list[int] = []
    size = 1
    while size < most:
        chosen.append(size)
        size += next(step for limit, step in _STEPS if size < limit)
    return (*chosen, most)


class DecodeGraphs:
    """Run decode steps, capturing a graph the first time a shape is met.

    The first step of a shape runs launch by launch (which also compiles its kernels) and is captured behind it; all
    later ones are replays.  `capture` off runs every step that way, and needs no GPU; the attention may then read
    lengths on the host.
    patience: how many steps run in the next larger size that has a graph, if that is not half as large again, before a
    size is captured: the size that a batch has only while its rows end one by one costs no capture.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        attention: Attention,
        rows: Rows,
        staging: Staging,
        draw: Draw,
        *,
        capture: bool,
        patience: int = 8,
    ) -> None:
        self.patience = patience
        self._model = model
        self._pool = pool
        self._attention = attention
        self._rows = rows
        self._staging = staging
        self._stream = launching_stream(rows.device)
        self._draw = draw
        self._capture = capture
        self._sizes = sizes(rows.max_rows)
        self._captured: dict[Shape, _Captured] = {}
        self._sizes_captured: dict[tuple[int, bool], list[int]] = {}  # in order, by the rest of the shape
        self._last = (-1, False)  # that rest, of the last step: the next one's is most likely the same
        self._met: Counter[Shape] = Counter()  # steps that ran in a larger size
        self._memory = GraphMemory(rows.device)

    @property
    def captured(self) -> tuple[Shape, ...]:
        """Tell the shapes that have a graph."""
        return tuple(self._captured)

    @property
    def size_bytes(self) -> int:
        """Tell the device memory that captures have taken."""
        return self._memory.size_bytes

    def size_for(self, count: int) -> int:
        """Choose with how many rows a step of `count` is to run; asked once a step."""
        size = next(size for size in self._sizes if size >= count)
        captured, shape = self._sizes_captured.get(self._last, []), Shape(size, *self._last)
        at = bisect_left(captured, size)
        if at == len(captured) or self._met[shape] >= self.patience:
            return size
        larger = captured[at]
        if larger == size or 2 * larger >= 3 * size:
            return size
        self._met[shape] += 1
        return larger

    def run(self, decodes: Decodes, size: int, groups: PackedGroups | None = None, *, cuts: bool = False) -> Decoded:
        """Launch one decode pass; the first len(decodes) lines of the result are the step's.

        size: as `size_for` has chosen.  groups: as packed for so many rows.  cuts: whether a row may have a top-k, a
        top-p or a min-p.
        """
        decoded = self._run(decodes, Shape(size, -1 if groups is None else groups.kind, cuts), groups)
        assert decoded is not None, "a graph that draws leaves what it drew"
        return decoded

    def write(self, decodes: Decodes, size: int, groups: PackedGroups | None = None) -> None:
        """Launch a pass of rows that only write; nobody wants to know what else it does."""
        shape = Shape(size, -1 if groups is None else groups.kind, cuts=False, writes=True)
        if shape not in self._captured:
            self._met[shape] += 1
            if self._met[shape] <= _DRAWING:
                shape = shape._replace(writes=False)
        self._run(decodes, shape, groups)

    def _run(self, decodes: Decodes, shape: Shape, groups: PackedGroups | None) -> Decoded | None:
        size = shape.size
        self._last = shape.kind, shape.cuts
        words = 4 * size + (0 if groups is None else len(groups.words_W))
        host = self._staging.room(words)
        lines = host[: 4 * size].reshape(4, size)
        write_padded(decodes, lines, self._rows.max_rows, self._pool.dummy_slot)
        if groups is not None:
            host[4 * size :] = groups.words_W
        if (found := self._captured.get(shape)) is not None:
            self._staging.go(words, found.inputs)
            self._attention.replay(lines[3])
            if found.read is not None:
                found.read.wait(self._stream)
            found.graph.replay()
            return found.outputs
        room = 4 * size + (0 if groups is None else groups.room)
        inputs = torch.empty(room, dtype=torch.int32, device=self._rows.device)
        self._staging.go(words, inputs)
        outputs = self._pass(inputs, shape, lines[3].tolist())
        if self._capture:
            self._captured[shape] = self._record(inputs, shape)
            if not shape.writes:
                insort(self._sizes_captured.setdefault(self._last, []), size)
        return outputs

    def keep(self, shape: Shape, read: torch.cuda.Event | None) -> None:
        """Do not write this shape's outputs again before an event."""
        if (found := self._captured.get(shape)) is not None:
            found.read = read

    def _record(self, inputs: Tensor, shape: Shape) -> _Captured:
        lengths = [self._rows.context_length] * shape.size
        graph, outputs = self._memory.capture(lambda: self._pass(inputs, shape, lengths))
        return _Captured(graph, inputs, outputs)

    def _pass(self, inputs: Tensor, shape: Shape, lengths: list[int]) -> Decoded | None:
        size, kind, cuts, writes = shape
        rows, slots, positions, lengths_R = views(inputs, size)
        rows_B, positions_B, slots_B, ends_B = rows.long(), positions.long(), slots.long(), lengths_R.long()
        tables = self._rows.tables
        tables.index_put_((rows_B, ends_B - 1), slots)
        attention = AttentionBatch(
            query_starts_R1=self._rows.counting[: size + 1],
            query_lengths=[1] * size,
            lengths=lengths,
            table_RL=tables,
            slots_T=slots_B,
            positions_T=positions_B,
            rows_R=rows,
            lengths_R=lengths_R,
            starts_R1=None,
            extends=0,
            groups=None if kind < 0 else Groups(inputs[4 * size :], kind),
        )
        plan, wanted = self._attention.plan(attention), rows_B[:0] if writes else None
        hidden_BC = self._model.forward(
            self._rows.last_tokens[rows_B], positions_B, slots_B, self._pool, self._attention, plan, wanted
        )
        if writes:
            return None
        logits_BV = self._model.logits(hidden_BC)
        packed_2B = self._draw(logits_BV, rows_B, ends_B, cuts=cuts)
        return Decoded(shape, rows_B, ends_B, logits_BV, packed_2B)
