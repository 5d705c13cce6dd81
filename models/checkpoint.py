"""The tensors of a model folder, read one at a time from its safetensors files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from .fields import Fields, read_json

__all__ = ["Checkpoint"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
STORED = ("F32", "BF16", "F16")


class Checkpoint:
    """Know which file holds which tensor.  Raises ValueError if the folder holds no safetensors, or not all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / INDEX
        if index.exists():
            self.files = self._read_index(index)
        elif (folder / SINGLE).exists():
            with self.open(SINGLE) as tensors:
                self.files = dict.fromkeys(tensors.keys(), SINGLE)
        else:
            raise ValueError(
                f"{folder} holds neither {SINGLE} nor {INDEX}; only safetensors weights are loaded "
                f"(load_format='dummy' needs none)"
            )

    def _read_index(self, index: Path) -> dict[str, str]:
        files = Fields(str(index), read_json(index)).object("weight_map").content
        for tensor, file in files.items():
            # A name with a folder in it could point anywhere on this machine.
            if not isinstance(file, str) or Path(file).name != file:
                raise ValueError(f"{index}: {tensor} is in {file!r}; it must be a file name in the same folder")
        missing = sorted({file for file in files.values() if not (self.folder / file).exists()})
        if missing:
            raise ValueError(
                f"{index} names files that {self.folder} does not hold: {', '.join(missing)}; fetch them again"
            )
        return files

    @contextmanager
    def open(self, file: str) -> Iterator[Any]:
        """Open one file; ValueError if it is damaged."""
        try:
            with safe_open(self.folder / file, framework="pt", device="cpu") as tensors:
                yield tensors
        except SafetensorError as error:
            raise ValueError(
                f"{self.folder / file} cannot be read as safetensors: {error}; fetch it again, it may be cut short"
            ) from error

    def names(self) -> set[str]:
        """Tell which tensors there are."""
        return set(self.files)

    def shapes(self, wanted: set[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the wanted tensors' shapes from the files' headers.

        Raises ValueError if a file is damaged, lacks what the index promises, or stores it in a type that is no weight.
        """
        for file, names in self._by_file(wanted):
            with self.open(file) as tensors:
                held = set(tensors.keys())
                for name in names:
                    if name not in held:
                        raise ValueError(f"{self.folder / file} does not hold {name}, though {INDEX} says so")
                    header = tensors.get_slice(name)
                    if header.get_dtype() not in STORED:
                        raise ValueError(
                            f"{self.folder / file}: {name} is stored as {header.get_dtype()}; "
                            f"allowed: {', '.join(STORED)}"
                        )
                    yield name, tuple(header.get_shape())

    def read(self, wanted: set[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the wanted tensors, file by file; each is mapped from disk and read as it is copied."""
        for file, names in self._by_file(wanted):
            with self.open(file) as tensors:
                for name in names:
                    yield name, tensors.get_tensor(name)

    def _by_file(self, wanted: set[str]) -> Iterator[tuple[str, list[str]]]:
        for file in sorted({self.files[name] for name in wanted}):
            yield file, sorted(name for name in wanted if self.files[name] == file)
