"""The events of an OpenAI stream: what does not change from chunk to chunk is encoded once."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Chunks"]


class Chunks:
    """Write chunks that share a head (id, object, created, model).  usage: whether each has that field, null."""

    def __init__(self, head: dict[str, Any], *, usage: bool) -> None:
        self._before = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['
        self._after = b'],"usage":null}\n\n' if usage else b"]}\n\n"

    def choice(self, choice: msgspec.Struct) -> bytes:
        """Give the event of one choice's news."""
        return b"".join((self._before, msgspec.json.encode(choice), self._after))

    def usage(self, counts: dict[str, Any]) -> bytes:
        """Give the event that counts tokens; it has no choice."""
        return b"".join((self._before, b'],"usage":', msgspec.json.encode(counts), b"}\n\n"))
