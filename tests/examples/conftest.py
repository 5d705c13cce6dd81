"""One engine for all examples: the default one, in its background loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import callboard
from callboard.lang.house import HOUSE


@pytest.fixture(scope="package", autouse=True)
def engine() -> Iterator[None]:
    """Let the embedded engine start when the first program asks for it, and end behind the last."""
    HOUSE.default = None
    yield
    HOUSE.close()
    HOUSE.default = None


@pytest.fixture(scope="package")
def root() -> Path:
    return Path(callboard.__file__).parent


@pytest.fixture
def load(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a file of the repository, which can import those beside it; afterwards they are forgotten."""

    def imported(path: str) -> ModuleType:
        file = root / path
        monkeypatch.syspath_prepend(str(file.parent))
        return import_module(file.stem)

    yield imported
    ours = {str(root / "examples"), str(root / "docs")}
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(tuple(ours)):
            del sys.modules[name]
