"""What the dispatcher's ledger has of a live request."""

from __future__ import annotations

from .joins import read_line
from .messages import Generate, Open, Submit
from .placing import Place
from .sampling import SamplingParams

__all__ = ["LedgerEntry", "reach"]

_BEFORE = 16
"""How many of a prompt's last tokens the detokenizer is told."""


class LedgerEntry:
    """One live request: what it takes to run it again, and where.

    sampling: its seed and its limit filled in.  place: the replica it is at.  replays: how often it was sent again.
    """

    __slots__ = (
        "_joining", "_joins", "_lease", "_namespace", "_next_logprobs", "_program", "_prompt", "place", "replays",
        "request", "sampling", "tag", "tenant",
    )  # fmt: skip

    def __init__(self, submit: Submit, sampling: SamplingParams, place: Place) -> None:
        self.request = submit.request
        self.sampling = sampling
        self.place = place
        self.tag = submit.tag
        self.tenant = submit.tenant
        self.replays = 0
        self._prompt = submit.prompt
        self._next_logprobs = submit.next_logprobs
        self._joins = submit.joins
        self._joining = submit.joining
        self._lease = submit.lease
        self._program = submit.program
        self._namespace = submit.namespace

    def generate(self, eos: bytes, output: bytes = b"", released: tuple[int, ...] = ()) -> Generate:
        """Say to a scheduler what is to be done; output: what has been said already."""
        return Generate(
            self.request, self._prompt, self.sampling, output, eos, self._next_logprobs,
            lease=self._lease, released=released, joins=self._joins, program=self._program, tenant=self.tenant,
            namespace=self._namespace, joining=self._joining,
        )  # fmt: skip

    def opened(self, output: bytes = b"") -> Open:
        """Say to the detokenizer what it will be told of."""
        return Open(self.request, self.sampling, len(self._prompt) // 4, output, self._prompt[-4 * _BEFORE :])


def reach(tokens: bytes, joins: bytes) -> int:
    """Tell how far tokens reach: as far as they are many, or to the position behind them if that is further.

    Raises ValueError for joins that there cannot be.
    """
    columns = len(tokens) // 4
    return max(columns, read_line(tokens, joins).position) if joins else columns
