"""Every message between the runtime's actors, one union a seam.

Packed arrays travel as `bytes` in native byte order: int32 unless a field says otherwise.  One message a step,
not one a token.  A *request* is an int the dispatcher gave; a *row* is an index into the worker's device state;
a *slot* is an index into the KV pool; a *position* counts tokens from the start of the sequence.

    client -> Dispatcher           ToDispatcher
    Dispatcher -> Scheduler        ToScheduler
    Scheduler -> Worker            ToWorker
    Worker -> Scheduler            StepDone (a worker that breaks crashes, and Core with it)
    Scheduler, Dispatcher -> Detokenizer    ToDetokenizer
    Detokenizer -> Dispatcher      Deltas
    Detokenizer -> Scheduler       Stopped
    anybody -> Tokenizer           ToTokenizer
    anybody -> Grammar             ToGrammar
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .core.message import Ask, Message
from .sampling import Constraint, SamplingParams

__all__ = [
    "GRAMMAR_CUT",
    "Abort",
    "AbortAll",
    "AbortTag",
    "Begin",
    "Close",
    "Compile",
    "CoreStarted",
    "Decode",
    "Delta",
    "Deltas",
    "DispatcherStatistics",
    "Encode",
    "Extend",
    "Finish",
    "FinishReason",
    "Finished",
    "Flush",
    "Flushed",
    "Forced",
    "Generate",
    "Heal",
    "Healed",
    "InputLogprobs",
    "LiveRequests",
    "NextLogprobs",
    "Open",
    "Paused",
    "Reconcile",
    "Reset",
    "Resumed",
    "RowFailure",
    "SchedulerStatistics",
    "Score",
    "Step",
    "StepDone",
    "Stopped",
    "Submit",
    "ToDetokenizer",
    "ToDispatcher",
    "ToGrammar",
    "ToScheduler",
    "ToTokenizer",
    "ToWorker",
    "TokenLogprob",
    "Tokens",
    "WorkerStatistics",
]

FinishReason = Literal["stop", "length", "abort", "error"]

GRAMMAR_CUT = "the grammar was cut: max_new_tokens ended the text before it was complete"
"""The message of a Finish for "length" where the constraint did not hold yet."""


# --- results, as clients see them ---------------------------------------------------------------------------------


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token's log-probability (natural log) and the most likely tokens beside it, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Healed(msgspec.Struct, frozen=True):
    """What became of a prompt's end that was taken back (`SamplingParams.heal`).

    inside: how many of the first output tokens lie wholly in text the prompt had.  taken: how many of the prompt's last
    tokens the output's stand for; 0 if the prompt stays as it was.  text: what of the prompt's text the first token
    behind `inside` begins with.
    """

    inside: int
    taken: int = 0
    text: str = ""


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How a generation ended: its one terminal event.

    matched: the stop string or stop token id that ended it.  kept_tokens: how many output tokens lie wholly inside
    the text; tail: the text behind them (a stop string may end inside a token), so that
    decode(tokens[:kept_tokens]) + tail is the text; behind a healed prompt, the text that was taken back and the text.
    """

    reason: FinishReason
    matched: str | int | None = None
    message: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    retractions: int = 0
    kept_tokens: int = 0
    tail: str = ""
    healed: Healed | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new in one request: text, tokens and, in the last one, how it ended.

    next_logprobs: float32 [vocabulary], in the last one of a request submitted with `next_logprobs`.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    input_logprobs: tuple[TokenLogprob, ...] = ()
    next_logprobs: bytes = b""
    finish: Finish | None = None


# --- client -> dispatcher -----------------------------------------------------------------------------------------


