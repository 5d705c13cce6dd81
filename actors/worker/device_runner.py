"""Steps on a GPU: everything is launched ahead of the device, and nothing on the way waits for it.

    host      forward k+1, sample k+1        collect k            forward k+2 ...
    device    ...... step k ......|...... step k+1 ......|...... step k+2 ......

A step that only decodes is one transfer and one graph; any other is laid out in one transfer, and its layers are
launched kernel by kernel, or as a graph where that takes the host longer than the device.  Sampling reads each row's
parameters on the device.  `collect` waits for a transfer on a stream of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
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
from .batch import Sampled
from .choose import Chooser
from .graphs import DecodeGraphs, Draw, Shape
from .groups import GroupPacker
from .kv_reads import KVReads
from .layout import lay_out, read_decodes
from .padding import Room
from .prompt_graphs import PromptGraphs
from .result import Packed, pack
from .returns import Returns
from .rows import Rows
from .runner import Pass, Runner
from .staging import Staging
from .timing import Span
from .to_device import to_device

__all__ = ["DeviceRunner"]


@dataclass(slots=True)
class DevicePass(Pass):
    """A step on its way through a GPU.

    packed is there before sampling where a graph has drawn already; shape is that graph's then.  span: when the device
    began and ended it.
    """

    positions_N: Tensor | None = None
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
        self.staging = Staging(rows.device)
        self.graphs = DecodeGraphs(model, pool, attention, rows, self.staging, draw, capture=capture)
        self.prompts = PromptGraphs(model, pool, attention, rows, self.staging, capture=capture)
        self._groups = GroupPacker(attention, rows.max_rows)
        self._reads = KVReads(pool, model.config.windows)
        self._draw = draw
        self._returns = Returns(rows.device)
        self._span: Span | None = None  # the last step's

    def statistics(self) -> dict[str, Any]:
        return {
            "graphs": len(self.graphs.captured),
            "prompt_graphs": len(self.prompts.captured),
            "graph_bytes": self.graphs.size_bytes + self.prompts.size_bytes,
            **self._reads.statistics(),
        }

    def _begin(self, extend: Extend, begin: Begin) -> None:
        super()._begin(extend, begin)
        self._draw.begin(extend.row, begin.sampling, begin.seed)

    def forward(self, step: Step) -> DevicePass:
        running = DevicePass(step.number, perf_counter())
        if step.extends:  # beginning a row is work for the device already
            running.span = Span(self.rows.device, self._span)
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
            found = lay_out(step, self.rows, self.staging, self._draw.staged(), groups, together)
            if found is not None:
                self._count_reads(step, groups)
                batch, parameters = found
                self._draw.write(parameters)
                running.positions_N = batch.positions_N
                self._compute(running, step, batch)
            return
        decodes = read_decodes(step, self.rows)
        count = len(decodes)
        running.span = Span(self.rows.device, self._span)
        groups = self._groups.pack(step, self.graphs.size_for(count))
        decoded = self.graphs.run(decodes, groups)
        self._count_reads(step, groups)
        rows = decodes.rows.astype(np.int64)
        running.sampled = Sampled(rows, decoded.rows_B[:count], self.rows.lengths[rows])
        running.choice = self._chooser.choose(rows)
        running.logits_NV = decoded.logits_BV[:count]
        running.positions_N = decoded.positions_B[:count]
        if running.choice.plain and not running.choice.cuts:
            running.packed = Packed(decoded.packed_2B, count, room=len(decoded.packed_2B) // 2)
            running.shape = decoded.shape

    def _launch_padded(self, running: DevicePass, step: Step, room: Room) -> None:
        groups, together = self._groups.pack(step, room.decodes), self._groups.pack_extends(step, room.tokens)
        computed = self.prompts.run(step, room, self._draw.staged(), groups, together)
        self._count_reads(step, groups)
        self._draw.write(computed.ahead)
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
            asked = to_device(choice.logprobs, logits_NV.device) if choice.logprobs else None
            raw_LV = None if asked is None else logits_NV[asked].float()
            if running.packed is None:
                running.surplus = self._forward.ahead(sampled, choice)
                tokens_N, best_N = self._sample(running, logits_NV, sampled)
                self._count(running, sampled, choice, tokens_N)
                running.packed = pack(tokens_N, best_N, raw_LV, choice)
                running.packed.send(self._returns)
            else:
                self.rows.generated[sampled.rows] += 1
                assert running.shape is not None
                self.graphs.keep(running.shape, running.packed.send(self._returns))
            running.logits_NV = None
        for _, packed in running.scored:
            packed.send(self._returns)
        if running.span is not None:
            running.span.end()
            self._span = running.span

    def _sample(self, running: DevicePass, logits_NV: Tensor, sampled: Sampled) -> tuple[Tensor, Tensor]:
        assert running.choice is not None
        assert running.positions_N is not None
        if not running.choice.plain:
            logits_NV = logits_NV.to(torch.float32, copy=True)  # a graph's logits are written again by its next replay
            masks = self._adjust(logits_NV, sampled, running.choice)
            if masks is not None:
                masks.apply(logits_NV)
        return self._draw(logits_NV, sampled.rows_N, running.positions_N, cuts=running.choice.cuts)

    def collect(self, running: Pass) -> StepDone:
        assert isinstance(running, DevicePass)
        if running.span is not None:
            begun = perf_counter()
            running.forward_s, running.gap_s = running.span.seconds(), running.span.gap()
            running.waited_s = perf_counter() - begun
        return super().collect(running)
