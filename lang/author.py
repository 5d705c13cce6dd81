"""From what a program says to the steps its stream executes; everything that can be refused is refused here."""

from __future__ import annotations

from typing import Any

from ..actors.errors import InvalidRequest
from .expression import (
    Expression,
    Gen,
    Image,
    RoleBegin,
    RoleEnd,
    RoleText,
    ScopeBegin,
    ScopeEnd,
    Select,
    Video,
    flatten,
)
from .film import verify_film
from .reasoning import reasoning_name
from .script import Choose, Generate, ScopeClose, ScopeOpen, ShowImage, ShowVideo
from .speculating import look_ahead
from .stream import Stream
from .variable import Variable

__all__ = ["write"]


def write(stream: Stream, expression: Expression | str) -> tuple[Any, ...] | list[Any]:
    """Give the steps for an expression that is to be appended; raises InvalidRequest, and then nothing is written.

    What it asks for is known from now on, and the role and scopes it leaves open are.
    """
    role, scopes = stream.role, stream.scopes
    kind = type(expression)
    if kind is str or (kind is RoleText and role is None):  # what is said most often, and cannot be refused
        return (expression,)
    named: dict[str, Variable] = {}
    steps: list[Any] = []
    try:
        for item in flatten(expression):
            steps.append(item if type(item) is str else _step(stream, item, named))  # noqa: PERF401  # is a call more
        if stream.defaults.overrun_tokens is not None and stream.backend.overruns == "message":
            steps = look_ahead(steps)
    except InvalidRequest:
        stream.role, stream.scopes = role, scopes
        raise
    if named:
        stream.variables.update(named)
    return steps


def _step(stream: Stream, item: Any, named: dict[str, Variable]) -> Any:
    kind = type(item)
    if kind is RoleText or kind is RoleBegin:
        if stream.role is not None:
            raise InvalidRequest("role", f"{item.role!r} cannot begin while {stream.role!r} is open")
        if kind is RoleBegin:
            stream.role = item.role
        return item
    if kind is RoleEnd:
        if stream.role != item.role:
            opened = "no role is open" if stream.role is None else f"{stream.role!r} is open"
            raise InvalidRequest("role", f"{item.role!r} cannot end here: {opened}")
        stream.role = None
        return item
    if kind is Gen:
        asked = stream.defaults.resolve(item.options, stream.backend)
        variable = _declare(item.name, named, asked.count)
        thought = None if item.markers is None else _declare(reasoning_name(item.name), named, asked.count)
        return Generate(variable, asked.sampling, item.parse, asked.texts, item.markers, thought)
    if kind is Select:
        stream.backend.verify_choices(item.choices, unconditional=item.method.unconditional)
        return Choose(_declare(item.name, named), item.choices, item.method)
    if kind is ScopeBegin:
        variable = _declare(item.name, named)
        stream.scopes += ((item.name, variable),)
        return ScopeOpen(variable)
    if kind is ScopeEnd:
        if not stream.scopes or stream.scopes[-1][0] != item.name:
            raise InvalidRequest("var_scope", f"{item.name!r} is not the scope that was opened last")
        *outer, (_, variable) = stream.scopes
        stream.scopes = tuple(outer)
        return ScopeClose(variable)
    if kind is Image or kind is Video:
        return _show(stream, item)
    if isinstance(item, str):
        return str(item)
    raise InvalidRequest("expression", f"a program cannot say {kind.__name__}: {item!r:.80}")


def _show(stream: Stream, item: Image | Video) -> ShowImage | ShowVideo:
    if stream.role not in (None, "user"):
        raise InvalidRequest("image", f"an image stands in user(...) or outside of roles, not in {stream.role!r}")
    if isinstance(item, Image):
        stream.backend.verify_image(item.url)
        return ShowImage(item.url)
    stream.backend.verify_image("data:")
    verify_film(item.path, item.frames)
    return ShowVideo(item.path, item.frames)


def _declare(name: str | None, named: dict[str, Variable], count: int = 1) -> Variable:
    variable = Variable(tuple([Variable() for _ in range(count)])) if count > 1 else Variable()
    if name is not None:  # two without a name are two, and nobody can ask for them
        named[name] = variable
    return variable
