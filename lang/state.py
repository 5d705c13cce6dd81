"""What a program's body holds in its hand: append to it, and read what came of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self, TypeVar

from anyio import fail_after

from ..actors.errors import InvalidRequest, Overloaded
from .author import write
from .body import current_body
from .crossing import await_in, wait_in
from .expression import Expression, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Sequence
from .readers import Chunks, MergedReader, TextReader, iterate, names_of
from .roles import message
from .stream import Stream
from .stream_state import AHEAD
from .variable import Variable

if TYPE_CHECKING:
    from .fork import Copy, ForkGroup

__all__ = ["ProgramState"]

R = TypeVar("R")
NOTHING = Sequence(())


class ProgramState:
    """The state of one program.

    Inside a body, and on the branches of a fork, reading waits for what was asked for so far; on the state that a
    run gave back, for the end of the program.  Plain bodies, threads and notebooks read with `state["name"]`,
    `text()` and so on; async code awaits `aget("name")`, `atext()` and so on, except for what is there already.
    Every read of something that failed raises the error it failed with.
    """

    __slots__ = ("_inside", "_stream")

    def __init__(self, stream: Stream, *, inside: bool = True) -> None:
        self._stream = stream
        self._inside = inside

    # --- saying ----------------------------------------------------------------------------------------------------

    def append(self, expression: Expression | str) -> None:
        """Append an expression, without waiting for it, as `state += expression` does.

        Raises InvalidRequest for what cannot be said, the error if the program has failed, RuntimeError if it has
        ended, and Overloaded if thousands of appends are not executed yet and this is async code.
        """
        self.__iadd__(expression)

    def __iadd__(self, expression: Expression | str) -> Self:
        stream = self._stream
        if stream.over or get_ident() == stream.thread:
            if stream.ended or stream.submitted - stream.executed >= AHEAD:
                self._make_room()
            stream.append(write(stream, expression))
        else:  # a thread that the body started

            async def append() -> None:
                self.append(expression)

            wait_in(stream.loop, append, "state += expression in the body's own loop")
        return self

    def _make_room(self) -> None:
        stream = self._stream
        if not stream.ended and not stream.has_room:
            body = current_body()
            if body is None:
                raise Overloaded(f"{stream.name}: {AHEAD} steps are not executed yet, its bound; await s.wait()")
            body.wait(stream.room())
        stream.check_open()

    def system(self, expr: Expression | str | None = None) -> Any:
        """Say a system message; without an expression, a `with` block whose text is the message."""
        return self.role("system", expr)

    def user(self, expr: Expression | str | None = None) -> Any:
        """Say a user's message; without an expression, a `with` block whose text is the message."""
        return self.role("user", expr)

    def assistant(self, expr: Expression | str | None = None) -> Any:
        """Say the assistant's message; without an expression, a `with` block whose text is the message."""
        return self.role("assistant", expr)

    def role(self, role: str, expression: Expression | str | None = None) -> Any:
        """Say a message of any role the chat template knows; `s += s.user(...)` says it once, as `s.user(...)` does."""
        if expression is None:
            return self._between(RoleBegin(role), RoleEnd(role))
        self.append(message(role, expression))
        return NOTHING

    def var_scope(self, name: str) -> Any:
        """Keep everything said in a `with` block as the variable `name`."""
        return self._between(ScopeBegin(name), ScopeEnd(name))

    @contextmanager
    def _between(self, begin: Expression, end: Expression) -> Iterator[None]:
        self.append(begin)
        yield
        self.append(end)

    # --- branches --------------------------------------------------------------------------------------------------

    def fork(
        self, size: int = 1, position_ids_offset: list[int] | None = None, *, on_error: str = "raise"
    ) -> ForkGroup:
        """Go on in `size` branches from here, at the same time; as a `with` block, leaving it joins.

        position_ids_offset: how far each branch's positions are moved; text is the same whatever they are.
        on_error: what a branch that fails does.  "raise": the others go on, and the join raises its error.  "cancel":
        the others are cancelled at once, and the join raises its error.  "collect": the others go on, and its error
        is found in `group.errors()` and in the lists of the join.
        """
        from .fork import ForkGroup, check_fork

        offsets = check_fork(size, position_ids_offset, on_error)
        loop = self._stream.loop
        if get_ident() == self._stream.thread:
            self._make_room()
            return ForkGroup(self._stream, offsets, on_error)

        async def fork() -> ForkGroup:
            return self.fork(size, position_ids_offset, on_error=on_error)

        return wait_in(loop, fork, "state.fork in the body's own loop")

    def copy(self, position_ids_offset: list[int] | None = None) -> Copy:
        """Go on in one branch, inside a `with` block; leaving it gathers its variables."""
        from .fork import Copy

        return Copy(self.fork(1, position_ids_offset))

    # --- reading, waiting ------------------------------------------------------------------------------------------

    def get_var(self, name: str) -> Any:
        """Give a variable, waiting until it is there; KeyError if the program never asks for it."""
        return self._found(name, "aget").value

    __getitem__ = get_var

    def get_meta_info(self, name: str, timeout: float | None = None) -> Any:
        """Tell how a variable came about, waiting until it is there: a dict, or None if nothing generated it.

        timeout: seconds until TimeoutError, None for no end.
        """
        return self._found(name, "aget_meta_info", timeout).meta_info()

    def text(self) -> str:
        """Give everything said so far, once it is executed."""
        self.sync("await state.atext()")
        return self._stream.transcript.text

    def messages(self) -> list[dict[str, Any]]:
        """Give the finished chat messages, as role and content, once everything so far is executed."""
        self.sync("await state.amessages()")
        return [dict(message) for message in self._stream.transcript.messages]

    def sync(self, instead: str = "await state.wait()") -> None:
        """Wait until everything appended so far is executed; raises the error if something failed."""
        if not self._is_settled():
            self._wait(self._settle, instead)
        self._stream.check(whole=not self._inside)

    def error(self) -> BaseException | None:
        """Give the error the program failed with, or None, once everything so far is executed; raises nothing."""
        if not self._is_settled():
            self._wait(self._settle, "await state.aerror()")
        return self._see_error()

    def text_iter(self, var_name: str | Iterable[str] | None = None, return_meta_data: bool = False) -> Iterator[Any]:
        """Give the text, or one variable's, in chunks as it comes; a slow reader gets larger ones.

        With several names it gives (name, chunk) as any of them grows; with return_meta_data, what is known of the
        variable comes last: (chunk, meta) or (name, chunk, meta), and a variable's last chunk knows how it ended.
        """
        return iterate(self._reader(var_name, return_meta_data), "async for text in state.text_async_iter(...)")

    # --- reading, in async code ------------------------------------------------------------------------------------

    async def aget(self, name: str) -> Any:
        """Await a variable; KeyError if the program never asks for it."""
        return (await self._settled(name)).value

    async def aget_meta_info(self, name: str, timeout: float | None = None) -> Any:
        """Await a variable, and tell how it came about; TimeoutError after `timeout` seconds, if one is given."""
        return (await self._settled(name, timeout)).meta_info()

    async def atext(self) -> str:
        """Await everything said so far."""
        await self.wait()
        return self._stream.transcript.text

    async def amessages(self) -> list[dict[str, Any]]:
        """Await the finished chat messages."""
        await self.wait()
        return [dict(message) for message in self._stream.transcript.messages]

    async def wait(self) -> None:
        """Await that everything appended so far is executed; raises the error if something failed."""
        await self._settle()
        self._stream.check(whole=not self._inside)

    async def aerror(self) -> BaseException | None:
        """Await everything so far, and give the error or None."""
        await self._settle()
        return self._see_error()

    def text_async_iter(
        self, var_name: str | Iterable[str] | None = None, return_meta_data: bool = False
    ) -> Chunks[Any]:
        """Do what `text_iter` does, in async code."""
        return Chunks(self._reader(var_name, return_meta_data))

    # --- at once ---------------------------------------------------------------------------------------------------

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable of this state."""
        if not isinstance(name, str) or not name:
            raise InvalidRequest("name", f"{name!r:.80} is not a non-empty string")
        if isinstance(value, Expression):
            raise InvalidRequest("value", f"{value!r:.80} is nothing yet; append it, and its name has the value")
        variable = Variable()
        variable.set(value)
        self._stream.variables[name] = variable

    __setitem__ = set_var

    def __contains__(self, name: object) -> bool:
        """Whether a variable was asked for or set so far; never waits."""
        return name in self._stream.variables

    @property
    def ret_value(self) -> Any:
        """What the body returned; None until it has."""
        return self._stream.returned

    def cancel(self) -> None:
        """End the program now, with its branches and generations; its waiters raise Aborted."""
        self._stream.request_cancel()

    def __repr__(self) -> str:
        stream = self._stream
        how = "running" if not stream.over else "done" if stream.error is None else f"failed: {stream.error!r:.80}"
        return f"<ProgramState of {stream.name}, {how}, {sorted(stream.variables)}>"

    # --- inside ----------------------------------------------------------------------------------------------------

    def _reader(self, var_name: str | Iterable[str] | None, return_meta_data: bool) -> TextReader | MergedReader:
        names, several = names_of(var_name, return_meta_data)
        stream, inside = self._stream, self._inside
        if not several:
            return TextReader(stream, names[0], inside=inside, with_meta=return_meta_data)
        readers = [TextReader(stream, name, inside=inside, with_meta=return_meta_data) for name in names]
        return MergedReader(stream.loop, [((reader.name,), reader) for reader in readers])

    def _is_settled(self) -> bool:
        stream = self._stream
        return stream.over or (self._inside and stream.executed == stream.submitted)

    async def _settle(self) -> None:
        if not self._is_settled():
            stream = self._stream
            await await_in(stream.loop, stream.caught_up if self._inside else stream.concluded)

    def _see_error(self) -> BaseException | None:
        self._stream.observe(whole=not self._inside)
        return self._stream.error

    def _wait(self, make: Callable[[], Coroutine[Any, Any, R]], instead: str) -> R:
        return wait_in(self._stream.loop, make, instead)

    def _found(self, name: str, instead: str, timeout: float | None = None) -> Variable:
        self._check_scope(name)
        stream, whole = self._stream, not self._inside
        variable = stream.find(name, whole=whole)
        if variable is None:
            make = partial(stream.settled, name, whole=whole)
            make = make if timeout is None else partial(_in_time, make, timeout)
            variable = self._wait(make, f"await state.{instead}({name!r})")
        return variable

    async def _settled(self, name: str, timeout: float | None = None) -> Variable:
        self._check_scope(name)
        stream, whole = self._stream, not self._inside
        variable = stream.find(name, whole=whole)
        if variable is None:
            make = partial(stream.settled, name, whole=whole)
            variable = await await_in(stream.loop, make if timeout is None else partial(_in_time, make, timeout))
        return variable

    def _check_scope(self, name: str) -> None:
        if self._inside and any(name == opened for opened, _ in self._stream.scopes):
            raise InvalidRequest(name, "its var_scope is still open; read it behind the `with` block")


async def _in_time(make: Callable[[], Coroutine[Any, Any, R]], timeout: float) -> R:
    with fail_after(timeout):  # only where it is asked for: a scope a read is dear with ten thousand of them
        return await make()
