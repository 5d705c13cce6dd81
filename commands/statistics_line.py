"""The line a second that `callboard serve` prints while there is work."""

from __future__ import annotations

from typing import Any

__all__ = ["statistics_line"]


def statistics_line(before: dict[str, Any], after: dict[str, Any], seconds: float) -> str:
    """Say what an engine did between two of its statistics; nothing if it was idle.

    Host times are microseconds a step: launch and collect are the worker's, plan is the scheduler's.
    """
    scheduler, worker = after["scheduler"], after["worker"]

    def grown(part: str, name: str) -> Any:
        # A part that was restarted counts from zero again.
        return max(0, after[part].get(name, 0) - before.get(part, after[part]).get(name, 0))

    given, computed = grown("scheduler", "output_tokens"), grown("scheduler", "computed_tokens")
    if not (scheduler["running"] or scheduler["waiting"] or given > 0 or computed > 0):
        return ""
    held = 1.0 - scheduler["slots_free"] / max(1, scheduler["slots"])
    line = (
        f"running {scheduler['running']}  waiting {scheduler['waiting']}  tokens/s {given / seconds:,.0f} out "
        f"{computed / seconds:,.0f} in  hits {scheduler['hit_rate']:.0%}  "
        f"slots {held:.0%} of {scheduler['slots']:,}"
    )
    if (steps := grown("worker", "steps")) > 0:
        host = {"launch": ("worker", "launch_s"), "collect": ("worker", "collect_s")}
        host["plan"] = ("scheduler", "host_seconds")
        told = " ".join(f"{name} {1e6 * grown(*source) / steps:.0f}" for name, source in host.items())
        busy = grown("worker", "forward_s") / seconds / max(1, len(after.get("replicas", ())))
        line += f"  step {1e3 * grown('worker', 'forward_s') / steps:.2f} ms ({told} us)  device {min(1.0, busy):.0%}"
    if worker.get("graphs"):
        line += f"  graphs {worker['graphs']} ({worker['graph_bytes'] / 2**20:,.0f} MiB)"
    if (retracted := grown("scheduler", "retractions")) > 0:
        line += f"  retracted {retracted}"
    return line
