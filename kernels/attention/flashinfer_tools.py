"""Whether flashinfer can be used on this machine, found out without importing it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

__all__ = ["flashinfer_lacks"]


def flashinfer_lacks(
    find: Callable[[str], ModuleSpec | None] = find_spec,
    which: Callable[[str], str | None] = shutil.which,
    environment: Mapping[str, str] = os.environ,
) -> str | None:
    """Say what flashinfer lacks here and how to get it, or None if nothing.

    It compiles its kernels when they are first used, with nvcc through ninja, and asks ninja even where they are
    compiled; unless they came compiled, in the package flashinfer-jit-cache or in its own folder data/aot.
    """
    found = find("flashinfer")
    if found is None:
        return "flashinfer is not installed: pip install 'callboard[flashinfer]'"
    if find("flashinfer_jit_cache") is not None:
        return None
    if found.origin is not None and any((Path(found.origin).parent / "data" / "aot").glob("*/*.so")):
        return None
    if which(_nvcc(which, environment)) is None:
        return (
            "flashinfer compiles its kernels with nvcc, which is not found: install CUDA's toolkit, or name its folder "
            "in CUDA_HOME"
        )
    if which("ninja") is None:
        return (
            "flashinfer compiles its kernels through ninja, which is not on the PATH: pip install ninja, and add "
            f"{Path(sys.executable).parent} to the PATH"
        )
    return None


def _nvcc(which: Callable[[str], str | None], environment: Mapping[str, str]) -> str:
    """Name the nvcc that flashinfer would call."""
    if named := environment.get("FLASHINFER_NVCC"):
        return named
    if home := environment.get("CUDA_HOME") or environment.get("CUDA_PATH"):
        return f"{home}/bin/nvcc"
    return which("nvcc") or "/usr/local/cuda/bin/nvcc"
