"""Server-sent events, as bytes come in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec

from ...actors.errors import GenerationFailed
from .fault import Fault

__all__ = ["EVENT_BYTES", "events"]

EVENT_BYTES = 64 << 20
"""The longest event that is read; SGLang's carry the whole text so far."""


async def events(chunks: AsyncIterator[bytes], who: str) -> AsyncGenerator[Any, None]:
    """Give the JSON of each `data:` event, until [DONE] or the end.

    Lines end at newlines and nowhere else: text in them may hold characters that Python calls line ends too.
    """
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        if len(buffer) > EVENT_BYTES:
            raise Fault(GenerationFailed(f"{who} sent an event of more than {EVENT_BYTES} bytes"))
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            try:
                yield msgspec.json.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Fault(GenerationFailed(f"{who} sent an event that is no JSON: {bytes(data[:80])!r}")) from error