class Submit(Ask[None], frozen=True):
    """Admit a request: from now on its deltas go to `reader`, until one terminal event; or Overloaded, InvalidRequest.

    request: given by the client, unique in the engine's life, so that an Abort sent behind a Submit whose answer nobody
    waits for any more still finds it.  prompt: int32.  tag: the client's own name for it, for AbortTag.
    next_logprobs: see Generate.  lease: the number of the program that asks and may go on from here, so that its KV is
    evicted behind that of others; 0 for none.  released: programs that will not go on.
    joins: int32, where branches are joined in the prompt, as `joins.py` reads it; empty if it is one line.
    program: the number of the whole program that asks, all its branches together, so that it is known for how many it
    waits; 0 for none.  tenant: on whose behalf: tenants take turns, and no one reads what another has in the cache.
    namespace: where in the cache it looks and what it computes is kept; if empty, at its tenant's (`tenancy.py`).
    """

    request: int
    prompt: bytes
    sampling: SamplingParams
    reader: Any
    tag: str = ""
    next_logprobs: bool = False
    lease: int = 0
    released: tuple[int, ...] = ()
    joins: bytes = b""
    program: int = 0
    tenant: str = ""
    namespace: str = ""


class Abort(Message, frozen=True):
    """End a request early.  Idempotent; one that is unknown or has ended is ignored."""

    request: int
    reason: str = ""


class AbortTag(Message, frozen=True):
    """End every request that was submitted under this name on behalf of this tenant."""

    tag: str
    tenant: str = ""


class DispatcherStatistics(Ask[dict[str, Any]], frozen=True):
    """Tell how many requests are live, and how many were admitted, refused, ended (by reason) and replayed."""


class LiveRequests(Ask[list["Open"]], frozen=True):
    """Tell what is live, so that a restarted detokenizer can take up where the old one fell."""


class CoreStarted(Message, frozen=True):
    """Told by a scheduler that starts with empty hands: live requests must be sent again."""


class Deltas(Message, frozen=True):
    """One step's news, by request."""

    requests: tuple[int, ...]
    deltas: tuple[Delta, ...]


class Paused(Message, frozen=True):
    """A program waits on the outside world (a tool, a human): nothing of it is queued or running.

    Its KV goes before that of others when slots run short.  tokens: int32, all that it has said so far, to be computed
    while nothing else is to do; empty if nothing is to be.  namespace: where its requests look in the cache (Submit).
    Passed on to the scheduler; lost without harm.
    """

    program: int
    tokens: bytes = b""
    namespace: str = ""


class Resumed(Message, frozen=True):
    """A program that paused goes on, or is over: nothing is computed for it ahead any more.  As with its next request.

    Passed on to the scheduler.
    """

    program: int


ToDispatcher = (
    Submit | Abort | AbortTag | LiveRequests | CoreStarted | Deltas | Paused | Resumed | DispatcherStatistics
)  # fmt: skip


# --- dispatcher -> scheduler --------------------------------------------------------------------------------------


class Generate(Message, frozen=True):
    """Run a request.  max_new_tokens 0 only fills the cache (and gives input log-probabilities if asked).

    prompt: int32.  output: int32, tokens it already has from an earlier life (they count as generated: positions,
    penalties, limits and grammar go on from there).  eos: int32 token ids that end it unless ignore_eos.
    next_logprobs: whether the log-probabilities of all tokens behind the prompt are wanted; max_new_tokens is 0 then.
    lease, released, joins, program, tenant, namespace: see Submit.
    """

    request: int
    prompt: bytes
    sampling: SamplingParams
    output: bytes = b""
    eos: bytes = b""
    next_logprobs: bool = False
    lease: int = 0
    released: tuple[int, ...] = ()
    joins: bytes = b""
    program: int = 0
    tenant: str = ""
    namespace: str = ""


class AbortAll(Message, frozen=True):
    """Retire every request: a dispatcher that starts has no ledger of them."""


class Stopped(Message, frozen=True):
    """Retire these requests without a terminal event: the detokenizer has found their stop strings."""

    requests: tuple[int, ...]


class Reconcile(Message, frozen=True):
    """End each of these that is not live here any more: the detokenizer restarted, and may have lost their ends."""

    requests: tuple[int, ...]


class Flushed(msgspec.Struct, frozen=True):
    """How many cached tokens were let go and how many stay because a request holds them."""

    freed: int
    held: int


