"""Request bodies: JSON to structs, strictly, with every refusal naming its field.

A field that nobody knows is refused by name: a misspelt `temprature` must not silently give another result.  One
that is known but not supported is refused with the reason, unless its value changes nothing (null, false, empty).
One that has no bearing on the result (`user`, `metadata`) is accepted and dropped.  null always means "not given".
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, cast

import msgspec

from ..errors import InvalidRequest
from .refusal import Refusal
from .service import Limits

__all__ = ["Rules", "convert", "expect_fit", "expect_name", "listed", "parse", "stops", "token_ids"]

T = TypeVar("T", bound=msgspec.Struct)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a route says about fields that are not in its struct.

    unsupported: known, refused with this reason.  harmless: values of those that change nothing.  ignored: dropped.
    """

    unsupported: Mapping[str, str] = {}
    harmless: Mapping[str, Collection[Any]] = {}
    ignored: frozenset[str] = frozenset()


_NOTHING = (False, "", [], {}, ())
_NAME = 256  # characters
_CHARACTERS = 256  # of one token, at most: the longest of today's models are runs of 128 spaces


def parse(body: bytes, kind: type[T], rules: Rules) -> T:
    """Turn a request body into a `kind`."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the request body is not JSON: {error}"
        raise Refusal(400, message, "invalid_request_error", code="invalid_json") from error
    return convert(value, kind, rules)


def convert(value: Any, kind: type[T], rules: Rules, *, at: str = "") -> T:
    """Turn a JSON object into a `kind`; `at` is where it stood in the body."""
    if not isinstance(value, dict):
        raise InvalidRequest(at or "body", f"a JSON object is needed, not {_name(value)}")
    known = kind.__struct_encode_fields__  # structs.fields would evaluate every annotation, at 0.5 ms a request
    given: dict[str, Any] = {}
    for name, item in cast("dict[str, Any]", value).items():
        if item is None or name in rules.ignored:
            continue
        if name in known:
            given[name] = item
        elif name not in rules.unsupported:
            raise InvalidRequest(f"{at}.{name}" if at else name, "this route knows no such field")
        elif not any(item == nothing for nothing in (*_NOTHING, *rules.harmless.get(name, ()))):
            raise InvalidRequest(f"{at}.{name}" if at else name, rules.unsupported[name])
    try:
        return msgspec.convert(given, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, path = str(error).partition(" - at ")
        found = re.search(r"\$\.?([^`]*)", path)
        field = (found.group(1) if found else "") or _required(message)
        raise InvalidRequest(".".join(part for part in (at, field) if part) or "body", _plain(message)) from error


def _required(message: str) -> str:
    found = re.search(r"missing required field `(\w+)`", message)
    return found.group(1) if found else ""


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:].replace(" | null", "")


def _name(value: Any) -> str:
    names = {
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Give the stop strings of one or a list."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def token_ids(value: Any, field: str, vocabulary: int) -> bytes:
    """Check a list of token ids; give it as int32."""
    if not isinstance(value, list) or not value or set(map(type, cast("list[Any]", value))) != {int}:
        raise InvalidRequest(field, "a non-empty array of token ids is needed")
    ids = cast("list[int]", value)
    if min(ids) < 0 or max(ids) >= vocabulary:
        outside = min(ids) if min(ids) < 0 else max(ids)
        raise InvalidRequest(field, f"token {outside} is outside the vocabulary of {vocabulary}")
    return array("i", ids).tobytes()


def expect_name(rid: str) -> None:
    """Refuse a request's name that is none, or so long that every event would be."""
    if not 0 < len(rid) <= _NAME:
        raise InvalidRequest("rid", f"a name has 1 to {_NAME} characters")


def expect_fit(text: str, field: str, limits: Limits) -> str:
    """Give back a text, unless it fits the context however long its tokens are: finding that out by tokenizing takes a
    second a megabyte.
    """
    if len(text) > _CHARACTERS * limits.context_length:
        raise InvalidRequest(field, f"it has {len(text)} characters; the context holds {limits.context_length} tokens")
    return text


def _prompt(item: Any, field: str, limits: Limits) -> str | bytes:
    if isinstance(item, str):
        return expect_fit(item, field, limits)
    count, most = len(cast("list[Any]", item)) if isinstance(item, list) else 0, limits.context_length
    if count > most:  # before each is looked at
        raise InvalidRequest(field, f"it has {count} tokens; the context holds {most}, output included")
    return token_ids(item, field, limits.vocabulary)


def listed(value: Any, field: str, limits: Limits, most: int) -> tuple[list[str | bytes], bool]:
    """Read one prompt or a batch of them: a string, token ids, or an array of either; and whether it was a batch."""
    if isinstance(value, str):
        return [_prompt(value, field, limits)], False
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            field, f"a string, an array of token ids or a non-empty array of those is needed, not {_name(value)}"
        )
    items = cast("list[Any]", value)
    if isinstance(items[0], (str, list)):
        if len(items) > most:
            raise InvalidRequest(field, f"{len(items)} prompts given, at most {most} allowed in one request")
        return [_prompt(item, f"{field}[{index}]", limits) for index, item in enumerate(items)], True
    return [_prompt(items, field, limits)], False
