"""The constraints of `gen` as users give them: schemas as dicts, texts or classes, and Python's own types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec

from ..actors.errors import InvalidRequest
from ..actors.sampling import CONSTRAINTS
from .ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR

__all__ = ["Parse", "dtype_fields", "settle_constraints"]

Parse = Callable[[str], Any]
"""From a generation's text to the value it stands for; ValueError or msgspec.MsgspecError if it stands for none."""

# name -> regex, the stops that end it and cut off what follows a number, the value
_DTYPES: dict[str, tuple[str, tuple[str, ...], Parse]] = {
    "int": (REGEX_INT, (" ", "\n"), int),
    "float": (REGEX_FLOAT, (" ", "\n"), float),
    "bool": (REGEX_BOOL, (), lambda text: {"True": True, "False": False}[text]),
    "str": (REGEX_STR, (), lambda text: text[1:-1]),
}
_TYPES: dict[Any, str] = {int: "int", float: "float", bool: "bool", str: "str"}


def settle_constraints(arguments: dict[str, Any]) -> Parse | None:
    """Turn json_schema and structural_tag into JSON text and dtype into a name, in place; give what reads the generated
    text, if any.

    Raises InvalidRequest, naming both if two constraints are given.
    """
    schema, dtype, tags = arguments["json_schema"], arguments["dtype"], arguments["structural_tag"]
    if isinstance(tags, Mapping):
        arguments["structural_tag"] = _json_text("structural_tag", cast("Mapping[str, Any]", tags))
    if schema is None and dtype is None:
        return None
    given = [name for name in (*CONSTRAINTS, "dtype") if arguments[name] is not None]
    if len(given) > 1:
        raise InvalidRequest(given[1], f"{given[0]} is given too; a generation takes one constraint")
    if dtype is not None:
        name = _TYPES.get(dtype, dtype) if isinstance(dtype, (str, type)) else dtype
        if not isinstance(name, str) or name not in _DTYPES:
            raise InvalidRequest("dtype", f"{dtype!r:.80} is unknown; there are int, float, bool and str")
        arguments["dtype"] = name
        return _DTYPES[name][2]
    if isinstance(schema, type):
        arguments["json_schema"], parse = _of_class(schema)
        return parse
    if isinstance(schema, Mapping):
        arguments["json_schema"] = _json_text("json_schema", cast("Mapping[str, Any]", schema))
    elif not isinstance(schema, str):
        raise InvalidRequest(
            "json_schema", f"{schema!r:.80} is no dict, JSON text, pydantic model or msgspec Struct class"
        )
    elif not _is_json(schema):
        raise InvalidRequest("json_schema", f"{schema!r:.80} is not JSON")
    return msgspec.json.decode


def dtype_fields(name: str) -> tuple[str, tuple[str, ...]]:
    """Give the regex of a dtype, and the stop strings that end it."""
    regex, stops, _ = _DTYPES[name]
    return regex, stops


@lru_cache(maxsize=256)  # a pydantic model takes milliseconds to tell its schema
def _of_class(kind: type) -> tuple[str, Parse]:
    if issubclass(kind, msgspec.Struct):
        try:
            schema = msgspec.json.schema(kind)
        except TypeError as error:
            raise InvalidRequest("json_schema", f"{kind.__name__} has no JSON schema: {error}") from None
        return msgspec.json.encode(schema).decode(), msgspec.json.Decoder(kind).decode
    tell: Any = getattr(kind, "model_json_schema", None)
    read: Any = getattr(kind, "model_validate_json", None)
    if tell is None or read is None:
        raise InvalidRequest("json_schema", f"{kind.__name__} is neither a pydantic model nor a msgspec Struct")
    try:
        return msgspec.json.encode(tell()).decode(), read
    except (TypeError, ValueError) as error:
        raise InvalidRequest("json_schema", f"{kind.__name__} has no JSON schema: {error}") from None


def _json_text(field: str, value: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode(dict(value)).decode()
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(field, f"{value!r:.80} cannot be written as JSON: {error}") from None


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
