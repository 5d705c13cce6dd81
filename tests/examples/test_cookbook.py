"""Each program of the cookbook runs on the model that ships and prints what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import callboard

ROOT = Path(callboard.__file__).parent
PROGRAMS = sorted(path.stem for path in (ROOT / "examples/cookbook").glob("*.py"))


def said(program: str) -> str:
    """Give what the page says that a program prints."""
    page = (ROOT / "docs/cookbook.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- printed by examples/cookbook/{program}\.py -->\n```text\n(.*?)```\n", page, re.DOTALL)
    assert found, f"docs/cookbook.md does not show what {program} prints"
    return found[1]


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_prints_what_the_page_says(program: str, load: Callable[[str], ModuleType]) -> None:
    assert load("docs/refresh.py").printed(ROOT / f"examples/cookbook/{program}.py") == said(program)


# (what is printed, so that a page written anew cannot make nonsense right)
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("agent", ["408", "42", "Mira is a nurse who lives in Lima.", "Jonas is a teacher who lives in Oslo.", "12"]),
        ("best_of_n", ["Norway: Oslo", "Bhutan: Thimphu", "Chile: Santiago"]),
        ("chat_memory", ["Your name is Mira.", "The capital of Japan is Tokyo.", "kept: 1 fact"]),
        ("extraction", ["Worker(name='Jonas', age=44, city='Oslo', job='teacher')"]),
        ("judge", ["service 0.0, quality 1.0, price 1.0", "service 1.0, quality 1.0, price 0.0"]),
        ("map_reduce", ["31 + 9 + 24 + 18", "40 + 42", "together they are 82"]),
        (
            "retrieval",
            ["retrieved: You live in Lima.", "retrieved: Your name is Mira.", "nothing: I do not know"],
        ),
        ("self_consistency", ["48 + 29? 77 ", "Australia? Canberra ", "gold? Au "]),
        ("tree_of_thought", ["kept: Norway, Germany, Greece", "The capital of Greece is Athens.  1. The Acropolis"]),
    ],
)
def test_what_it_prints_is_right(program: str, words: list[str]) -> None:
    assert program in PROGRAMS
    assert [word for word in words if word not in said(program)] == []
