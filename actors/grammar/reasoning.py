"""A constraint that binds only the answer, behind reasoning that is free."""

from __future__ import annotations

from typing import Any

import msgspec
from llguidance import LLTokenizer

from ..reasoning import Markers

__all__ = ["behind_reasoning"]


def behind_reasoning(grammar: str, markers: Markers, tokens: LLTokenizer) -> str:
    """Put free text, up to the end marker, before llguidance's `grammar`.

    The text ends with the marker, and nothing else ends it: no end-of-sequence token is allowed in reasoning.  Where
    the prompt has not opened it, the answer may also come at once.  Up to two newlines may stand around the markers.
    """
    parts: dict[str, Any] = msgspec.json.decode(grammar)
    answer, *rest = parts["grammars"]
    end = _special(markers.end, tokens)
    if end:
        lines = ["start: @answer", "thought: TEXT " + end, "TEXT: /(?s:.*)/"]
    else:
        lines = ["start: @answer", f"thought[suffix={_quoted(markers.end)}]: /(?s:.*)/"]
    begin = _special(markers.begin, tokens) or _quoted(markers.begin)
    reasoned = "thought NEWLINES @answer"
    lines[0] = f"start: {reasoned}" if markers.opened else f"start: NEWLINES {begin} {reasoned} | @answer"
    lines.append(r"NEWLINES: /\n{0,2}/")
    outer = {"name": "reasoning", "lark_grammar": "\n".join(lines)}
    return msgspec.json.encode({**parts, "grammars": [outer, {**answer, "name": "answer"}, *rest]}).decode()


def _special(marker: str, tokens: LLTokenizer) -> str:
    """Name a marker that is one special token, as a grammar does; nothing if it is text."""
    ids = tokens.tokenize_bytes(marker.encode(), parse_special=True)
    return f"<[{ids[0]}]>" if len(ids) == 1 and tokens.is_special_token(ids[0]) else ""


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
