"""Between scheduler and worker: steps, and what they sampled."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.message import Ask, Message
from ..sampling import SamplingParams

__all__ = [
    "Begin",
    "Extend",
    "Forced",
    "InputLogprobs",
    "NextLogprobs",
    "Reset",
    "RowFailure",
    "Step",
    "StepDone",
    "ToWorker",
    "WorkerStatistics",
]


class Begin(msgspec.Struct, frozen=True, array_like=True):
    """What the worker must know of a request when its row begins.

    seed: 63 bits, the key of its random draws together with the token's position.  output: int32, tokens generated
    in an earlier life of the row (penalties, min_new_tokens and the grammar have them behind them).  context: int32,
    the prompt, only if repetition_penalty is not 1.  eos: int32 ids kept out until min_new_tokens are there.
    joined: its prefix is made of several lines; it may name slots that extends before it in the same step write, for a
    layer stores what is new in all rows before any of them attends.  shift: how far the positions of its tokens, which
    keys and queries are rotated by, are ahead of their columns in its table.
    """

    request: int
    seed: int
    sampling: SamplingParams
    output: bytes = b""
    context: bytes = b""
    eos: bytes = b""
    joined: bool = False
    shift: int = 0


class Extend(msgspec.Struct, frozen=True, array_like=True):
    """Compute one chunk of a row's tokens.

    tokens and slots: int32, equally long, at the table's columns [start, start + n).  begin is given in the row's first
    chunk, with prefix_slots: int32 [start], the slots of what the cache already held.  sample: whether the logits
    behind the last token are sampled (the chunk completes the prompt).  targets: int32 [m]; if given, the
    log-probabilities of targets[i] behind position targets_start + i are wanted (targets_start >= start,
    targets_start + m <= start + n).
    next_logprobs: whether those of all tokens behind the last one are wanted.
    positions: int32 [n], if they are not columns and Begin.shift.
    """

    row: int
    start: int
    tokens: bytes
    slots: bytes
    sample: bool
    begin: Begin | None = None
    prefix_slots: bytes = b""
    targets: bytes = b""
    targets_start: int = 0
    next_logprobs: bool = False
    positions: bytes = b""


class Step(Message, frozen=True):
    """One forward pass: rows to extend, rows to decode, rows to forget.

    decode_rows: int32 [r].  decode_slots: int32 [r], the KV slot of the row's latest token, which lies on the device
    (sampled in an earlier step), is written to that slot at the row's next position, and is attended from there.
    retired_rows: int32; the worker drops their state before it runs this step.
    groups: int32, which decoding rows attend to which slots together; empty if none do.  One group behind the other,
    each `line_row, start, end, count, row_0 .. row_{count-1}`: all these rows have the same slots at the columns
    [start, end) of their tables, to be read from row `line_row`'s table (it is row_0).  count >= 2, end > start, every
    row is one of decode_rows.  A row's groups stand in order and tile [0, its shared part) without gap or overlap; what
    lies behind is its own.  A group inside another stands behind it, and lists a run of its rows in the same order.
    While decode_rows stay the same, so do the groups.
    writes: whether its decoding rows, all of which have their last token, are there to write it and not to be sampled;
    there are no extends then.
    extend_groups: in the same form, which rows of `extends` with few new tokens attend together to what they have read
    before: a group ends at or before each of its rows' `start`.
    """

    number: int
    extends: tuple[Extend, ...] = ()
    decode_rows: bytes = b""
    decode_slots: bytes = b""
    retired_rows: bytes = b""
    groups: bytes = b""
    extend_groups: bytes = b""
    writes: bool = False


class Reset(Message, frozen=True):
    """Forget every row: a scheduler starts with empty hands."""


class WorkerStatistics(Ask[dict[str, Any]], frozen=True):
    """Tell steps, seconds busy, and their parts."""


ToWorker = Step | Reset | WorkerStatistics


class InputLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of an Extend's targets, in their order, with the most likely tokens if the row asked."""

    row: int
    start: int  # targets_start of the Extend
    logprobs: bytes  # float32
    top_tokens: bytes = b""  # int32 [m, k]
    top_logprobs: bytes = b""  # float32 [m, k]


class NextLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log softmax of a row's logits behind its last token."""

    row: int
    logprobs: bytes  # float32 [vocabulary]


class RowFailure(msgspec.Struct, frozen=True, array_like=True):
    """One row that could not be sampled (a NaN, a grammar that broke); the others go on."""

    row: int
    message: str


class Forced(msgspec.Struct, frozen=True, array_like=True):
    """What a row's grammar leaves no choice about, behind the token that was sampled: int32, two or more.

    The worker counts them as said, and takes no more tokens of this row until an Extend brings them: what steps on
    their way sample of it is surplus.
    """

    row: int
    tokens: bytes


class StepDone(Message, frozen=True):
    """What one step sampled.

    rows: int32 [n], every row that sampled: the extends with `sample`, in order, then decode_rows, unless the step only
    writes.  tokens: int32 [n].
    logprobs: float32 [n] if any row wants them, else empty.  top_tokens, top_logprobs: [n, k], k the largest
    top_logprobs_num among them, else empty.  A failed row appears in `failures`; its token is -1, and it is not among
    next_logprobs.  accepting: int32, the rows of these that have all their max_new_tokens now, forced ones included,
    and whose constraint holds.  forced: the rows that can only go on in one way, and how.
    forward_s, busy_s: seconds.
    """

    number: int
    rows: bytes = b""
    tokens: bytes = b""
    logprobs: bytes = b""
    top_tokens: bytes = b""
    top_logprobs: bytes = b""
    input_logprobs: tuple[InputLogprobs, ...] = ()
    next_logprobs: tuple[NextLogprobs, ...] = ()
    failures: tuple[RowFailure, ...] = ()
    accepting: bytes = b""
    forced: tuple[Forced, ...] = ()
    forward_s: float = 0.0
    busy_s: float = 0.0
