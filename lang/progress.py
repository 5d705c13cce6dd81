"""A progress bar in the terminal."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Any, Self

__all__ = ["Progress"]

REFRESH_S = 0.05


class Progress:
    """Show on stderr how many of `total` are done; shown=False shows nothing and costs nothing."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total = total
        self._shown = shown
        self._bar: Any = None
        self._task: Any = None
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            console = Console(stderr=True, force_jupyter=False)  # which else asks for widgets, in a notebook's outputs
            self._bar = Bar(*columns, console=console, auto_refresh=False)
            self._bar.start()
            self._task = self._bar.add_task("programs", total=self._total)
        return self

    def advance(self) -> None:
        """Count one more."""
        if self._bar is not None:
            self._bar.advance(self._task)
            if (now := monotonic()) - self._drawn >= REFRESH_S:
                self._drawn = now
                self._bar.refresh()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.refresh()
            self._bar.stop()