class Flush(Ask[Flushed], frozen=True):
    """Empty the prefix cache of everything no request holds."""


# --- scheduler -> worker ------------------------------------------------------------------------------------------


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


class Reset(Message, frozen=True):
    """Forget every row: a scheduler starts with empty hands."""


class WorkerStatistics(Ask[dict[str, Any]], frozen=True):
    """Tell steps, seconds busy, and their parts."""


ToWorker = Step | Reset | WorkerStatistics


# --- worker -> scheduler ------------------------------------------------------------------------------------------


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

    rows: int32 [n], every row that sampled: the extends with `sample`, in order, then decode_rows.  tokens: int32 [n].
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


class SchedulerStatistics(Ask[dict[str, Any]], frozen=True):
    """Tell queue, rows, slots, cache hits, steps, retractions."""


ToScheduler = (
    Generate | Abort | AbortAll | Stopped | Reconcile | Flush | Paused | Resumed | StepDone | SchedulerStatistics
)  # fmt: skip


# --- scheduler and dispatcher -> detokenizer ----------------------------------------------------------------------


class Open(Message, frozen=True):
    """A request begins, or, after a restart, goes on behind `output` (int32), whose text the client already has.

    before: int32, the prompt's last tokens: what the first token's text is may depend on them.
    """

    request: int
    sampling: SamplingParams
    prompt_tokens: int
    output: bytes = b""
    before: bytes = b""


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request's end, as the scheduler knows it.

    drop: how many of the last tokens are not part of the text (an end-of-sequence or stop token).
    """

    request: int
    reason: FinishReason
    matched: int | None = None
    message: str = ""
    cached_tokens: int = 0
    completion_tokens: int = 0
    retractions: int = 0
    drop: int = 0


class Tokens(Message, frozen=True):
    """One step's tokens.

    requests: int64 [n].  offsets: int32 [n], each token's index in its request's output, so that a gap or a repeat is
    seen.  tokens: int32 [n].  logprobs: by request, only those that asked.  input_logprobs: by request.  cached: how
    many prompt tokens the cache held, of each request whose first token this is.  next_logprobs: by request, float32
    [vocabulary]; each of these requests is among `finished`.
    """

    step: int
    requests: bytes = b""
    offsets: bytes = b""
    tokens: bytes = b""
    logprobs: dict[int, TokenLogprob] = {}
    input_logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
    cached: dict[int, int] = {}
    finished: tuple[Finished, ...] = ()
    next_logprobs: dict[int, bytes] = {}


class Close(Message, frozen=True):
    """Forget a request at the detokenizer without a word: the dispatcher has already told the client."""

    request: int


ToDetokenizer = Open | Tokens | Close


# --- tokenizer ----------------------------------------------------------------------------------------------------


class Encode(Ask[list[bytes]], frozen=True):
    """Tokenize texts; the answer has one int32 array a text.  Special tokens' names in the text become their ids."""

    texts: tuple[str, ...]
    beginning: bool = False  # of a sequence: a tokenizer that begins sequences with a token of its own does so


class Decode(Ask[list[str]], frozen=True):
    """Turn int32 token arrays into text."""

    tokens: tuple[bytes, ...]
    skip_special_tokens: bool = True


class Heal(Ask[tuple[int, str]], frozen=True):
    """Tell how many of a prompt's last `limit` tokens (int32) to take back, and their text; or InvalidRequest."""

    tokens: bytes
    limit: int


ToTokenizer = Encode | Decode | Heal


# --- grammar ------------------------------------------------------------------------------------------------------


class Compile(Ask[None], frozen=True):
    """Prove that a constraint compiles, and keep it compiled; the answer is None, or InvalidRequest."""

    constraint: Constraint


ToGrammar = Compile


# --- scores -------------------------------------------------------------------------------------------------------


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation's tokens and their log-probabilities, given the prompt.

    tokens: those behind `start`, the first position at which any continuation differs from the prompt alone.
    unconditional: theirs without the prompt, if that was asked for; the first, which follows nothing, is 0.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float, ...] = ()
