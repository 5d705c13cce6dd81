"""Serve the model that ships by SGLang's own server, on a CPU: what `bench/sglang_programs.py` runs beside.

The peer's environment holds sglang without its dependencies (they bring CUDA), the few that its server imports, and, by
a path file, what callboard's environment has.  Libraries of kernels and of vision, which sglang imports and this server
never uses, are empty modules here.  SGLang starts its processes anew from this file, so they stand there too.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

__all__ = ["PEER", "VERSION", "peer_python"]

VERSION = "0.5.23"
PEER = Path("/tmp/callboard-bench-sglang-server")
NEEDS = """
aiohappyeyeballs aiohttp aiosignal charset-normalizer compressed-tensors dill einops frozenlist gguf loguru multidict
orjson partial-json-parser pillow propcache pybase64 python-multipart requests sentencepiece setproctitle urllib3
uvicorn uvloop yarl
""".split()
UNUSED = frozenset(
    "torchvision sgl_kernel flashinfer xgrammar outlines torchao torchaudio torchcodec tilelang cutlass quack"
    " flash_attn apache_tvm_ffi tvm_ffi cuda kernels pynvml av soundfile".split()
)
FLAGS = """
--device cpu --attention-backend torch_native --sampling-backend pytorch --grammar-backend llguidance
--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled --disable-overlap-schedule
--mem-fraction-static 0.1 --max-total-tokens 16384 --context-length 2048 --skip-server-warmup --log-level warning
""".split()


def peer_python() -> Path:
    """Give the peer's interpreter, making its environment on first use."""
    python = PEER / "bin" / "python"
    if not (PEER / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEER)], check=True)
        needs = [f"sglang=={VERSION}", *NEEDS]
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", *needs], check=True)
        (folder,) = PEER.glob("lib/python3*/site-packages")
        (folder / "callboard.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        (PEER / "ready").touch()
    return python


class _Kind(type):
    """A class of which everything can be asked, and nothing comes."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


class _Nothing(metaclass=_Kind):
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else self  # a decorator gives back what it is given

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __mro_entries__(self, bases: Any) -> Any:
        return (_Nothing,)

    def __iter__(self) -> Any:
        return iter(())

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Module(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (_Nothing,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if fullname.partition(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _Module(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def leave_out() -> None:
    """Put empty modules in the place of what is not used, behind transformers, which would take them for the real."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    import transformers

    for name in ("AutoConfig", "AutoImageProcessor", "AutoModel", "AutoProcessor", "AutoTokenizer", "ProcessorMixin"):
        getattr(transformers, name)  # imported here, while it sees that the real ones are missing
    importlib.import_module("transformers.image_transforms")
    sys.meta_path.append(_Finder())


if sys.prefix == str(PEER):  # here, and in every process that SGLang starts from this file
    leave_out()

if __name__ == "__main__":
    import runpy

    port, model = sys.argv[1:]
    sys.argv = ["sglang", "--model-path", model, "--port", port, *FLAGS]
    runpy.run_module("sglang.launch_server", run_name="__main__")
