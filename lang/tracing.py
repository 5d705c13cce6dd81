"""Tracing: a body is run on a state that writes down what is said, and marks stand for what is not known.

What a body decides by a mark, which is a text, is decided by the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from ..actors.chat_template import ChatTemplate
from ..actors.errors import InvalidRequest
from .expression import Expression, Gen, RoleBegin, RoleEnd, RoleText, ScopeBegin, ScopeEnd, Select, flatten
from .graph import Graph
from .marks import Marks
from .roles import message
from .traced_group import TracedGroup
from .transcript import Transcript

__all__ = ["TRACING", "TracedState", "trace_body"]

TRACING: ContextVar[TracedState | None] = ContextVar("callboard_tracing", default=None)
"""The state on which a body is traced here, if one is: a program that it calls is traced too, and not run."""


class _Enough(BaseException):
    """Raised in a body that is traced only for what it begins with, once that is known."""


class TracedState:
    """Stand for a ProgramState while its program is traced: it waits for nothing, and generates nothing."""

    def __init__(
        self, graph: Graph, marks: Marks, template: ChatTemplate, *, last: tuple[int, ...] = (), branch: int = 0,
        variables: Mapping[str, Any] | None = None, prefix_only: bool = False,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.ret_value: Any = None
        self.last = last
        self.variables: dict[str, Any] = dict(variables or {})
        self._marks = marks
        self._template = template
        self._branch = branch
        self._said: list[str] = []
        self._constant = Transcript() if not branch else None  # what is said first; None once something is not known
        self._prefix_only = prefix_only

    # --- saying ----------------------------------------------------------------------------------------------------

    def append(self, expression: Expression | str) -> None:
        """Write an expression down."""
        for item in flatten(expression):
            if isinstance(item, str):
                self._say(str(item))
            elif isinstance(item, RoleText):
                self._begin(item.role)
                self._say(item.text)
                self._end(item.role)
            elif isinstance(item, RoleBegin):
                self._begin(item.role)
            elif isinstance(item, RoleEnd):
                self._end(item.role)
            elif isinstance(item, Gen):
                self._ask("gen", item.name, "")
            elif isinstance(item, Select):
                self._ask("select", item.name, f" of {list(item.choices)!r:.120}")
            elif isinstance(item, (ScopeBegin, ScopeEnd)):
                self._node("open" if isinstance(item, ScopeBegin) else "close", item.name)
                self.variables.setdefault(item.name, self._marks.make("variable", item.name))
            else:
                self._unknown()
                self._node(type(item).__name__.lower(), "")

    def __iadd__(self, expression: Expression | str) -> Self:
        self.append(expression)
        return self

    def role(self, role: str, expression: Expression | str | None = None) -> Any:
        """Write a message down; without an expression, the `with` block's."""
        if expression is None:
            return self._between(RoleBegin(role), RoleEnd(role))
        self.append(message(role, expression))
        return ""

    def system(self, expression: Expression | str | None = None) -> Any:
        return self.role("system", expression)

    def user(self, expression: Expression | str | None = None) -> Any:
        return self.role("user", expression)

    def assistant(self, expression: Expression | str | None = None) -> Any:
        return self.role("assistant", expression)

    def var_scope(self, name: str) -> Any:
        return self._between(ScopeBegin(name), ScopeEnd(name))

    @contextmanager
    def _between(self, begin: Expression, end: Expression) -> Iterator[None]:
        self.append(begin)
        yield
        self.append(end)

    def _node(self, kind: str, label: str, after: tuple[int, ...] | None = None) -> None:
        self.last = (self.graph.add(kind, label, self.last if after is None else after, self._branch).number,)

    def _say(self, text: str) -> None:
        self._said.append(text)
        for kind, part in self._marks.split(text):
            self._node(kind, repr(part) if kind == "text" else part)
            if kind != "text":
                self._unknown()
            elif self._constant is not None:
                self._constant.say(part)
                self.graph.prefix = self._constant.text

    def _begin(self, role: str) -> None:
        self._node("begin", role)
        if self._constant is not None:
            self._constant.begin_role(role, self._template)
            self.graph.prefix = self._constant.text

    def _end(self, role: str) -> None:
        self._node("end", role)
        if self._constant is not None and self._constant.role is not None:
            self._constant.end_role()
            self.graph.prefix = self._constant.text

    def _ask(self, kind: str, name: str | None, more: str) -> None:
        self._unknown()
        self._node(kind, (name or "") + more)
        mark = self._marks.make("variable", name or kind)
        self._said.append(mark)
        if name is not None:
            self.variables[name] = mark

    def _unknown(self) -> None:
        """What follows is behind something that is not known."""
        self._constant = None
        if self._prefix_only:
            raise _Enough

    # --- branches --------------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: Any = None, **how: Any) -> TracedGroup:  # noqa: ARG002
        """Go on in branches."""
        self._unknown()
        self._node("fork", str(size))
        return TracedGroup(self, [self._twin() for _ in range(size)])

    def copy(self, position_ids_offset: Any = None) -> TracedGroup:
        return TracedGroup(self, self.fork(1, position_ids_offset).states, single=True)

    def _twin(self) -> TracedState:
        self.graph.branches += 1
        return TracedState(
            self.graph, self._marks, self._template, last=self.last, branch=self.graph.branches,
            variables=self.variables,
        )  # fmt: skip

    def join(self, states: Sequence[TracedState]) -> None:
        """Go on behind branches, with what is new in them."""
        ends = dict.fromkeys((*self.last, *(number for state in states for number in state.last)))
        self._node("join", str(len(states)), tuple(ends))
        for name in dict.fromkeys(name for state in states for name in state.variables if name not in self.variables):
            self.variables[name] = [state.variables[name] for state in states if name in state.variables]

    def call(self, graph: Graph) -> Any:
        """Note that the body runs another program, of which this is the graph; what came of it is not known."""
        self._node("call", graph.name)
        return _Unknown(graph, self._marks, self._template, branch=1)

    # --- reading ---------------------------------------------------------------------------------------------------

    def get_var(self, name: str) -> Any:
        """Give the mark that stands for a variable, or what was set."""
        if name not in self.variables:
            known = ", ".join(map(repr, self.variables)) or "none"
            raise KeyError(f"no variable {name!r} was asked for; known: {known}")
        self._need()
        return self.variables[name]

    __getitem__ = get_var

    def set_var(self, name: str, value: Any) -> None:
        self.variables[name] = value

    __setitem__ = set_var

    def __contains__(self, name: object) -> bool:
        return name in self.variables

    def get_meta_info(self, name: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Give nothing: what a generation will tell is not known."""
        self.get_var(name)
        return {}

    def text(self) -> str:
        return "".join(self._said)

    def messages(self) -> list[dict[str, Any]]:
        """Give no message: their texts are not known."""
        self._need()
        return []

    def sync(self) -> None:
        """Wait for nothing."""

    def error(self) -> None:
        """Tell that nothing failed."""

    def cancel(self) -> None:
        """End nothing."""

    def text_iter(self, var_name: Any = None, return_meta_data: bool = False) -> Iterator[Any]:
        text = self.text() if not isinstance(var_name, str) else str(self.get_var(var_name))
        yield (text, {}) if return_meta_data else text

    async def text_async_iter(self, var_name: Any = None, return_meta_data: bool = False) -> Any:
        for chunk in self.text_iter(var_name, return_meta_data):
            yield chunk

    async def aget(self, name: str) -> Any:
        return self.get_var(name)

    async def aget_meta_info(self, name: str, timeout: float | None = None) -> dict[str, Any]:
        return self.get_meta_info(name, timeout)

    async def atext(self) -> str:
        return self.text()

    async def amessages(self) -> list[dict[str, Any]]:
        return self.messages()

    async def wait(self) -> None:
        """Wait for nothing."""

    async def aerror(self) -> None:
        """Tell that nothing failed."""

    def _need(self) -> None:
        """A body that looks at what it does not know may do anything with it: its beginning ends here."""
        if self._prefix_only:
            raise _Enough


class _Unknown(TracedState):
    """Stand for the state of a program that was called: whatever is read of it is a mark."""

    def get_var(self, name: str) -> Any:
        return self._marks.make("variable", name)

    __getitem__ = get_var

    def text(self) -> str:
        return self._marks.make("variable", self.graph.name)


def trace_body(
    name: str, body: Callable[..., Any], arguments: Mapping[str, Any], unknown: Sequence[str], template: ChatTemplate,
    *, prefix_only: bool = False,
) -> TracedState:  # fmt: skip
    """Run a body on a state that writes down; what the body raises comes out as it is.

    unknown: the arguments that marks stand for.  prefix_only: leave the body at the first thing that is not constant.
    """
    marks = Marks()
    state = TracedState(Graph(name), marks, template, prefix_only=prefix_only)
    keywords = {**arguments, **{one: marks.make("argument", one) for one in unknown}}
    token = TRACING.set(state)
    try:
        returned = body(state, **keywords)
        state.ret_value = _awaited(name, returned) if isinstance(returned, Coroutine) else returned
    except _Enough:
        state.ret_value = None
    finally:
        TRACING.reset(token)
    return state


def _awaited(name: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run an async body that waits for its state alone: that never waits here."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    finally:
        coroutine.close()
    raise InvalidRequest("trace", f"{name} waits for something that is not its state, so it cannot be traced")
