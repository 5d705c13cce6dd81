"""The numbers under which an engine's programs are known to its scheduler."""

from __future__ import annotations

from itertools import count

__all__ = ["Leases"]


class Leases:
    """Number programs, and know where in the cache each of them looks.

    What a program leaves in the cache is kept under its number, as long as there is room, until it is over.  The
    scheduler is told so with the next request, for it matters to nobody sooner.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._released: list[int] = []
        self._namespaces: dict[int, str] = {}  # of those that look somewhere of their own

    def take(self, namespace: str = "") -> int:
        """Give a new number."""
        lease = next(self._numbers)
        self.look(lease, namespace)
        return lease

    def look(self, lease: int, namespace: str) -> None:
        """Remember where a program's requests look in the cache (`cache_namespace`)."""
        if lease and self.namespace(lease) != namespace:
            self._namespaces[lease] = namespace

    def namespace(self, lease: int) -> str:
        """Tell where its requests look; empty if nowhere of their own."""
        return self._namespaces.get(lease, "")

    def release(self, lease: int) -> None:
        """Know that a program is over."""
        self._released.append(lease)
        self._namespaces.pop(lease, None)

    def released(self) -> tuple[int, ...]:
        """Give those that are over and were not given before."""
        released, self._released = tuple(self._released), []
        return released
