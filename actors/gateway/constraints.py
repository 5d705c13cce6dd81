"""What binds a text, as requests give it, and how they are told that a limit has cut it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import InvalidRequest
from ..messages import GRAMMAR_CUT, Finish

__all__ = ["constraint_of", "cut_mark", "schema_text"]

_ANY_OBJECT = '{"type":"object"}'


def schema_text(schema: str | Mapping[str, Any] | None) -> str | None:
    """Give a schema's JSON text; it may come as text or as the object itself."""
    return schema if schema is None or isinstance(schema, str) else msgspec.json.encode(schema).decode()


def constraint_of(form: Mapping[str, Any] | None, given: Mapping[str, str | None]) -> dict[str, str | None]:
    """Join OpenAI's response_format with the request's own fields, regex, json_schema and ebnf; InvalidRequest if the
    two differ.
    """
    named = None if form is None else _named(form)
    if named is None:
        return dict(given)
    field, source = named
    other = next((name for name, value in given.items() if value is not None), None)
    if other is not None and (other, given[other]) != named:
        raise InvalidRequest(other, "response_format is given too; a generation takes one constraint")
    return {**given, field: source}


def cut_mark(finish: Finish | None) -> dict[str, bool]:
    """Give the field that says that a length limit has cut a constrained text; no field elsewhere."""
    return {"grammar_complete": False} if finish is not None and finish.message == GRAMMAR_CUT else {}


def _named(form: Mapping[str, Any]) -> tuple[str, str] | None:
    match form:
        case {"type": "text", **rest} if not rest:
            return None
        case {"type": "json_object", **rest} if not rest:
            return "json_schema", _ANY_OBJECT
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}, **rest} if not rest:
            return "json_schema", msgspec.json.encode(schema).decode()
        case {"type": "json_schema"}:
            raise InvalidRequest("response_format", "type 'json_schema' needs 'json_schema': {'schema': an object}")
        case {"type": "regex", "regex": str() as regex, **rest} if not rest:
            return "regex", regex
        case {"type": "regex"}:
            raise InvalidRequest("response_format", "type 'regex' needs the field 'regex', a string, and no other")
        case {"type": "structural_tag"}:
            return "structural_tag", msgspec.json.encode(form).decode()
        case {"type": ("text" | "json_object") as kind}:
            raise InvalidRequest("response_format", f"type {kind!r} takes no other field")
        case _:
            raise InvalidRequest(
                "response_format",
                f"type {form.get('type')!r:.80} is not supported; there are 'text', 'json_object', 'json_schema' with"
                " a 'json_schema', 'regex' with a 'regex', and 'structural_tag'",
            )
