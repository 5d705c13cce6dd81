"""Several replicas' statistics as one's: sums, but for what is a share, a mean or a quantile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

__all__ = ["totals"]

# What holds for all of them together if it is taken from the one that has most: half of all steps take at most as long
# as half of the slowest replica's do.
_GREATEST = ("largest_group", "wall_s")
_QUANTILES = ("_p10", "_p50", "_p90")
_MEANS = ("device_busy", "output_share")
_SHARES = {
    "hit_rate": ("cached_tokens", "prompt_tokens"),
    "mean_group_size": ("group_members", "groups"),
    "host_seconds_a_step": ("host_seconds", "steps"),
}


def totals(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Give what several schedulers, or several workers, tell as if they were one.

    A name that one of them does not have yet is the others'.  What is neither a number nor a mapping is the first's.
    """
    if len(parts) == 1:
        return dict(parts[0])
    names = dict.fromkeys(name for part in parts for name in part)
    told = {name: _total(name, [part[name] for part in parts if name in part]) for name in names}
    for name, (part, whole) in _SHARES.items():
        if name in told:
            told[name] = told[part] / max(1, told[whole])
    return told


def _total(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return totals(cast("Sequence[Mapping[str, Any]]", values))
    if isinstance(first, bool) or not isinstance(first, (int, float)):
        return first
    if name in _GREATEST or name.endswith(_QUANTILES):
        return max(values)
    return sum(values) / len(values) if name in _MEANS else sum(values)
