"""From what a program says to the steps its stream executes; everything that can be refused is refused here."""

from __future__ import annotations

from typing import Any

from ..actors.errors import InvalidRequest
from .expression import Expression, Gen, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, flatten
from .script import Choose, Generate, ScopeClose, ScopeOpen
from .stream import Stream
from .variable import Variable

__all__ = ["Author"]


class Author:
    """Write one stream's script: know which names were asked for, which role and which scopes are open."""

    __slots__ = ("role", "scopes", "stream")

    def __init__(self, stream: Stream, role: str | None = None) -> None:
        self.stream = stream
        self.role = role
        self.scopes: tuple[tuple[str, Variable], ...] = ()

    def write(self, expression: Expression | str) -> tuple[Any, ...]:
        """Give the steps for an expression; raises InvalidRequest, and then nothing of it is written."""
        if type(expression) is str:
            return (expression,)
        role, scopes = self.role, self.scopes
        named: dict[str, Variable] = {}
        try:
            steps = tuple([item if type(item) is str else self._step(item, named) for item in flatten(expression)])
        except InvalidRequest:
            self.role, self.scopes = role, scopes
            raise
        if named:
            self.stream.variables.update(named)
        return steps

    def _step(self, item: Any, named: dict[str, Variable]) -> Any:
        kind = type(item)
        if kind is RoleBegin:
            if self.role is not None:
                raise InvalidRequest("role", f"{item.role!r} cannot begin while {self.role!r} is open")
            self.role = item.role
            return item
        if kind is RoleEnd:
            if self.role != item.role:
                opened = "no role is open" if self.role is None else f"{self.role!r} is open"
                raise InvalidRequest("role", f"{item.role!r} cannot end here: {opened}")
            self.role = None
            return item
        if kind is Gen:
            stream = self.stream
            return Generate(_declare(item.name, named), stream.defaults.resolve(item.options, stream.backend))
        if kind is Select:
            return Choose(_declare(item.name, named), item.choices)
        if kind is ScopeBegin:
            variable = _declare(item.name, named)
            self.scopes += ((item.name, variable),)
            return ScopeOpen(variable)
        if kind is ScopeEnd:
            if not self.scopes or self.scopes[-1][0] != item.name:
                raise InvalidRequest("var_scope", f"{item.name!r} is not the scope that was opened last")
            *outer, (_, variable) = self.scopes
            self.scopes = tuple(outer)
            return ScopeClose(variable)
        if isinstance(item, str):
            return str(item)
        raise InvalidRequest("expression", f"a program cannot say {kind.__name__}: {item!r:.80}")


def _declare(name: str | None, named: dict[str, Variable]) -> Variable:
    variable = Variable()
    if name is not None:  # two without a name are two, and nobody can ask for them
        named[name] = variable
    return variable
