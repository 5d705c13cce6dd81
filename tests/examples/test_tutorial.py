"""The tutorial runs, as a page and as a notebook, and prints what it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

Load = Callable[[str], ModuleType]
ANEW = "if this is meant, `python docs/refresh.py` writes page and notebook anew"


@pytest.fixture
def refresh(load: Load) -> ModuleType:
    return load("docs/refresh.py")


def test_the_cells_run_in_order_and_print_what_page_and_notebook_say(refresh: ModuleType, root: Path) -> None:
    text = (root / "docs/tutorial.md").read_text(encoding="utf-8")
    done = asyncio.run(refresh.perform(refresh.cells(text)))
    assert refresh.page(done) == text, ANEW
    assert refresh.notebook(done) == (root / "docs/tutorial.ipynb").read_text(encoding="utf-8"), ANEW


def test_what_the_tutorial_prints_is_right(root: Path) -> None:
    text = (root / "docs/tutorial.md").read_text(encoding="utf-8")
    for words in (
        "assistant : The capital of Italy is Rome.", "calculator <- 2 * 2", "search engine <- Dracula author",
        "In summary, eating a balanced diet", "```text\n8.8.8.8\n", '"house": "Gryffindor",\n    "blood status": "Half',
        "Person(name='Mira', age=31, city='Lima')", "Answer 1: The capital of the United Kingdom is London.",
        "```text\n'Paris'\n", "'12 + 30 = 42'", "image: Engine reads text alone", "temperature: -1",
    ):  # fmt: skip
        assert words in text


def test_the_notebook_has_what_a_reader_of_notebooks_needs(root: Path) -> None:
    notebook = json.loads((root / "docs/tutorial.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(cell["outputs"] for cell in code)
    nbformat.validate(nbformat.from_dict(notebook))


def test_every_section_of_the_tutorial_we_learned_from_is_there(root: Path) -> None:
    text = (root / "docs/tutorial.md").read_text(encoding="utf-8")
    for section in (
        "Basic usage", "Multi-turn dialog", "Control flow", "Parallelism", "Constrained decoding", "Batching",
        "Streaming", "Complex prompts", "Multi-modal generation", "A server",
    ):  # fmt: skip
        assert f"\n## {section}\n" in text


def perform(refresh: ModuleType, page: str) -> list[Any]:
    return asyncio.run(refresh.perform(refresh.cells(page)))


def test_a_cell_runs_in_a_kernel_s_loop_and_its_last_expression_is_shown(refresh: ModuleType) -> None:
    source = (
        "import asyncio, sys\nx = await asyncio.sleep(0, 2)\nprint('x', asyncio.get_running_loop().is_running())\n"
        "print('unseen', file=sys.stderr)\nprint(get_ipython().kernel.implementation)\nx + 1"
    )
    page = f"Say.\n\n```python\n{source}\n```\n\nEnd.\n"
    done = perform(refresh, page)
    assert [(cell.output, cell.value) for cell in done] == [("", ""), ("x True\nipython\n", "3"), ("", "")]
    assert refresh.page(done) == page.replace("\n\nEnd", "\n\n```text\nx True\nipython\n3\n```\n\nEnd")
    assert [cell.source for cell in refresh.cells(refresh.page(done))] == [cell.source for cell in done]


def test_an_error_in_a_cell_is_an_error(refresh: ModuleType) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        perform(refresh, "```python\n1 / 0\n```\n")


def test_what_a_page_cannot_show_is_an_error(refresh: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"a page shows text alone, .*<b>"):
        perform(refresh, "```python\nfrom IPython.display import HTML\nHTML('<b>')\n```\n")
