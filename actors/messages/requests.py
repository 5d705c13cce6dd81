"""To the dispatcher: requests from clients, and what becomes of them."""

from __future__ import annotations

from typing import Any

from ..core.message import Ask, Message
from ..sampling import SamplingParams
from .results import Delta
from .texts import Open

__all__ = [
    "Abort",
    "AbortTag",
    "CoreStarted",
    "CoreStopped",
    "Deltas",
    "DispatcherStatistics",
    "Emptied",
    "LiveRequests",
    "Paused",
    "Resumed",
    "Submit",
    "ToDispatcher",
]


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
    joining: whether a join waits for what it says, so that all of it is to be in the cache, its last token too.
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
    joining: bool = False


class Abort(Message, frozen=True):
    """End a request early.  Idempotent; one that is unknown or has ended is ignored."""

    request: int
    reason: str = ""


class AbortTag(Message, frozen=True):
    """End every request that was submitted under this name on behalf of this tenant."""

    tag: str
    tenant: str = ""


class DispatcherStatistics(Ask[dict[str, Any]], frozen=True):
    """Tell how many requests are live, and how many were admitted, refused, ended (by reason) and replayed.

    Of several replicas also, in their order as `replicas`: whether each is up, how many requests are live there, and
    how many tokens these are placed for (`Load`).
    """


class LiveRequests(Ask[list[Open]], frozen=True):
    """Tell what is live, so that a restarted detokenizer can take up where the old one fell."""


class CoreStarted(Message, frozen=True):
    """Told by a scheduler that starts with empty hands: its replica's live requests must be sent again."""

    replica: int = 0


class CoreStopped(Message, frozen=True):
    """Told by a scheduler that ends: nothing is done at its replica before it starts again."""

    replica: int = 0


class Emptied(Message, frozen=True):
    """Told when the prefix caches are emptied: nobody's prefix is known anywhere any more."""


class Deltas(Message, frozen=True):
    """One step's news, by request; where it has several in one step, one behind the other.

    tokens: int32, those of all deltas once more, packed for the ledger; whose: int64, the request of each.  Of requests
    that end in this step there may be more or fewer.
    """

    requests: tuple[int, ...]
    deltas: tuple[Delta, ...]
    whose: bytes = b""
    tokens: bytes = b""


class Paused(Message, frozen=True):
    """A program waits on the outside world (a tool, a human): nothing of it is queued or running.

    Its KV goes before that of others when slots run short.  tokens: int32, all that it has said so far, to be computed
    while nothing else is to do; empty if nothing is to be.  namespace, joins: where its requests look in the cache, and
    where branches are joined in the tokens (Submit).
    Passed on to the scheduler; lost without harm.
    """

    program: int
    tokens: bytes = b""
    namespace: str = ""
    joins: bytes = b""


class Resumed(Message, frozen=True):
    """A program that paused goes on, or is over: nothing is computed for it ahead any more.  As with its next request.

    Passed on to the scheduler.
    """

    program: int


ToDispatcher = (
    Submit | Abort | AbortTag | LiveRequests | CoreStarted | CoreStopped | Deltas | Emptied | Paused | Resumed
    | DispatcherStatistics
)  # fmt: skip
