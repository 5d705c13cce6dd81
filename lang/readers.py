"""Reading a program's text while it is being written."""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from .crossing import await_in
from .stream import Stream
from .variable import Variable

__all__ = ["TextReader"]

T = TypeVar("T")


class TextReader(Generic[T]):
    """Give the text in chunks: what came since the last one was taken.

    In a body, the text ends where everything asked for so far is said; from outside, where the program ends.
    Nothing waits for a reader: a slow one gets larger chunks, one that leaves early cancels nothing, and one that
    comes late, even after the end, still gets everything.
    """

    def __init__(self, stream: Stream, var_name: str | None, *, inside: bool, with_meta: bool = False) -> None:
        self._stream = stream
        self._name = var_name
        self._whole = not inside
        self._with_meta = with_meta
        self._variable: Variable | None = None
        self._seen = 0  # characters of the text, or of the variable

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if (item := self.poll()) is None:
            item = await await_in(self._stream.loop, self.read)
        if not item:
            raise StopAsyncIteration
        return item if self._with_meta else item[0]  # type: ignore[return-value]

    async def read(self) -> tuple[str, Any] | tuple[()]:
        """Wait for the next chunk, in the stream's loop; it is empty at the end.  Raises the program's error."""
        while (item := self.poll()) is None:
            await self._stream.text_bell.wait()
        return item

    def poll(self) -> tuple[str, Any] | tuple[()] | None:
        """Give what there is now, from any thread: a chunk and what is known of its variable, or () at the end.

        None: nothing yet.
        """
        stream = self._stream
        over = stream.over  # looked at first: what was said before the end is found behind it
        chunk, complete = self._unread(over)
        if chunk:
            self._seen += len(chunk)
            return chunk, None if self._variable is None else self._variable.meta_info()
        if not complete:
            return None
        if self._variable is None or not self._variable.ready:
            stream.check()
        return ()

    def _unread(self, over: bool) -> tuple[str, bool]:
        """Give the text that was not read, and whether no more can come."""
        stream = self._stream
        if self._name is None:
            complete = over or (not self._whole and stream.executed == stream.submitted)  # as text() does
            return (stream.transcript.text[self._seen :] if stream.begun else ""), complete
        if self._variable is None:
            if not over and self._name not in stream.variables and self._whole:
                return "", False
            self._variable = stream.variables.get(self._name)
            if self._variable is None:
                stream.find(self._name, whole=self._whole)
                return "", False
        complete = over or self._variable.ready
        return stream.written(self._variable, self._seen), complete
