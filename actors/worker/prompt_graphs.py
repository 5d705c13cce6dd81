"""Steps with prompts as CUDA graphs, where launching their kernels takes the host longer than the device needs.

A graph has room for so many tokens of extends, extending rows and decoding rows (padding.py); a step runs in the
smallest that holds it.  It holds the layers: what a step begins with, logits and sampling are launched one by one
behind and before it, as in any other step.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.interface import Attention
from ...kernels.attention.row_groups import PackedGroups
from ...kernels.kv_pool import KVPool
from ...models.config import ModelConfig
from ...models.model import Model
from ..messages import Extend, Step
from .batch import Sampled
from .graph_memory import GraphMemory
from .padding import Room, Sharing, lay_out_padded, padded_batch, room_words, split, step_words
from .rows import Rows
from .staging import Staging

__all__ = ["Computed", "PromptGraphs", "tokens_at_most"]

# A layer's kernels are launched in about so long; the device multiplies at about this rate (H200, Qwen3-0.6B).
_LAUNCH_S = 300e-6
_RATE = 4e14
# Whole prompts from here on may be faster in cuDNN's attention, which is not captured.
_LONG_PROMPT = 2048

_TOKENS = (16, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096)
_MOST_GRAPHS = 64
_MOST_BYTES = 512 << 20


def tokens_at_most(config: ModelConfig) -> int:
    """Tell up to how many tokens a step should be a graph: with more, a layer takes longer than its launches."""
    heads = config.heads + 2 * config.kv_heads + config.heads  # in qkv, and into the output
    weights = config.hidden * (heads * config.head_dim + 3 * config.intermediate)
    return min(_TOKENS[-1], int(_LAUNCH_S * _RATE / (2 * weights)))


@dataclass(frozen=True, slots=True)
class Computed:
    """What a padded pass left on the device.

    hidden_NC: behind the tokens that are sampled, until the next pass.  positions_N: int64, where what is sampled will
    stand.
    """

    hidden_NC: Tensor
    sampled: Sampled
    positions_N: Tensor


class _Key(NamedTuple):
    room: Room
    sharing: Sharing


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    hidden_RC: Tensor


class PromptGraphs:
    """Run steps with prompts in fixed room; one that has been met often enough is captured.

    limit: the most tokens of such a step, padding included; 0 turns this off, as does an attention that does not pad.
    patience: how many steps of a room run without padding, before one is captured: kernels are compiled by then, and
    what is met once costs nothing.  capture: off, every step is launched kernel by kernel, and needs no GPU.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        attention: Attention,
        rows: Rows,
        staging: Staging,
        *,
        capture: bool,
        patience: int = 1,
    ) -> None:
        self.limit = tokens_at_most(model.config) if attention.pads else 0
        self.patience = patience
        self._model = model
        self._pool = pool
        self._attention = attention
        self._rows = rows
        self._staging = staging
        self._capture = capture
        self._met: Counter[Room] = Counter()
        self._captured: OrderedDict[_Key, _Captured] = OrderedDict()
        self._memory = GraphMemory(rows.device)

    def __len__(self) -> int:
        """Tell how many graphs there are; from any thread."""
        return len(self._captured)

    @property
    def captured(self) -> tuple[Room, ...]:
        """Tell what has a graph, the least recently used first."""
        return tuple(key.room for key in self._captured)

    @property
    def size_bytes(self) -> int:
        """Tell the device memory that captures have taken."""
        return self._memory.size_bytes

    def room_for(self, step: Step) -> Room | None:
        """Tell in which room a step runs; None if it had better be launched as it is."""
        if not self.limit or not step.extends or any(map(_asks_for_more, step.extends)):
            return None
        sizes = [len(extend.tokens) // 4 for extend in step.extends]
        padded = next((tokens for tokens in _TOKENS if tokens >= sum(sizes)), None)
        if padded is None or max(sizes) >= _LONG_PROMPT:
            return None
        decoding, most = len(step.decode_rows) // 4, self._rows.max_rows
        room = Room(
            tokens=padded,
            extends=min(_power(len(sizes), 4), padded, most),
            decodes=min(max(8, _power(decoding, 2)), most) if decoding else 0,
            short=max(sizes) <= self._attention.short_queries,
        )
        if room.tokens + room.decodes > self.limit:
            return None
        self._met[room] += 1
        return room if self._met[room] > self.patience else None

    def run(
        self,
        step: Step,
        room: Room,
        groups: PackedGroups | None = None,
        extend_groups: PackedGroups | None = None,
    ) -> Computed:
        """Send a step and launch its layers.

        groups: as packed for `room.decodes` decoding rows.  extend_groups: as packed for extends of `room.tokens`
        tokens.
        """
        rows, prefixes = self._rows, self._rows.prefixes.tell()
        own, begun = step_words(room, groups, extend_groups), len(prefixes.parts[0])
        whole = own + begun + len(prefixes.parts[1])
        host = self._staging.room(whole)
        sampled, ends = lay_out_padded(step, rows, room, self._pool.dummy_slot, host[:own], groups, extend_groups)
        np.concatenate(prefixes.parts, out=host[own:])
        sent = self._staging.carry(whole)
        words = sent[:own]
        prefixes.write((sent[own : own + begun], sent[own + begun :]), rows.tables)
        hidden_RC = self._launch(words, _Key(room, self._sharing(groups, extend_groups)))
        count = len(sampled)
        *_, sampled_N, ends_N = split(words, room).by_row_5R[:, :count]
        # Each a tensor of its own: a kernel is compiled anew for one that does not begin where memory does.
        sampled_N, ends_N = sampled_N.long(), ends_N.long()
        return Computed(hidden_RC[:count], Sampled(sampled.astype(np.int64), sampled_N, ends), ends_N)

    def _sharing(self, groups: PackedGroups | None, extend_groups: PackedGroups | None) -> Sharing:
        sharing = Sharing()
        if groups is not None:
            sharing = sharing._replace(kind=groups.kind, words=groups.room)
        if extend_groups is not None:
            sharing = sharing._replace(
                extend_kind=extend_groups.kind,
                extend_words=extend_groups.room,
                extend_parts=max(1024, _power(extend_groups.parts, 2)),
            )
        return sharing

    def _launch(self, words: Tensor, key: _Key) -> Tensor:
        found = self._captured.get(key)
        if found is None:
            hidden_RC = self._pass(words, key)
            if self._capture and self.size_bytes < _MOST_BYTES:
                self._captured[key] = self._record(key)
                if len(self._captured) > _MOST_GRAPHS:
                    self._captured.popitem(last=False)
            return hidden_RC
        self._captured.move_to_end(key)
        found.inputs[: len(words)].copy_(words)
        found.graph.replay()
        return found.hidden_RC

    def _record(self, key: _Key) -> _Captured:
        inputs = torch.zeros(room_words(*key), dtype=torch.int32, device=self._rows.device)
        graph, hidden_RC = self._memory.capture(lambda: self._pass(inputs, key))
        return _Captured(graph, inputs, hidden_RC)

    def _pass(self, words: Tensor, key: _Key) -> Tensor:
        """Write the new slots into the tables, and run the layers."""
        rows, room = self._rows, key.room
        fields = split(words, room)
        slots_T, columns_T, _, owners_T = fields.by_token_4T
        owners_T = owners_T.long()
        rows.tables.index_put_((owners_T, columns_T.long()), slots_T)
        tokens_T = torch.cat((fields.tokens_E.long(), rows.last_tokens[owners_T[room.tokens :]]))
        batch = padded_batch(fields, room, key.sharing, rows.tables)
        plan = self._attention.plan(batch)
        return self._model.forward(
            tokens_T,
            batch.positions_T,
            batch.slots_T,
            self._pool,
            self._attention,
            plan,
            fields.by_row_5R[2].long(),
        )


def _asks_for_more(extend: Extend) -> bool:
    """Tell whether more is wanted of an extend than what stands behind its last token."""
    return bool(extend.targets) or extend.next_logprobs


def _power(count: int, base: int) -> int:
    """Give the smallest power of `base`, but 1, that is at least `count`."""
    size = base
    while size < count:
        size *= base
    return size
