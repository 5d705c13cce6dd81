"""What Prometheus reads at /metrics: the gateway's own counts and the engine's statistics, in a registry of its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["Metrics", "flat"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Count exchanges by route and status, and time them; and by tenant, for the administrator alone.

    tenants: those that have a key.
    """

    def __init__(self, *, tenants: Collection[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._tenants = CollectorRegistry()
        self._tenant_exchanges = Counter(
            "callboard_http_tenant_exchanges", "Exchanges that ended, by tenant.", ("tenant",), registry=self._tenants
        )
        self._by_tenant = {name: self._tenant_exchanges.labels(name) for name in tenants}
        self.live = Gauge("callboard_http_live", "Exchanges in progress.", registry=self.registry)
        self._exchanges = Counter(
            "callboard_http_exchanges", "Exchanges that ended.", ("route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "callboard_http_seconds",
            "From the request to its end.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._first = Histogram(
            "callboard_http_first_event_seconds",
            "From the request to the first event of its stream.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._engine = _EngineStatistics()
        self.registry.register(self._engine)

    def ended(self, route: str, status: int, seconds: float, tenant: str = "") -> None:
        """Count an exchange; status 0 is a client that left before an answer."""
        if (count := self._by_tenant.get(tenant)) is not None:
            count.inc()
        self._exchanges.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def first_event(self, route: str, seconds: float) -> None:
        """Count the wait for a stream's first event."""
        self._first.labels(route).observe(seconds)

    def text(self, statistics: Mapping[str, Any] | None, *, tenants: bool = False) -> bytes:
        """Give the page; `statistics` is the engine's, or None if it did not answer.  tenants: who they are, too."""
        self._engine.statistics = statistics
        page = generate_latest(self.registry)
        return page + generate_latest(self._tenants) if tenants and self._by_tenant else page


# What only grows, by part; of the requests, everything but what is live.
_GROWING = {
    "scheduler": {
        "requests", "steps", "prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens", "surplus_tokens",
        "forced_tokens", "decode_kv_tokens", "decode_kv_tokens_read", "grouped_steps", "groups",
        "group_members", "retractions", "evicted_tokens",
        "host_seconds",
    },
    "worker": {
        "steps", "tokens_sampled", "rows_failed", "busy_s", "forward_s", "launch_s", "collect_s", "wall_s",
        "kv_bytes_read", "kv_bytes_unshared",
    },
}  # fmt: skip
_TOLD = {
    "scheduler_waiting": "Requests that have no row yet.",
    "scheduler_running": "Requests that have a row.",
    "scheduler_hit_rate": "The share of prompt tokens that came out of the cache, since the start.",
    "scheduler_slots": "Tokens that the KV pool holds.",
    "scheduler_slots_free": "Slots of the KV pool that hold nothing.",
    "scheduler_slots_tree": "Slots of the KV pool that the prefix cache holds.",
    "scheduler_slots_leased": "Slots of the KV pool that leases keep for live programs and waiting requests.",
    "scheduler_leases": "Programs that hold a lease.",
    "scheduler_cached_tokens": "Prompt tokens that came out of the cache, or were computed for another request first.",
    "scheduler_prompts_saved": "Whole prompts of mean length that this has saved.",
    "scheduler_decode_kv_tokens": "Tokens that decoding rows attended to, each row for itself.",
    "scheduler_decode_kv_tokens_read": "How many of these were read, groups reading theirs once.",
    "scheduler_grouped_steps": "Steps in which rows attended together.",
    "scheduler_groups": "Groups of rows that attended together, summed over steps.",
    "scheduler_group_members": "Rows in these groups, summed over steps.",
    "scheduler_mean_group_size": "Rows in a group, on average since the start.",
    "scheduler_largest_group": "Rows in the largest group since the cache was last emptied.",
    "scheduler_retractions": "Rows that were taken from a request because slots ran out.",
    "scheduler_host_seconds": "What the scheduler has worked.",
    "scheduler_computed_tokens": "Prompt tokens computed.",
    "scheduler_output_tokens": "Tokens given.",
    "worker_device_busy": "The share of the time since the start that the device worked.",
    "worker_last_second_device_busy": "The share of the last second that the device worked.",
    "worker_last_second_prompt_tokens": "Prompt tokens computed in the last second.",
    "worker_last_second_output_tokens": "Tokens sampled in the last second.",
    "worker_last_second_steps": "Steps that ended in the last second.",
    "worker_recent_device_ms_p50": "What half of the last steps took the device at most, in milliseconds.",
    "worker_recent_gap_us_p90": "How long the device waited at most before nine in ten steps, in microseconds.",
    "worker_forward_s": "Seconds that the device has worked.",
    "worker_launch_s": "Seconds that the host worked to launch steps, waiting left out.",
    "worker_collect_s": "Seconds that the host worked to collect them, waiting left out.",
    "worker_kv_bytes_read": "Bytes of keys and values that decoding rows have read.",
    "worker_kv_bytes_unshared": "What they would have read if each had read its own.",
    "up": "Whether it takes requests; 0 while it starts again.",
    "live": "Requests that were placed there and are not over.",
    "tokens": "Tokens they were placed for: those of their prompts that it was not sent before, and what they may say.",
    "worker_graphs": "CUDA graphs captured of steps that only decode.",
    "worker_prompt_graphs": "CUDA graphs captured of steps with prompts.",
    "worker_graph_bytes": "Device memory that captures have taken.",
}


class _EngineStatistics(Collector):
    """Turn the engine's nested statistics into gauges and counters named by their path; replicas' have a label."""

    def __init__(self) -> None:
        self.statistics: Mapping[str, Any] | None = None

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        up = 0 if self.statistics is None else 1
        yield GaugeMetricFamily("callboard_engine_up", "Whether the engine answered.", value=up)
        for name, value in flat(self.statistics or {}):
            yield _family(name)(f"callboard_{name}", _told(name), value=value)
        yield from self._by_replica()

    def _by_replica(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """Tell of each replica, under names of their own: those above are totals, and adding both up would be wrong."""
        replicas: Sequence[Mapping[str, Any]] = (self.statistics or {}).get("replicas", ())
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for number, statistics in enumerate(replicas):
            for name, value in flat(statistics):
                if name not in families:
                    told = f"By replica: {_told(name)[0].lower()}{_told(name)[1:]}"
                    families[name] = _family(name)(f"callboard_replica_{name}", told, labels=("replica",))
                families[name].add_metric((str(number),), value)
        return families.values()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()  # the names are the engine's to choose


def _told(name: str) -> str:
    return _TOLD.get(name, f"The engine's {name.replace('_', ' ')}.")


def _family(name: str) -> type[GaugeMetricFamily | CounterMetricFamily]:
    part, _, rest = name.partition("_")
    grows = rest != "live" if part == "requests" else rest in _GROWING.get(part, ())
    return CounterMetricFamily if grows else GaugeMetricFamily


def flat(statistics: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Give each number in nested statistics with its path, joined by underscores."""
    for key, value in statistics.items():
        name = re.sub(r"\W", "_", f"{path}_{key}" if path else str(key))
        if isinstance(value, Mapping):
            yield from flat(cast("Mapping[str, Any]", value), name)
        elif isinstance(value, (int, float)):
            yield name, float(value)
