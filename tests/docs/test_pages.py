"""What the pages show runs as it stands, on the model that ships."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import callboard

ROOT = Path(callboard.__file__).parent


def blocks(page: str) -> str:
    """Join a page's Python blocks; those that speak to a server are tested with the gateway."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return "\n".join(block for block in found if "import openai" not in block)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", ["Rome", "Tokyo", "Paris"]),
        ("docs/async-lm.md", ["Paris", "torch.Size([2, 4096])", "torch.Size([4096])"]),
        ("docs/sglang.md", ["Paris"]),
    ],
)
def test_a_page_runs_and_prints_what_it_says(page: str, words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(blocks(page), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for word in words:
        assert word in done.stdout, done.stdout


def test_every_page_on_the_map_exists() -> None:
    text = (ROOT / "docs/map.md").read_text(encoding="utf-8")
    pages = re.findall(r"\]\(([\w./-]+\.md)\)", text)
    assert len(pages) >= 10
    assert [page for page in pages if not (ROOT / "docs" / page).exists()] == []
    files = re.findall(r"`((?:lang|actors|kernels|models|bench)/[\w./-]*)`", text)
    assert [path for path in files if not (ROOT / path).exists()] == []
