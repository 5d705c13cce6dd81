"""Steps on a GPU: everything is launched ahead of the device, and nothing on the way waits for it.

    host      forward k+1, sample k+1        collect k            forward k+2 ...
    device    ...... step k ......|...... step k+1 ......|...... step k+2 ......

A step that only decodes is one transfer and one graph; any other is laid out in one transfer, and its layers are
launched kernel by kernel, or as a graph where that takes the host longer than the device.  Sampling reads each row's
parameters on the device; rows with penalties, masks, bans or a bias are sampled once more, from adjusted logits.
`collect` waits for a transfer on a stream of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.interface import Attention
from ...kernels.attention.row_groups import PackedGroups
from ...kernels.kv_pool import KVPool
from ...models.model import Model
from ..grammar import GrammarCache
from ..messages import Begin, Extend, Step, StepDone
from .adjust import Adjuster
from .batch import Sampled
from .choose import Choice, Chooser
from .decodes import Decodes, read_decodes
from .graphs import DecodeGraphs, Draw, Shape
from .groups import GroupPacker
from .kv_reads import KVReads
from .layout import lay_out
from .padding import Room
from .prompt_graphs import PromptGraphs
from .result import Packed
from .returns import Returns
from .rows import Rows
from .runner import Pass, Runner
from .scores import Scorer
from .staging import Staging
from .timing import Span, Spans

__all__ = ["DeviceRunner"]


@dataclass(slots=True)
class DevicePass(Pass):
    """A step on its way through a GPU.

    packed is there before sampling where a graph has drawn already, and nothing more is wanted; shape is that graph's
    then.  drawn_2B: what a graph has drawn where more is wanted.  span: when the device began and ended it.
    """

    positions_N: Tensor | None = None
    drawn_2B: Tensor | None = None
    shape: Shape | None = None
    span: Span | None = None


class DeviceRunner(Runner):
    """Own the rows' state and run steps over a model and its KV pool, ahead of the device.

    draw: samples rows on the device and leaves their tokens in `rows.last_tokens`.  capture: whether decode steps
    become CUDA graphs.
    """

    overlaps = True

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        attention: Attention,
        rows: Rows,
        grammars: GrammarCache | None = None,
        *,
        draw: Draw,
        capture: bool,
        fast_forward: bool = True,
    ) -> None:
        super().__init__(model, pool, attention, rows, grammars, fast_forward=fast_forward)
        self._chooser = Chooser(rows, draws=False)
        self.scorer = Scorer(model, rows, partial(_log_probabilities, draw))
        self.staging = Staging(rows.device)
        self.graphs = DecodeGraphs(model, pool, attention, rows, self.staging, draw, capture=capture)
        self.prompts = PromptGraphs(model, pool, attention, rows, self.staging, capture=capture)
        self._groups = GroupPacker(attention, rows.max_rows)
        self._reads = KVReads(pool, model.config.windows)
        self._draw = draw
        self._adjuster = Adjuster(rows, draw.blocks, draw.block)
        self._returns = Returns(rows.device)
        self._spans = Spans(rows.device)

    def statistics(self) -> dict[str, Any]:
        return {
            "graphs": len(self.graphs.captured),
            "prompt_graphs": len(self.prompts),
            "graph_bytes": self.graphs.size_bytes + self.prompts.size_bytes,
            **self._reads.statistics(),
        }

    def _begin(self, extend: Extend, begin: Begin) -> None:
        super()._begin(extend, begin)
        self._draw.begin(extend.row)

    def forward(self, step: Step) -> DevicePass:
        running = DevicePass(step.number, perf_counter())
        if step.extends:  # beginning a row is work for the device already
            running.span = self._spans.begin()
        self._prepare(step)
        self._launch(running, step)
        return running

    def _launch(self, running: Pass, step: Step) -> None:
        assert isinstance(running, DevicePass)
        if (room := self.prompts.room_for(step)) is not None:
            self._launch_padded(running, step, room)
            return
        if step.extends or not step.decode_rows:
            groups = self._groups.pack(step, len(step.decode_rows) // 4)
            together = self._groups.pack_extends(step)
            batch = lay_out(step, self.rows, self.staging, groups, together)
            if batch is not None:
                self._count_reads(step, groups)
                running.positions_N = batch.positions_N
                self._compute(running, step, batch)
                self._draw.send(self.staging)
            return
        decodes = read_decodes(step, self.rows)
        running.span = self._spans.begin()
        size = self.graphs.size_for(len(decodes))
        groups = self._groups.pack(step, size)
        if step.writes:
            self.graphs.write(decodes, size, groups)
        else:
            self._launch_decodes(running, decodes, size, groups)
        self._reads.count(decodes.lengths, 0 if groups is None else groups.saved_tokens)

    def _launch_decodes(self, running: DevicePass, decodes: Decodes, size: int, groups: PackedGroups | None) -> None:
        count, rows = len(decodes), decodes.rows.astype(np.int64)
        running.choice = self._chooser.choose(rows)
        decoded = self.graphs.run(decodes, size, groups, cuts=running.choice.cuts)
        rows_N, running.positions_N, running.logits_NV = decoded.first(count)
        running.sampled = Sampled(rows, rows_N, decodes.lengths)
        running.drawn_2B = decoded.packed_2B
        if running.choice.plain:
            running.packed = Packed(decoded.packed_2B, count, room=size)
            running.shape = decoded.shape

    def _launch_padded(self, running: DevicePass, step: Step, room: Room) -> None:
        groups, together = self._groups.pack(step, room.decodes), self._groups.pack_extends(step, room.tokens)
        computed = self.prompts.run(step, room, groups, together)
        self._draw.send(self.staging)
        self._count_reads(step, groups)
        if len(computed.sampled.rows):
            running.sampled, running.positions_N = computed.sampled, computed.positions_N
            running.choice = self._chooser.choose(computed.sampled.rows)
            running.logits_NV = self._model.logits(computed.hidden_NC)

    def _count_reads(self, step: Step, groups: PackedGroups | None) -> None:
        rows = np.frombuffer(step.decode_rows, np.int32)
        self._reads.count(self.rows.lengths[rows], 0 if groups is None else groups.saved_tokens)

    def sample(self, running: Pass) -> None:
        assert isinstance(running, DevicePass)
        sampled, choice, logits_NV = running.sampled, running.choice, running.logits_NV
        if sampled is not None and choice is not None and logits_NV is not None:
            running.surplus = self._forced.ahead(sampled, choice)
            if running.packed is None:
                running.packed = self._sample(running, logits_NV, sampled, choice)
                running.packed.send(self._returns)
            else:
                assert running.shape is not None
                self.graphs.keep(running.shape, running.packed.send(self._returns))
            self._lengthen(sampled, running.surplus)
            running.logits_NV = running.drawn_2B = None
        running.scores.send(self._returns)
        if running.span is not None:
            self._spans.end(running.span)

    def _sample(self, running: DevicePass, logits_NV: Tensor, sampled: Sampled, choice: Choice) -> Packed:
        """Launch what is not drawn yet, the adjusted rows once more, and log-probabilities, all into one tensor."""
        more = len(choice.logprobs) * (1 + 2 * choice.top_logprobs)
        if running.drawn_2B is None:
            assert running.positions_N is not None
            room = len(sampled.rows)
            words = self._draw(logits_NV, sampled.rows_N, running.positions_N, cuts=choice.cuts, room=more)
        else:  # what a graph has drawn is written again by its next replay
            room = len(running.drawn_2B) // 2
            words = running.drawn_2B.new_empty(2 * room + more)
            words[: 2 * room].copy_(running.drawn_2B)
        if choice.adjusted:
            masks, banned = self._withheld(sampled, choice)
            adjustments = self._adjuster.gather(sampled, choice, running.surplus, masks, banned)
            if adjustments is not None:
                self._draw.redraw(logits_NV, adjustments, words, room, cuts=choice.adjusted_cuts)
        if choice.logprobs_L is not None:
            self._draw.log_probabilities(logits_NV, choice.logprobs_L, words, choice.top_logprobs, words[2 * room :])
        width = choice.top_logprobs
        return Packed(words, len(sampled.rows), room=room, logprobs=len(choice.logprobs), width=width)

    def collect(self, running: Pass) -> StepDone:
        assert isinstance(running, DevicePass)
        if running.span is not None:
            begun = thread_time()
            running.forward_s, running.gap_s = self._spans.read(running.span)
            running.waited_s = thread_time() - begun
        return super().collect(running)


def _log_probabilities(draw: Draw, logits_BV: Tensor, targets_B: Tensor, width: int) -> tuple[Tensor, ...]:
    """Compute scores.LogProbabilities on the device, in two launches."""
    count = len(targets_B)
    words = torch.empty(count * (1 + 2 * width), dtype=torch.int32, device=logits_BV.device)
    places_B = torch.arange(count, device=logits_BV.device)
    draw.log_probabilities(logits_BV, places_B, targets_B, width, words)
    chosen, tokens, logprobs = words.split((count, count * width, count * width))
    columns = tokens.view(count, width), logprobs.view(torch.float32).view(count, width)
    return chosen.view(torch.float32), *(columns if width else ())
