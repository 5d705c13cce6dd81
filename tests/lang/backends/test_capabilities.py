"""The table in the docs is what the backends say of themselves."""

from __future__ import annotations

from pathlib import Path

import callboard
from callboard.lang.backends.capabilities import EVERYTHING, Capabilities

from .dialects import DIALECTS

PAGE = Path(callboard.__file__).parent / "docs/backends.md"
HEAD = "| | " + " | ".join(dialect.name for dialect in DIALECTS) + " |\n|---|" + "---|" * len(DIALECTS)


def table() -> str:
    able: list[Capabilities] = [dialect.make("http://127.0.0.1:1").capabilities for dialect in DIALECTS]
    rows = {
        field: [getattr(one, field) for one in able]
        for field in ("select", "unconditional", "begun", "outside", "prefill", "images", "image_urls")
    }
    named = sorted(set().union(*(one.sampling for one in able if one.sampling != EVERYTHING)))
    rows |= {f"`{field}`": [field in one.sampling for one in able] for field in named}
    rows["all others"] = [one.sampling == EVERYTHING for one in able]
    cells = (f"| {name} | " + " | ".join("yes" if cell else "-" for cell in row) + " |" for name, row in rows.items())
    return "\n".join((HEAD, *cells))


def test_the_page_has_the_table():
    assert table() in PAGE.read_text(encoding="utf-8")
