"""Compile a C file of this folder with the machine's own compiler, once, and load it."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

__all__ = ["NativeUnavailable", "load_library"]

_LOG = logging.getLogger("callboard.kernels.native")
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-lm")
_NEEDED = frozenset({"avx2", "f16c", "fma"})
# The compiler takes two seconds here; one that hangs must not keep a model from loading.
_TIMEOUT_S = 60.0


class NativeUnavailable(Exception):
    """Native code cannot be had here; the text says why."""


def load_library(name: str) -> ctypes.CDLL | None:
    """Load `<name>.c`, compiled for this machine; None where that cannot be done, and one line of the log says why.

    The result is kept in $XDG_CACHE_HOME/callboard/native (else ~/.cache/...), named by everything it depends on.
    CALLBOARD_NATIVE=0 in the environment turns native code off.
    """
    if os.environ.get("CALLBOARD_NATIVE") == "0":
        return None
    try:
        return ctypes.CDLL(str(_compiled(Path(__file__).with_name(f"{name}.c"))))
    except (NativeUnavailable, OSError, subprocess.SubprocessError) as error:
        _LOG.info("no native %s, torch is used instead: %s", name, error)
        return None


def _compiled(source: Path) -> Path:
    """Give the library that a source compiles to, compiling it if nobody has."""
    processor = _processor()
    compiler = shutil.which("cc")
    if compiler is None:
        raise NativeUnavailable("there is no C compiler (cc)")
    version = _run([compiler, "--version"])
    sources = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    parts = (*sources, " ".join(_FLAGS).encode(), processor.encode(), version)
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    library = _private_folder() / f"{source.stem}-{digest[:32]}.so"
    if not library.exists():
        _compile(compiler, source, library)
    return library


def _processor() -> str:
    """Tell the processor's name and abilities, as /proc/cpuinfo has them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    abilities = fields.get("flags", "").split()
    missing = _NEEDED.difference(abilities)
    if missing:
        raise NativeUnavailable(f"the processor has no {', '.join(sorted(missing))}")
    return " ".join((fields.get("model name", ""), *sorted(abilities)))


def _private_folder() -> Path:
    """Make the folder for compiled code; nobody else may be able to write there, for what lies there is run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callboard" / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NativeUnavailable(f"others can write to {folder}")
    return folder


def _compile(compiler: str, source: Path, library: Path) -> None:
    """Compile beside the library and rename, so that two processes at once both find a whole file."""
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        # The flags are behind the source: a linker looks for symbols in the order it is told.
        _run([compiler, str(source), *_FLAGS, "-o", temporary])
        Path(temporary).replace(library)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _run(command: list[str]) -> bytes:
    """Run the compiler and give what it writes."""
    # The command is the machine's own cc and this package's own file.
    done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603
    if done.returncode:
        raise NativeUnavailable(f"{command[0]} failed: {done.stderr.decode(errors='replace').strip()[:500]}")
    return done.stdout
