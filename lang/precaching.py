"""What all calls of a program begin with, computed before the first of them needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..actors.backend import Backend, Prompt
from .performer import Call
from .tracing import trace_body

__all__ = ["precache", "precache_prefix"]

_PLAIN = (str, int, float, bool, type(None))  # whose equality can be trusted


async def precache(calls: Sequence[Call]) -> str:
    """Trace what these calls of one program begin with, let the backend compute it, and give it; "" if it is nothing.

    Arguments that are equal in all of them are known; for the others stand marks, and the trace ends at the first.
    """
    first = calls[0]
    known = {name: value for name, value in first.keywords.items() if all(_same(name, value, call) for call in calls)}
    unknown = [name for name in first.keywords if name not in known]
    return await precache_prefix(first, known, unknown)


async def precache_prefix(call: Call, known: dict[str, Any], unknown: Sequence[str]) -> str:
    """Do it for one call whose arguments are given apart; the backend is entered."""
    backend: Backend = call.backend
    state = trace_body(call.name, call.body, known, unknown, backend.chat_template, prefix_only=True)
    prefix = state.graph.prefix
    if prefix:
        tokens = await backend.encode(prefix)
        told = Prompt(tail=prefix, text=prefix) if tokens is None else Prompt(tokens=tokens, text=prefix)
        await backend.prefill(told)
    return prefix


def _same(name: str, value: Any, call: Call) -> bool:
    other = call.keywords.get(name, call)
    return other is value or (type(other) is type(value) and isinstance(value, _PLAIN) and other == value)
