"""What a bench runs on: a started engine, its model's sizes, its device's rates; and how figures are written down."""

from __future__ import annotations

import json
import platform
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from ...models.config import ModelConfig, read_config
from ..lasting import keep_lasting, take_turns
from .limits import ElementBytes, Rates, measure_rates
from .offline import warm_up

if TYPE_CHECKING:
    from ...actors.engine import Engine
    from .workload import Thoughts, Workload

__all__ = ["Setting", "device_name", "started", "versions", "write_report"]

_PACKAGES = ("callboard", "torch", "triton", "transformers", "numpy", "hypercorn")


@dataclass(frozen=True, slots=True)
class Setting:
    """A warm engine.  start_s: until the engine could be asked."""

    engine: Engine
    config: ModelConfig
    element_bytes: ElementBytes
    rates: Rates
    start_s: float

    def verify(self, workloads: Sequence[Workload | Thoughts]) -> None:
        """Raise ValueError for a workload that has a request too long for this engine, before any is run."""
        context = self.engine.limits.context_length
        for workload in workloads:
            if workload.longest > context:
                raise ValueError(
                    f"workload is '{workload}'; its longest request has {workload.longest:,} tokens, outputs included, "
                    f"and the context of {self.engine.name} holds {context:,}"
                )

    def told(self) -> dict[str, Any]:
        """Tell what was measured on what."""
        limits = self.engine.limits
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "device": device_name(limits.device),
            "dtype": limits.dtype,
            "kv_dtype": limits.kv_dtype,
            "model": self.engine.name,
            "kv_slots": limits.kv_slots,
            "max_rows": limits.max_rows,
            "replicas": limits.replicas,
            "start_s": self.start_s,
            "copy_bytes_a_second": self.rates.copy,
            "matmul_a_second": self.rates.matmul,
        }


@asynccontextmanager
async def started(engine: Engine) -> AsyncIterator[Setting]:
    """Start an engine as `callboard serve` does, measure its device, and let every size of batch run once."""
    begun = perf_counter()
    async with engine:
        start_s = perf_counter() - begun
        dtype: torch.dtype = getattr(torch, engine.limits.dtype)
        rates = measure_rates(torch.device(engine.limits.device), dtype)
        await warm_up(engine)
        keep_lasting()
        take_turns()
        kv_dtype: torch.dtype = getattr(torch, engine.limits.kv_dtype)
        element_bytes = ElementBytes(dtype.itemsize, kv_dtype.itemsize)
        yield Setting(engine, read_config(engine.folder), element_bytes, rates, start_s)


def versions() -> dict[str, str]:
    """Tell the versions of what figures depend on, as far as it is installed."""
    found = {"python": platform.python_version(), "cuda": torch.version.cuda or "none"}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # callboard itself may run from a checkout
            continue
    return found


def device_name(device: str) -> str:
    """Name a GPU as its maker does, and a CPU by its kind."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else f"cpu ({platform.machine()})"


def write_report(path: Path, told: dict[str, Any], figures: Sequence[dict[str, Any]]) -> None:
    """Write figures to a JSON file, behind what they were measured on."""
    path.write_text(json.dumps({**told, "figures": list(figures)}, indent=2) + "\n")
