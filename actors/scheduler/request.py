"""One request, as the scheduler holds it from arrival to end."""

from __future__ import annotations

import numpy as np

from ..joins import Line, read_line, whole_line
from ..messages import Begin, Generate, TokenLogprob
from ..sampling import SamplingParams
from .node import Node

__all__ = ["Request", "derived_seed"]


class Request:
    """What is asked for, and what is known so far.

    arrival: its number in order of arrival, kept through retractions.  since: the step from which it waits.
    home: where in the tree its tenant's prefixes are.
    output: int32, the tokens it has, so many `outputs`; the running ones are in its row.  tokens: prompt and output, so
    many (`length`) are computed before it samples.  cached: prompt tokens the cache held when it
    first began, -1 before.  matched: tokens the tree knew at matched_version.  end: the node they end at, if it is not
    joined.  leased: what it has on lease while it waits.  rank: its program's (`Programs`), -1 before it waits.
    patient: it is next for having waited.  expected: the length it was admitted with.

    base: how many columns stand before its own line of tokens; joined: whether any do, or its positions jump from the
    first one on.  lines: those that stand there, each behind those it needs.  held: those of them that are locked for
    it until it begins, and where they end.
    ends: where what the tree knew of each at ends_version ends, and how many tokens that is.
    whole: whose part it is, if it is computed for another's sake; nobody is told of it.
    joining: a join waits for it, so it writes its last token, too.
    """

    __slots__ = (
        "arrival", "base", "cached", "end", "ends", "ends_version", "expected", "failed", "held", "home",
        "input_logprobs", "joined", "joining", "lease", "leased", "length", "line", "lines", "logprobs_sent", "matched",
        "matched_version", "max_new_tokens", "next_logprobs", "number", "output", "outputs", "patient", "program",
        "prompt", "prompt_tokens", "rank", "retractions", "row", "sampling", "since", "stops", "tenant", "tokens",
        "whole",
    )  # fmt: skip

    def __init__(
        self, message: Generate, arrival: int, since: int, *, line: Line | None = None, whole: Request | None = None
    ) -> None:
        if line is None:
            line = read_line(message.prompt, message.joins) if message.joins else whole_line(message.prompt)
        self.line = line
        self.base = line.base
        self.joined = line.origin is not None
        self.lines = line.lines()
        self.held: dict[Line, Node] = {}
        self.ends: dict[Line, tuple[Node | None, int]] = {}
        self.ends_version = -1
        self.whole = whole
        self.number = message.request
        self.prompt = message.prompt
        self.prompt_tokens = len(message.prompt) // 4
        self.sampling: SamplingParams = message.sampling
        self.max_new_tokens = message.sampling.max_new_tokens
        self.next_logprobs = message.next_logprobs
        self.lease = message.lease
        self.joining = message.joining and self.max_new_tokens > 0
        self.program = message.program if self.max_new_tokens else 0  # what is only computed is over at once
        self.tenant = message.tenant
        self.home = message.namespace or message.tenant
        self._carry(message.output)
        ends = set(message.sampling.stop_token_ids)
        if not message.sampling.ignore_eos:
            ends.update(np.frombuffer(message.eos, np.int32).tolist())
        self.stops: tuple[int, ...] = tuple(sorted(ends))
        self.arrival = arrival
        self.since = since
        self.row = self.rank = -1
        self.patient = False
        self.expected = 0
        self.cached = -1
        self.retractions = 0
        self.failed = False  # its KV cannot be trusted
        self.matched = 0
        self.matched_version = -1
        self.end: Node | None = None
        self.leased: tuple[Node, ...] = ()
        self.input_logprobs: list[TokenLogprob] = []
        self.logprobs_sent = not 0 <= message.sampling.logprob_start < self.prompt_tokens

    @property
    def namespace(self) -> str:
        """Where the KV of its own line is known."""
        return self.namespace_of(self.line)

    def namespace_of(self, line: Line) -> str:
        """Name where the KV of a line is known; tenants share none."""
        return f"{line.namespace}\n{self.home}" if line.origin is not None else self.home

    @property
    def refusal(self) -> str:
        """Say why it can never begin, if so."""
        origin = self.line.origin
        if origin is not None and self.match_limit < self.base - origin.jumps:
            return f"logprob_start: {self.sampling.logprob_start} given, {self.base + 1} is the least behind this join"
        return ""

    @property
    def most_slots(self) -> int:
        """The most slots it can come to hold: the last token that is sampled is written only if a join waits for it."""
        return self.prompt_tokens + max(self.max_new_tokens - 1, 0) + self.joining

    @property
    def first_target(self) -> int:
        """The first prompt position whose log-probability is still wanted; the prompt's length if none is."""
        return self.prompt_tokens if self.logprobs_sent else max(1, self.sampling.logprob_start)

    @property
    def match_limit(self) -> int:
        """How many tokens may come from the cache.

        The last one is always computed, for its logits, and so is everything from the position before the first
        wanted log-probability.
        """
        return self.length - 1 if self.logprobs_sent else self.first_target - 1

    def begin(self) -> Begin:
        """Tell the worker about it."""
        sampling = self.sampling
        ends = b""
        if sampling.min_new_tokens:
            ends = np.array(self.stops, np.int32).tobytes()
        return Begin(
            self.number,
            derived_seed(self.number) if sampling.seed is None else sampling.seed,
            sampling,
            self.output,
            self.prompt if sampling.repetition_penalty != 1.0 else b"",
            ends,
            self.joined,
            0 if self.line.origin is None else self.line.origin.shift,
        )

    def positions(self, start: int, end: int) -> bytes:
        """Tell the positions of the columns [start, end), int32, if its shift does not: one before its own line."""
        origin = self.line.origin
        if origin is None or start >= self.base:
            return b""
        behind = range(origin.position, origin.position + end - self.base)
        return np.array([origin.lines[0].position - 1, *behind], np.int32).tobytes()

    def continue_with(self, output: bytes) -> None:
        """Take a retracted row's output over into the next life."""
        self._carry(output)
        self.retractions += 1
        self.row = -1
        self.matched_version = -1
        if not self.logprobs_sent:
            self.input_logprobs = []  # those are computed again, from the first one

    def _carry(self, output: bytes) -> None:
        """Know what earlier lives wrote: it is computed behind the prompt before the first new token is sampled."""
        self.output = output
        self.outputs = len(output) >> 2
        self.tokens = self.prompt + output
        self.length = len(self.tokens) >> 2


def derived_seed(request: int) -> int:
    """Spread a request's number over 63 bits (the finalizer of splitmix64), for requests that bring no seed."""
    mixed = (request + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ (mixed >> 31)) >> 1
