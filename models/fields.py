"""Read a JSON file's fields; every complaint names the file, the field, what is given and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

__all__ = ["Fields", "read_json"]


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.  Raises ValueError if the file is missing or holds anything else."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise ValueError(f"{file} does not exist; a model folder in the Hugging Face layout is needed") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} does not hold a JSON object: {error}") from error


class Fields:
    """The fields of one JSON object.  null counts as absent, as it does in transformers."""

    def __init__(self, where: str, content: dict[str, Any]) -> None:
        self.where = where
        self.content = content

    def refuse(self, name: str, allowed: str) -> ValueError:
        """Build the complaint about a field; the caller raises it."""
        given = self.content.get(name)
        return ValueError(f"{self.where}: {name} is {'missing' if given is None else repr(given)}; {allowed}")

    def has(self, name: str) -> bool:
        return self.content.get(name) is not None

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self.content.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.refuse(name, f"it must be an integer of at least {minimum}")
        return value

    def number(self, name: str, default: float | None = None, *, above: float = 0.0) -> float:
        value = self.content.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > above:
            raise self.refuse(name, f"it must be a number above {above:g}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.content.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.refuse(name, "it must be true or false")
        return value

    def choice(self, name: str, default: str | None, allowed: Sequence[str]) -> str:
        value = self.content.get(name)
        value = default if value is None else value
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(name, f"allowed: {', '.join(allowed)}")
        return value

    def token_ids(self, name: str, vocabulary: int) -> tuple[int, ...]:
        """Read one token id or a list of them; () if absent."""
        value = self.content.get(name)
        ids = () if value is None else tuple(cast("list[Any]", value)) if isinstance(value, list) else (value,)
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
                raise self.refuse(name, f"it must be a token id, or a list of them, from 0 to {vocabulary - 1}")
        return cast("tuple[int, ...]", ids)

    def object(self, name: str) -> Fields:
        """Read a nested object; without fields if absent."""
        value = self.content.get(name)
        value = {} if value is None else value
        if not isinstance(value, dict):
            raise self.refuse(name, "it must be an object")
        return Fields(f"{self.where}: {name}", cast("dict[str, Any]", value))
