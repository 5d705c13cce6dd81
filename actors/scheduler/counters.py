"""What has happened in a scheduler so far."""

from __future__ import annotations

import msgspec

__all__ = ["Counters"]


class Counters(msgspec.Struct):
    """What has happened so far.  prompt and cached count a request's first life only; computed counts every chunk.

    decode_kv_tokens: tokens that decoding rows attended to, each row for itself; saved: how many of these were not read
    again because a group read them.  groups and group_members are summed over the steps that had any; largest_group is
    since the cache was last emptied.
    """

    requests: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    surplus_tokens: int = 0
    forced_tokens: int = 0
    retractions: int = 0
    decode_kv_tokens: int = 0
    saved_kv_tokens: int = 0
    grouped_steps: int = 0
    groups: int = 0
    group_members: int = 0
    largest_group: int = 0
    host_seconds: float = 0.0

    @property
    def prompts_saved(self) -> float:
        """How many whole prompts of mean length the cache has saved."""
        return self.requests * self.cached_tokens / max(1, self.prompt_tokens)
