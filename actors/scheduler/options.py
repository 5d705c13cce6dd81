"""What a scheduler is told when it is made."""

from __future__ import annotations

from typing import Literal

import msgspec

from .groups import GroupOptions

__all__ = ["SchedulerOptions"]


class SchedulerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and habits of one scheduler.

    slots: tokens the KV pool holds.  rows: requests computed at once.
    chunk_tokens: tokens a step: decode rows count one each, prompts get the rest, but never less than a quarter.
    in_flight: steps sent ahead of their results; 1 is no overlap.
    policy: "first-come", or "longest-prefix" (the request whose prompt the cache knows best).
    window: waiting requests a step looks at, thrice.  patience: steps after which waiting requests get every fourth
    admission, whatever the policy prefers.  promotion: steps after which a program with twice as many requests out
    counts as much (`Programs`).
    share_tokens: a request waits for a prompt being computed if it can then reuse at least so many more tokens.
    reserve_all: outputs of up to so many tokens are reserved whole; of longer ones, the share they usually need.
    reserve_least: tokens a running request always has in reserve, unless it needs fewer.
    prefix_cache: whether the tree is given anything; without it every prompt is computed.
    eager_tokens: how many tokens of what paused programs have said are computed in a step of their own while there is
    nothing else to do; 0 computes none.
    weights: what share of the tokens tenants get that wait at the same time, by name; 1 for those it does not name.
    share_attention: whether the worker is told which rows share which slots; groups: from when on.
    replica: which of the engine's `replicas` schedulers it is.
    """

    slots: int
    rows: int = 64
    chunk_tokens: int = 512
    in_flight: int = 2
    policy: Literal["longest-prefix", "first-come"] = "longest-prefix"
    window: int = 32
    patience: int = 512
    promotion: int = 128
    share_tokens: int = 16
    reserve_all: int = 64
    reserve_least: int = 16
    prefix_cache: bool = True
    eager_tokens: int = 32
    share_attention: bool = True
    groups: GroupOptions = GroupOptions()
    weights: dict[str, float] = {}
    replica: int = 0
    replicas: int = 1

    def verify(self) -> None:
        """Raise ValueError naming the first option that is out of range."""
        for field, least in _LEAST:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{field}: {value!r} given, an integer of at least {least} needed")
        self.groups.verify()
        for name, weight in self.weights.items():
            if not 0 < weight < float("inf"):
                raise ValueError(f"weights: {weight!r} given for {name!r}, a number above 0 needed")
        if self.policy not in {"longest-prefix", "first-come"}:
            raise ValueError(f"policy: {self.policy!r} is neither 'longest-prefix' nor 'first-come'")


_LEAST = (
    ("slots", 1),
    ("rows", 1),
    ("chunk_tokens", 1),
    ("in_flight", 1),
    ("window", 1),
    ("patience", 1),
    ("promotion", 1),
    ("share_tokens", 1),
    ("reserve_all", 0),
    ("eager_tokens", 0),
    ("reserve_least", 1),
)
