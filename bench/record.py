"""What benches of a CPU write down: their figures, and when, with what and on what they were measured."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

__all__ = ["write_record"]


def write_record(path: Path, **told: object) -> None:
    """Write one JSON."""
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpu": _processor(),
        **told,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _processor() -> str:
    """Name the CPU."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()
