"""To the scheduler: requests to run and to end, what the cache is to let go."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.message import Ask, Message
from ..sampling import SamplingParams
from .requests import Abort, Paused, Resumed
from .steps import StepDone

__all__ = [
    "AbortAll",
    "Flush",
    "Flushed",
    "Generate",
    "Reconcile",
    "Released",
    "SchedulerStatistics",
    "Stopped",
    "ToScheduler",
]


class Generate(Message, frozen=True):
    """Run a request.  max_new_tokens 0 only fills the cache (and gives input log-probabilities if asked).

    prompt: int32.  output: int32, tokens it already has from an earlier life (they count as generated: positions,
    penalties, limits and grammar go on from there).  eos: int32 token ids that end it unless ignore_eos.
    next_logprobs: whether the log-probabilities of all tokens behind the prompt are wanted; max_new_tokens is 0 then.
    lease, released, joins, program, tenant, namespace, joining: see Submit.
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
    joining: bool = False


class AbortAll(Message, frozen=True):
    """Retire every request: a dispatcher that starts has no ledger of them."""


class Released(Message, frozen=True):
    """Keep nothing for these programs any more: they are over (`Submit.released`, where no request goes along)."""

    programs: tuple[int, ...]


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


class SchedulerStatistics(Ask[dict[str, Any]], frozen=True):
    """Tell queue, rows, slots, cache hits, steps, retractions."""


ToScheduler = (
    Generate | Abort | AbortAll | Released | Stopped | Reconcile | Flush | Paused | Resumed | StepDone
    | SchedulerStatistics
)  # fmt: skip
