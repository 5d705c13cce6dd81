"""Write into the pages what their programs print: `python docs/refresh.py`; a test keeps page and programs equal.

Three things are written, and nothing else is touched: behind each Python block of the tutorial what it prints; the
tutorial's notebook, the same cells with the same outputs; and in the other pages every block that a comment precedes,
`<!-- printed by FILE -->` (what the program prints) or `<!-- FILE -->` (the file itself).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

__all__ = ["Cell", "cells", "embed", "notebook", "page", "perform", "printed"]

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs/tutorial.md"
NOTEBOOK = ROOT / "docs/tutorial.ipynb"
PAGES = ("docs/cookbook.md", "docs/services.md")

_CODE = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
_EMBEDDED = re.compile(r"<!-- (printed by )?([\w./-]+\.py) -->\n```(\w+)\n.*?```\n", re.DOTALL)


class Cell(NamedTuple):
    """A piece of the tutorial: Markdown, or code with what it printed and the value of its last expression."""

    source: str
    code: bool = False
    output: str = ""
    value: str = ""


def cells(text: str) -> list[Cell]:
    """Cut a page into Markdown and code; what the page says is printed becomes the code's output."""
    found: list[Cell] = []
    at = 0
    for match in _CODE.finditer(text):
        found += [Cell(text[at : match.start()].strip()), Cell(match[1].rstrip(), code=True, output=match[2] or "")]
        at = match.end()
    return [cell for cell in (*found, Cell(text[at:].strip())) if cell.source]


async def perform(given: list[Cell]) -> list[Cell]:
    """Run the code cells in order, as a notebook, in a Jupyter kernel of their own, whose loop is running already.

    A cell that fails is nbclient's CellExecutionError; a ValueError is a cell that shows what a page cannot.
    """
    book = nbformat.reads(notebook([cell._replace(output="", value="") for cell in given]), as_version=4)
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=f"{folder}/kernel.json")
        client = NotebookClient(book, km=kernel, timeout=300, resources={"metadata": {"path": folder}})
        await client.async_execute(cleanup_kc=True, env=os.environ | {"IPYTHONDIR": folder})
    return [_performed(cell, entry) for cell, entry in zip(given, book.cells, strict=True)]


def _performed(cell: Cell, entry: Any) -> Cell:
    """Give a cell the outputs that its kernel sent; what it said on stderr, progress for instance, is left out."""
    said, values = "", []
    for output in entry.get("outputs", ()):
        match output:
            case {"output_type": "stream", "name": "stdout", "text": text}:
                said += text
            case {"output_type": "stream", "name": "stderr"}:
                pass
            case {"output_type": "execute_result", "data": {"text/plain": text, **others}} if not others:
                values.append(text)
            case _:
                raise ValueError(f"a page shows text alone, and this cell showed {dict(output)}: {cell.source}")
    return cell._replace(output=said, value="".join(values)) if cell.code else cell


def page(given: list[Cell]) -> str:
    """Write cells as a page: each output stands in a block behind its code."""
    parts: list[str] = []
    for cell in given:
        parts.append(f"```python\n{cell.source}\n```" if cell.code else cell.source)
        if output := _lines(cell.output) + _lines(cell.value):
            parts.append(f"```text\n{output}```")
    return "\n\n".join(parts) + "\n"


def notebook(given: list[Cell]) -> str:
    """Write cells as a notebook (nbformat 4.5), byte for byte the same for the same cells."""
    written: list[dict[str, Any]] = []
    for number, cell in enumerate(given):
        kind = "code" if cell.code else "markdown"
        entry = {"cell_type": kind, "id": f"cell-{number:02}", "metadata": {}, "source": _split(cell.source)}
        if cell.code:
            count = sum(earlier.code for earlier in given[: number + 1])
            entry |= {"execution_count": count, "outputs": _outputs(cell, count)}
        written.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": written, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _outputs(cell: Cell, count: int) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    if cell.output:
        outputs.append({"output_type": "stream", "name": "stdout", "text": _split(cell.output)})
    if cell.value:
        data = {"text/plain": _split(cell.value)}
        outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    return outputs


def _split(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _lines(text: str) -> str:
    """End a text with its line, so that blocks close on a line of their own."""
    return text if not text or text.endswith("\n") else text + "\n"


def printed(path: Path) -> str:
    """Give what a program's `main`, plain or async, prints on the default backend."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        begun = module.main()
        if inspect.iscoroutine(begun):
            asyncio.run(begun)
    return said.getvalue()


def embed(text: str) -> str:
    """Fill a page's marked blocks anew."""

    def fill(match: re.Match[str]) -> str:
        path = ROOT / match[2]
        content = printed(path) if match[1] else path.read_text(encoding="utf-8")
        return f"<!-- {match[1] or ''}{match[2]} -->\n```{match[3]}\n{content}```\n"

    return _EMBEDDED.sub(fill, text)


def main() -> None:
    """Write every page and the notebook."""
    done = asyncio.run(perform(cells(TUTORIAL.read_text(encoding="utf-8"))))
    TUTORIAL.write_text(page(done), encoding="utf-8")
    NOTEBOOK.write_text(notebook(done), encoding="utf-8")
    for name in PAGES:
        path = ROOT / name
        path.write_text(embed(path.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"written: {TUTORIAL.name}, {NOTEBOOK.name}, {', '.join(PAGES)}\n")


if __name__ == "__main__":
    main()
