"""What an engine tells of itself in figures: its actors', and of several replicas' their totals."""

from __future__ import annotations

from typing import Any

import anyio

from .messages import DispatcherStatistics, SchedulerStatistics, WorkerStatistics
from .totals import totals
from .wires import Wires

__all__ = ["ask_statistics"]

_PATIENCE_S = 1.0
"""How long one of several replicas is waited for: one that has just died answers when it has started again."""


async def ask_statistics(wires: Wires) -> dict[str, Any]:
    """Ask everybody; see `Engine.statistics`."""
    requests = await wires.dispatcher.ask(DispatcherStatistics())
    replicas: list[dict[str, Any]] | None = requests.pop("replicas", None)
    if replicas is None:
        return {"requests": requests, **await _ask(wires, 0)}
    for number, told in enumerate(replicas):
        if told["up"]:
            with anyio.move_on_after(_PATIENCE_S):
                told.update(await _ask(wires, number))
    answers = [told for told in replicas if "worker" in told] or [await _ask(wires, 0)]
    parts = {name: totals([told[name] for told in answers]) for name in ("scheduler", "worker")}
    return {"requests": requests, **parts, "replicas": replicas}


async def _ask(wires: Wires, replica: int) -> dict[str, Any]:
    return {
        "scheduler": await wires.schedulers[replica].ask(SchedulerStatistics()),
        "worker": await wires.workers[replica].ask(WorkerStatistics()),
    }
