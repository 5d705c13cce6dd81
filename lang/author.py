"""From what a program says to the steps its stream executes; everything that can be refused is refused here."""

from __future__ import annotations

from typing import Any

from ..actors.errors import InvalidRequest
from .expression import Expression, Gen, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, flatten
from .sampling_arguments import resolve
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
        """Give the steps for an expression; raises InvalidRequest before any of them is written."""
        items = flatten(expression)
        role, scopes = self.role, self.scopes
        named: dict[str, Variable] = {}
        try:
            steps = tuple([item if type(item) is str else self._step(item, named) for item in items])
        except BaseException:
            self.role, self.scopes = role, scopes
            raise
        self.stream.variables.update(named)
        return steps

    def _step(self, item: Any, named: dict[str, Variable]) -> Any:
        stream = self.stream
        match item:
            case Gen():
                sampling = resolve(stream.defaults, item.options)
                stream.backend.verify(sampling)
                return Generate(_declare(item.name, named), sampling)
            case RoleBegin():
                if self.role is not None:
                    raise InvalidRequest("role", f"{item.role!r} cannot begin while {self.role!r} is open")
                self.role = item.role
                return item
            case RoleEnd():
                if self.role != item.role:
                    opened = "no role is open" if self.role is None else f"{self.role!r} is open"
                    raise InvalidRequest("role", f"{item.role!r} cannot end here: {opened}")
                self.role = None
                return item
            case Select():
                return Choose(_declare(item.name, named), item.choices)
            case ScopeBegin():
                variable = _declare(item.name, named)
                self.scopes += ((item.name, variable),)
                return ScopeOpen(variable)
            case ScopeEnd():
                if not self.scopes or self.scopes[-1][0] != item.name:
                    raise InvalidRequest("var_scope", f"{item.name!r} is not the scope that was opened last")
                *outer, (_, variable) = self.scopes
                self.scopes = tuple(outer)
                return ScopeClose(variable)
            case str():
                return str(item)
            case _:
                raise InvalidRequest("expression", f"a program cannot say {type(item).__name__}: {item!r:.80}")


def _declare(name: str | None, named: dict[str, Variable]) -> Variable:
    variable = Variable()
    if name is not None:  # two without a name are two, and nobody can ask for them
        named[name] = variable
    return variable
