"""What a program can say: constant text, generations, choices, roles and scopes, joined by `+`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..actors.errors import InvalidRequest
from ..actors.reasoning import Markers
from .choices import ChoicesMethod, token_length_normalized

__all__ = [
    "Expression",
    "Gen",
    "Image",
    "RoleBegin",
    "RoleEnd",
    "RoleText",
    "ScopeBegin",
    "ScopeEnd",
    "Select",
    "Sequence",
    "Video",
    "flatten",
]


class Expression(msgspec.Struct, frozen=True, gc=False):
    """Something that can be appended to a program's state. Constant text is simply a `str`.

    No expression can be part of a cycle, so none burdens the garbage collector (`gc=False`).
    """

    def __add__(self, other: Expression | str) -> Sequence:
        return Sequence(flatten(self) + flatten(other))

    def __radd__(self, other: Expression | str) -> Sequence:
        return Sequence(flatten(other) + flatten(self))

    def __format__(self, form: str) -> str:
        """Refuse to be a part of an f-string: its text is not known there, and its repr would be said instead."""
        raise InvalidRequest("expression", f"{self!r:.60} is in an f-string; put it behind the text: 'text' + gen(...)")


class Gen(Expression, frozen=True, gc=False):
    """Generate text. options: what the call to `gen` asked for, as `gen_options` gives it.

    parse: from the text to the value it stands for, if its constraint tells.  markers: of the reasoning that is to be
    told apart.
    """

    name: str | None
    options: tuple[tuple[str, Any], ...]
    parse: Callable[[str], Any] | None = None
    markers: Markers | None = None


class Select(Expression, frozen=True, gc=False):
    """Choose one of several texts, by their log-probabilities."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod = token_length_normalized


class Image(Expression, frozen=True, gc=False):
    """Show an image.  url: data:, or http(s): of one that is elsewhere."""

    url: str


class Video(Expression, frozen=True, gc=False):
    """Show frames of a video file."""

    path: str
    frames: int


class RoleBegin(Expression, frozen=True, gc=False):
    """Begin a chat message."""

    role: str


class RoleEnd(Expression, frozen=True, gc=False):
    """End the chat message that is open."""

    role: str


class RoleText(Expression, frozen=True, gc=False):
    """A whole chat message of constant text: one step instead of three."""

    role: str
    text: str


class ScopeBegin(Expression, frozen=True, gc=False):
    """From here on, what is said belongs to a variable."""

    name: str


class ScopeEnd(Expression, frozen=True, gc=False):
    """Close the scope of a variable."""

    name: str


class Sequence(Expression, frozen=True, gc=False):
    """Several expressions, one behind the other; flat, it holds no other Sequence."""

    items: tuple[Expression | str, ...]


def flatten(expression: Expression | str) -> tuple[Expression | str, ...]:
    """Give the items of an expression; InvalidRequest if it is neither an expression nor text."""
    if type(expression) is Sequence:
        return expression.items
    if isinstance(expression, (str, Expression)):
        return (expression,)
    raise InvalidRequest(
        "expression",
        f"a program can say text, gen, select, images and roles, not {type(expression).__name__} ({expression!r:.80})",
    )
