"""Structural tags: free text in which certain words oblige the model to go on with a tag, its content by a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import InvalidRequest

__all__ = ["Tag", "Tags", "read_tags", "tags_grammar"]

FIELD = "structural_tag"


class Tag(msgspec.Struct, frozen=True):
    """begin and end: what stands around the content.  schema: a JSON schema."""

    begin: str
    end: str
    schema: dict[str, Any]


class Tags(msgspec.Struct, frozen=True):
    """triggers: each the beginning of some tag's `begin`.  at_least_one: a tag must come.  only_one: and nothing behind
    the first.
    """

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    only_one: bool = False


def read_tags(source: str) -> Tags:
    """Read a structural tag's JSON; raises InvalidRequest.

    {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, or {"format": {"type": "triggered_tags",
    "triggers": [...], "tags": [{"begin", "content": {"type": "json_schema", "json_schema": {...}}, "end"}],
    "at_least_one", "stop_after_first"}}.
    """
    try:
        given = msgspec.json.decode(source)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(FIELD, f"{source!r:.80} is not JSON: {error}") from error
    if not isinstance(given, dict) or given.get("type", FIELD) != FIELD:
        raise InvalidRequest(FIELD, f"{source!r:.80} is no JSON object of type 'structural_tag'")
    fields = {name: value for name, value in given.items() if name != "type"}
    try:
        if "format" in fields:
            return _checked(_of_format(msgspec.convert(fields, _Formatted).format))
        old = msgspec.convert(fields, _Structures)
    except msgspec.ValidationError as error:
        raise InvalidRequest(FIELD, str(error)) from error
    return _checked(Tags(old.triggers, old.structures))


def tags_grammar(tags: Tags, schema_grammar: Callable[[Mapping[str, Any]], str]) -> str:
    """Give llguidance's grammar.  schema_grammar: what it makes of one schema."""
    lines = [""]
    inner: list[dict[str, Any]] = []
    for number, trigger in enumerate(tags.triggers):
        ways: list[str] = []
        for tag in tags.tags:
            if _trigger_of(tag, tags.triggers) != trigger:
                continue
            (schema,) = msgspec.json.decode(schema_grammar(tag.schema))["grammars"]
            name = f"content_{len(inner)}"
            inner.append({**schema, "name": name})
            around = (_quoted(tag.begin[len(trigger) :]), f"@{name}", _quoted(tag.end))
            ways.append(" ".join(part for part in around if part))
        lines.append(f"trigger_{number}[lazy]: TEXT {_quoted(trigger)}")
        lines.append(f"tag_{number}: trigger_{number} ({' | '.join(ways)})")
    tag = "(" + " | ".join(f"tag_{number}" for number in range(len(tags.triggers))) + ")"
    if tags.only_one:
        lines[0] = f"start: {tag}" if tags.at_least_one else f"start: {tag} | TEXT"
    else:
        lines[0] = f"start: {tag}{'+' if tags.at_least_one else '*'} TEXT"
    lines.append("TEXT: /(?s:.*)/")
    outer = {"name": "tags", "lark_grammar": "\n".join(lines)}
    return msgspec.json.encode({"grammars": [outer, *inner]}).decode()


class _Structures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    structures: tuple[Tag, ...]
    triggers: tuple[str, ...]


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="json_schema", tag_field="type"):
    json_schema: dict[str, Any]


class _Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begin: str
    content: _Content
    end: str
    type: str = "tag"


class _Triggered(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="triggered_tags", tag_field="type"):
    triggers: tuple[str, ...]
    tags: tuple[_Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False


class _Formatted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: _Triggered


def _of_format(form: _Triggered) -> Tags:
    tags = tuple(Tag(tag.begin, tag.end, tag.content.json_schema) for tag in form.tags)
    return Tags(form.triggers, tags, form.at_least_one, form.stop_after_first)


def _checked(tags: Tags) -> Tags:
    triggers = tags.triggers
    if not triggers or not all(triggers):
        raise InvalidRequest(FIELD, "at least one trigger is needed, and none may be empty")
    for one in triggers:
        if (other := next((two for two in triggers if two is not one and two.startswith(one)), None)) is not None:
            raise InvalidRequest(FIELD, f"trigger {one!r} begins trigger {other!r}, which could never come")
    used = {_trigger_of(tag, triggers) for tag in tags.tags}
    if (unused := next((trigger for trigger in triggers if trigger not in used), None)) is not None:
        raise InvalidRequest(FIELD, f"no tag begins with trigger {unused!r}")
    return tags


def _trigger_of(tag: Tag, triggers: tuple[str, ...]) -> str:
    found = next((trigger for trigger in triggers if tag.begin.startswith(trigger)), None)
    if found is None:
        known = ", ".join(map(repr, triggers))
        raise InvalidRequest(FIELD, f"tag {tag.begin!r} begins with none of the triggers {known}")
    return found


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode() if text else ""
