"""What the requests of a run had in common, and what that saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Sharing", "sharing_told"]


@dataclass(frozen=True, slots=True)
class Sharing:
    """What one run saved.

    prompts, prompt_tokens, cached_tokens: asked for, and how many tokens came out of the cache or were computed for a
    sibling first.  kv_bytes_read, kv_bytes_unshared: keys and values that decoding rows read, and would have read each
    for itself; 0 from a device that does not count.  groups, members, largest: rows that attended together, summed over
    steps, and the largest.  leases, leased_slots: held at its end.
    """

    prompts: int
    prompt_tokens: int
    cached_tokens: int
    kv_bytes_read: int
    kv_bytes_unshared: int
    groups: int
    members: int
    largest: int
    leases: int
    leased_slots: int

    @classmethod
    def between(cls, before: dict[str, Any], after: dict[str, Any]) -> Sharing:
        """Read it out of an engine's statistics from before and behind the run."""

        def grown(part: str, name: str) -> int:
            return after[part].get(name, 0) - before[part].get(name, 0)

        return cls(
            prompts=grown("scheduler", "requests"),
            prompt_tokens=grown("scheduler", "prompt_tokens"),
            cached_tokens=grown("scheduler", "cached_tokens"),
            kv_bytes_read=grown("worker", "kv_bytes_read"),
            kv_bytes_unshared=grown("worker", "kv_bytes_unshared"),
            groups=grown("scheduler", "groups"),
            members=grown("scheduler", "group_members"),
            largest=after["scheduler"]["largest_group"],
            leases=after["scheduler"]["leases"],
            leased_slots=after["scheduler"]["slots_leased"],
        )

    def figures(self) -> dict[str, Any]:
        """Give it as a report's fields."""
        return {
            "cached_tokens": self.cached_tokens,
            "prompts_saved": self.prompts * self.cached_tokens / max(1, self.prompt_tokens),
            "prompt_tokens": self.prompt_tokens,
            "kv_bytes_read": self.kv_bytes_read or None,
            "kv_bytes_unshared": self.kv_bytes_unshared or None,
            "mean_group_size": self.members / max(1, self.groups),
            "largest_group": self.largest,
            "leases": self.leases,
            "leased_slots": self.leased_slots,
        }


def sharing_told(line: dict[str, Any]) -> str:
    """Say of a report's line what was shared; nothing if nothing was."""
    parts: list[str] = []
    if line["cached_tokens"]:
        share = line["cached_tokens"] / max(1, line["prompt_tokens"])
        parts.append(f"{share:.0%} of prompt tokens saved ({line['prompts_saved']:,.1f} prompts)")
    read, unshared = line["kv_bytes_read"], line["kv_bytes_unshared"]
    if read and unshared and unshared > read:
        parts.append(f"KV read {_size(read)} instead of {_size(unshared)}, {unshared / read:.1f}x less")
    if line["largest_group"]:
        parts.append(f"groups of {line['mean_group_size']:.1f} rows, at most {line['largest_group']}")
    if line["leases"]:
        parts.append(f"{line['leases']} leases of {line['leased_slots']:,} slots")
    return "; ".join(parts)


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.3g} TB"
