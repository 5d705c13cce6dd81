"""Branches: several states that go on from one, at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, cast

import anyio

from ..actors.errors import Aborted, InvalidRequest
from .branch import Branch, Kin
from .completed import Completed
from .crossing import await_in, wait_in
from .expression import Expression
from .house import HOUSE
from .readers import Chunks, MergedReader, TextReader, iterate, names_of
from .script import Branches, Concatenate
from .state import ProgramState
from .stream import Stream
from .tracks import awaiting, draw_join
from .variable import Variable

__all__ = ["Copy", "ForkGroup", "check_fork"]

MODES = ("gather_variable", "concate_and_append")


class ForkGroup:
    """Own the branches of one fork.  They begin when the parent has executed what it said before; leaving joins.

    A branch nobody joins ends with its parent: its work is waited for, and an error in it that nobody has seen is
    raised there.
    """

    def __init__(self, stream: Stream, offsets: list[int], on_error: str) -> None:
        self._kin = kin = Kin(stream, offsets, on_error)
        for name, _ in stream.scopes:  # open in the parent: no branch can wait for their end
            for branch in kin.branches:
                branch.variables.pop(name, None)
        stream.append((Branches(kin),))
        stream.forks += (kin,)
        self._stream = stream
        self._role = stream.role
        self._states = [ProgramState(branch) for branch in kin.branches]

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

    # --- all of them -----------------------------------------------------------------------------------------------

    def join(self, mode: str = "gather_variable") -> None:
        """End the branches, wait for them, and give the parent a list of each variable that is new in them.

        mode: "concate_and_append" also appends to the parent what each branch said, one behind the other.
        Raises the error of the first branch that failed.  With on_error="collect" it raises none: in the lists, the
        error stands where the branch's value would, and the text of such a branch is not appended.
        """
        _check_one_of("mode", mode, MODES)
        wait_in(self._stream.loop, lambda: self._join(mode), "await group.ajoin()")

    async def ajoin(self, mode: str = "gather_variable") -> None:
        """Do what `join` does, in async code."""
        _check_one_of("mode", mode, MODES)
        await await_in(self._stream.loop, lambda: self._join(mode))

    def errors(self) -> list[BaseException | None]:
        """Give what each branch failed with, or None, once everything so far is executed; raises nothing."""
        return [state.error() for state in self._states]

    async def aerrors(self) -> list[BaseException | None]:
        """Do what `errors` does, in async code."""
        return [await state.aerror() for state in self._states]

    def cancel(self) -> None:
        """End every branch now, with its generations; a join leaves out those that were not complete."""
        for branch in self._kin.branches:
            branch.request_cancel()

    # --- one after the other ---------------------------------------------------------------------------------------

    def as_completed(self) -> Completed:
        """Give the branches in the order in which they have said what they were asked for: `for` and `async for`."""
        states = dict(zip(self._kin.branches, self._states, strict=True))
        return Completed(self._kin, self._stream.loop, states.__getitem__)

    def first(self, count: int = 1, *, cancel_rest: bool = True) -> list[ProgramState]:
        """Wait until `count` branches have said what they were asked for, and give them in that order.

        cancel_rest: end the others, and let a join leave them out; else they go on.  An error is raised as soon as a
        branch fails; with on_error="collect", once so many have failed that `count` cannot be reached.
        """
        self._check_count(count)
        return wait_in(self._stream.loop, lambda: self._first(count, cancel_rest), "await group.afirst(...)")

    async def afirst(self, count: int = 1, *, cancel_rest: bool = True) -> list[ProgramState]:
        """Do what `first` does, in async code."""
        self._check_count(count)
        return await await_in(self._stream.loop, lambda: self._first(count, cancel_rest))

    # --- reading ---------------------------------------------------------------------------------------------------

    def text_iter(
        self, var_name: str | Iterable[str] | None = None, return_meta_data: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Give (index, chunk) as any branch says something; it ends where `state.text_iter` of each would.

        With several names (index, name, chunk); with return_meta_data what is known of the variable comes last.
        """
        return iterate(self._reader(var_name, return_meta_data), "async for ... in group.text_async_iter(...)")

    def text_async_iter(
        self, var_name: str | Iterable[str] | None = None, return_meta_data: bool = False
    ) -> Chunks[tuple[Any, ...]]:
        """Do what `text_iter` does, in async code."""
        return Chunks(self._reader(var_name, return_meta_data))

    def _reader(self, var_name: str | Iterable[str] | None, return_meta_data: bool) -> MergedReader:
        names, several = names_of(var_name, return_meta_data)
        readers = [
            ((index, name) if several else (index,), TextReader(branch, name, inside=True, with_meta=return_meta_data))
            for index, branch in enumerate(self._kin.branches)
            for name in names
        ]
        return MergedReader(self._stream.loop, readers, self._kin)

    # --- as a block ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if error is None:
            self.join()
        else:
            self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if error is None:
            await self.ajoin()
        else:
            with anyio.CancelScope(shield=True):
                await await_in(self._stream.loop, self._give_up)

    # --- inside, in the stream's loop ------------------------------------------------------------------------------

    async def _give_up(self) -> None:
        self._kin.cancel_nowait(Aborted("the block of the fork was left by an error"))
        await self._kin.cleared()

    async def _join(self, mode: str) -> None:
        kin, stream = self._kin, self._stream
        together = mode == "concate_and_append" and stream.backend.joins and HOUSE.settings.parallel_encoding
        kin.joining = together
        kin.submit_end()
        with awaiting(stream.track, "join"):
            await kin.gone()
        stream.forget(kin)
        joined = [branch for branch in kin.branches if not branch.dismissed]
        draw_join(stream, joined)
        for branch in joined:
            branch.observed = True
        if kin.on_error != "collect":
            for branch in joined:
                kin.check(branch)
        if mode == "concate_and_append":
            self._check_roles(joined)
            stream.check_open()
            stream.append((Concatenate([branch for branch in joined if branch.error is None], together),))
        self._gather(joined)

    def _gather(self, joined: list[Branch]) -> None:
        variables = self._stream.variables
        new = {name: None for branch in joined for name in branch.variables if name not in variables}
        for name in new:
            found = [(branch, branch.variables[name]) for branch in joined if name in branch.variables]
            gathered = Variable()
            gathered.origin = [variable.origin for _, variable in found]
            gathered.set(
                [branch.error if branch.error and not variable.ready else variable.value for branch, variable in found]
            )
            variables[name] = gathered

    def _check_roles(self, joined: list[Branch]) -> None:
        """Refuse to join messages that would begin in one branch and end in another."""
        for branch in joined:
            if branch.role != self._role or self._stream.role != self._role:
                raise InvalidRequest("mode", f"'concate_and_append' cannot join a message that {branch.name} left open")
            if self._role is not None and len(branch.transcript.messages) > branch.mark.messages:
                raise InvalidRequest("mode", f"'concate_and_append': {branch.name} ended a message of its parent's")

    async def _first(self, count: int, cancel_rest: bool) -> list[ProgramState]:
        completed, found = self.as_completed(), list[ProgramState]()
        failed: list[Branch] = []
        while len(found) < count:
            branch = await completed.next()
            if branch is None:  # a fork that collects, or one whose branches were cancelled
                if failed:
                    failed[0].check()
                raise Aborted(f"{len(found)} of {count} branches were complete; the others were cancelled")
            if branch.error is None:
                found.append(self._states[self._kin.branches.index(branch)])
            else:
                branch.observed = True
                failed.append(branch)
        if cancel_rest:
            kept = {id(state) for state in found}
            rest = [one for one, state in zip(self._kin.branches, self._states, strict=True) if id(state) not in kept]
            self._kin.dismiss(rest)
            for branch in rest:
                await branch.left()
        return found

    def _check_count(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(self):
            raise InvalidRequest("count", f"{count!r:.80} is not a number of branches from 1 to {len(self)}")


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


def _check_one_of(field: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise InvalidRequest(field, f"{given!r:.80} is unknown; there is {', '.join(map(repr, allowed))}")


def check_fork(size: int, position_ids_offset: Any, on_error: str) -> list[int]:
    """Give the offset of each branch's positions; raises InvalidRequest for what no fork can be."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidRequest("size", f"{size!r:.80} is not a whole number of branches, at least 1")
    _check_one_of("on_error", on_error, ("raise", "cancel", "collect"))
    if position_ids_offset is None:
        return [0] * size
    if not isinstance(position_ids_offset, (list, tuple)):
        raise InvalidRequest("position_ids_offset", f"{position_ids_offset!r:.80} is not a list, one offset a branch")
    offsets = list(cast("Sequence[Any]", position_ids_offset))
    if len(offsets) != size:
        raise InvalidRequest("position_ids_offset", f"{len(offsets)} given for {size} branches")
    for offset in offsets:
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise InvalidRequest(
                "position_ids_offset", f"{offset!r:.80} is not a whole number of positions, at least 0"
            )
    return offsets
