"""Branches: several states that go on from one, at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, cast

from ..actors.errors import InvalidRequest
from .crossing import await_in, wait_in
from .expression import Expression
from .script import Branches
from .state import ProgramState
from .stream import Stream
from .variable import Variable

__all__ = ["Copy", "ForkGroup"]


class ForkGroup:
    """Own the branches of one fork.  They begin when the parent has executed what it said before; leaving joins.

    A branch nobody joins ends with its parent: its work is waited for, and an error in it that nobody has seen is
    raised there.
    """

    def __init__(self, stream: Stream, size: int) -> None:
        streams = tuple(
            Stream(f"{stream.name}/{len(stream.branches) + index}", stream.backend, stream.defaults, stream)
            for index in range(size)
        )
        for name, _ in stream.scopes:  # open in the parent: no branch can wait for their end
            for branch in streams:
                branch.variables.pop(name, None)
        stream.append((Branches(streams),))
        stream.branches += streams
        self._stream = stream
        self._streams = streams
        self._states = [ProgramState(branch) for branch in streams]

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, index: int) -> ProgramState:
        return self._states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """Allow `group[i] += expression`, and nothing else."""
        if self._states[index] is not state:
            raise InvalidRequest("state", "a branch cannot be replaced; only `group[i] += ...` is meant to work")

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    def __iadd__(
        self, expression: Expression | str | Callable[[int], Expression | str] | Sequence[Expression | str]
    ) -> Self:
        """Append to every branch: the same, or one of a list each, or what a function of the index gives."""
        if isinstance(expression, (Expression, str)):
            expressions: list[Any] = [expression] * len(self)
        elif callable(expression):
            make = cast("Callable[[int], Expression | str]", expression)
            expressions = [make(index) for index in range(len(self))]
        elif isinstance(expression, (list, tuple)):
            expressions = list(cast("Sequence[Expression | str]", expression))
            if len(expressions) != len(self):
                raise InvalidRequest("expression", f"{len(expressions)} given for {len(self)} branches")
        else:
            raise InvalidRequest("expression", f"{expression!r:.80} is no text, expression, list of them or function")
        for state, item in zip(self._states, expressions, strict=True):
            state.append(item)
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """End the branches, wait for them, and give the parent a list of each variable that is new in them.

        Raises the error of the first branch that failed.
        """
        _check_mode(mode)
        wait_in(self._stream.loop, self._join, "await group.ajoin()")

    async def ajoin(self, mode: str = "gather_variable") -> None:
        """Do what `join` does, in async code."""
        _check_mode(mode)
        await await_in(self._stream.loop, self._join)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if error is None:
            self.join()
        else:
            self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if error is None:
            await self.ajoin()
        else:
            self._cancel()

    def _cancel(self) -> None:
        for branch in self._streams:
            branch.observed = True  # the block's own error is being raised
            branch.request_cancel()

    async def _join(self) -> None:
        for branch in self._streams:
            await branch.finish()
        for branch in self._streams:
            branch.check()
        self._gather()

    def _gather(self) -> None:
        branches, variables = self._streams, self._stream.variables
        new = {name: None for branch in branches for name in branch.variables if name not in variables}
        for name in new:
            found = [branch.variables[name] for branch in branches if name in branch.variables]
            gathered = Variable()
            gathered.origin = [variable.origin for variable in found]
            gathered.set([variable.value for variable in found])
            variables[name] = gathered


class Copy:
    """One branch for the length of a `with` block."""

    def __init__(self, group: ForkGroup) -> None:
        self._group = group

    def __enter__(self) -> ProgramState:
        return self._group[0]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._group.__exit__(kind, error, trace)

    async def __aenter__(self) -> ProgramState:
        return self._group[0]

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        await self._group.__aexit__(kind, error, trace)


def _check_mode(mode: str) -> None:
    if mode == "concate_and_append":
        raise InvalidRequest("mode", "'concate_and_append' is not supported yet; only 'gather_variable' is")
    if mode != "gather_variable":
        raise InvalidRequest("mode", f"{mode!r:.80} is unknown; there is 'gather_variable'")
