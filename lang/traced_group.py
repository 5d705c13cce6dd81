"""The branches of a program that is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, cast

from .expression import Expression

if TYPE_CHECKING:
    from .tracing import TracedState

__all__ = ["TracedGroup"]


class TracedGroup:
    """Stand for a fork group; leaving it joins."""

    def __init__(self, parent: TracedState, states: list[TracedState], *, single: bool = False) -> None:
        self.states = states
        self._parent = parent
        self._single = single
        self._joined = False

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: int) -> TracedState:
        return self.states[index]

    def __setitem__(self, index: int, state: TracedState) -> None:
        """Allow `group[i] += expression`."""

    def __iter__(self) -> Iterator[TracedState]:
        return iter(self.states)

    def __iadd__(self, expression: Any) -> Self:
        for index, state in enumerate(self.states):
            if isinstance(expression, (Expression, str)):
                state.append(expression)
            elif callable(expression):
                state.append(cast("Callable[[int], Expression | str]", expression)(index))
            else:
                state.append(expression[index])
        return self

    def join(self, mode: str = "gather_variable") -> None:  # noqa: ARG002
        if not self._joined:
            self._joined = True
            self._parent.join(self.states)

    async def ajoin(self, mode: str = "gather_variable") -> None:
        self.join(mode)

    def __enter__(self) -> Any:
        return self.states[0] if self._single else self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.join()

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.__exit__(kind)
