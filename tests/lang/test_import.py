"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import callboard


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_importing_the_package_loads_no_torch_and_starts_no_thread() -> None:
    code = "import sys, threading, callboard; print('torch' in sys.modules, threading.active_count())"
    assert _run(code) == "False 1"


def test_the_language_loads_no_torch() -> None:
    assert _run("import sys, callboard; callboard.function, callboard.gen; print('torch' in sys.modules)") == "False"


def test_every_public_name_is_there() -> None:
    for name in callboard.__all__:
        if name != "Engine":  # loads torch
            assert getattr(callboard, name) is not None
    assert dir(callboard) == sorted(callboard.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        callboard.no_such_name  # noqa: B018
