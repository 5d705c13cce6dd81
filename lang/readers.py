"""Reading a program's text while it is being written: the whole, one variable, several, or several branches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

from ..actors.errors import InvalidRequest
from .crossing import await_in, running_loop, wait_in
from .stream_state import StreamState
from .tracks import awaiting
from .variable import Generation, Variable
from .watch import Watch

if TYPE_CHECKING:
    from .branch import Kin

__all__ = ["Chunks", "MergedReader", "TextReader", "iterate", "names_of"]

T = TypeVar("T")
END: Any = object()
"""What a reader gives behind the last chunk."""


class Reader(Protocol):
    """Give chunks: what came since the last was taken.

    Nothing waits for a reader: a slow one gets larger chunks, one that leaves early cancels nothing, and one that
    comes late, even after the end, still gets everything.
    """

    loop: asyncio.AbstractEventLoop

    def poll(self) -> Any:
        """Give what there is now, from any thread: a chunk, or END; None if there is nothing yet."""

    async def read(self) -> Any:
        """Wait for the next chunk, in the program's loop; END behind the last.  Raises the program's error."""


class Chunks(Generic[T]):
    """Iterate a reader in async code."""

    __slots__ = ("_reader",)

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        reader = self._reader
        if (item := reader.poll()) is None:
            item = await await_in(reader.loop, reader.read)
        if item is END:
            raise StopAsyncIteration
        return item


def iterate(reader: Reader, instead: str) -> Iterator[Any]:
    """Iterate a reader in synchronous code; `instead` tells what to write in async code."""
    while True:
        if (item := reader.poll()) is None:
            item = wait_in(reader.loop, reader.read, instead)
        if item is END:
            return
        yield item


class TextReader:
    """Read the text of one stream, or one of its variables.

    In a body, the text ends where everything asked for so far is said; from outside, where the program ends.
    with_meta: a chunk is (text, what is known of the variable), with the log-probabilities that no earlier chunk had;
    the last one knows how it ended, and may be empty.
    """

    def __init__(self, stream: StreamState, var_name: str | None, *, inside: bool, with_meta: bool = False) -> None:
        self.stream = stream
        self.loop = stream.loop
        self.name = var_name
        self._whole = not inside
        self.track = stream.track if inside else None  # of whoever waits here for it
        self._with_meta = with_meta
        self._variable: Variable | None = None
        self._seen = 0  # characters of the text, or of the variable
        self._ended = False  # the last meta data was given
        self._told = 0  # log-probabilities that earlier chunks had

    async def read(self) -> Any:
        """Wait for the next chunk."""
        with awaiting(self.track, self.name or "text"):
            while (item := self.poll()) is None:
                await self.stream.text_bell.wait()
        return item

    def poll(self) -> Any:
        """Give what there is now."""
        stream = self.stream
        over = stream.over  # looked at first: what was said before the end is found behind it
        chunk, complete = self._unread(over)
        if chunk:
            self._seen += len(chunk)
            self._ended = complete
            return self._item(chunk)
        if not complete:
            return None
        if self._variable is None or not self._variable.ready:
            stream.check(whole=self._whole)
        if self._with_meta and not self._ended:
            self._ended = True
            return self._item("")
        return END

    def _item(self, chunk: str) -> Any:
        if not self._with_meta:
            return chunk
        origin: Any = None if self._variable is None else self._variable.origin
        if not isinstance(origin, Generation):
            return chunk, None if self._variable is None else self._variable.meta_info()
        meta = origin.meta_info(self._told)
        self._told = len(origin.logprobs)
        return chunk, meta

    def _unread(self, over: bool) -> tuple[str, bool]:
        """Give the text that was not read, and whether no more can come."""
        stream = self.stream
        if self.name is None:
            complete = over or (not self._whole and stream.executed == stream.submitted)  # as text() does
            return (stream.transcript.text[self._seen :] if stream.begun else ""), complete
        if self._variable is None:
            self._variable = stream.named(self.name)
            if self._variable is None:
                if not over and self._whole:
                    return "", False
                stream.find(self.name, whole=self._whole)
                return "", False
        complete = over or self._variable.ready or self._is_open()
        return stream.written(self._variable, self._seen), complete

    def _is_open(self) -> bool:
        """Whether the body reads a scope that it is in, all of which was said so far: more may never be."""
        stream = self.stream
        if self._whole or stream.executed != stream.submitted:
            return False
        return any(variable is self._variable for _, variable in stream.scopes)


class MergedReader:
    """Read several texts at once, of one stream or of a fork's: each chunk is a tuple that begins with its label.

    kin: the branches, if it is a fork's: those that do not ask for the variable have no chunks, as long as one does.
    What failed gives what it said; an error is raised behind the last chunk of all, if the fork does not collect it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        readers: list[tuple[tuple[Any, ...], TextReader]],
        kin: Kin | None = None,
    ) -> None:
        self.loop = loop
        self._kin = kin
        self._track = readers[0][1].track
        self._ready: deque[tuple[Any, ...]] = deque()
        self._readers: dict[StreamState, list[tuple[tuple[Any, ...], TextReader]]] = {}  # those that have not ended
        for label, reader in readers:
            self._readers.setdefault(reader.stream, []).append((label, reader))
        self._streams = list(self._readers)
        self._begun = False
        self._watch = Watch()
        self._again: list[int] = []  # streams that gave a chunk, and may have more
        self._failure: BaseException | None = None

    async def read(self) -> Any:
        """Wait for the next chunk of any."""
        with awaiting(self._track, "text"):
            while (item := self._next()) is None:
                self._look(await self._watch.rung())
        return item

    def poll(self) -> Any:
        """Give what was found, or can be found here: in the program's loop, or once nothing changes any more."""
        if self._ready:
            return self._ready.popleft()
        if running_loop() is self.loop or all(stream.over for stream in self._readers):
            return self._next()
        return None

    def _next(self) -> Any:
        if not self._begun:
            self._begun = True
            self._leave_out()
            self._look(list(range(len(self._streams))))
        if not self._ready and self._again:
            again, self._again = self._again, []
            self._look(again)
        if self._ready:
            return self._ready.popleft()
        if self._readers:
            return None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return END

    def _look(self, indexes: list[int]) -> None:
        """Take what each of these streams has now; the others have not changed."""
        for index in indexes:
            stream = self._streams[index]
            readers = self._readers.get(stream, [])
            found = len(self._ready)
            going_on = [(label, reader) for label, reader in readers if self._take(label, reader)]
            if not going_on:
                self._readers.pop(stream, None)
                continue
            self._readers[stream] = going_on
            if len(self._ready) > found:
                self._again.append(index)
            else:
                self._watch.add(index, stream.text_bell)

    def _take(self, label: tuple[Any, ...], reader: TextReader) -> bool:
        """Take a chunk, if there is one, and tell whether more may come."""
        try:
            item = reader.poll()
        except Exception as error:
            failure = error if self._kin is None else self._kin.excuse(reader.stream, error)
            self._failure = self._failure or failure
            return False
        if item is END:
            return False
        if item is not None:
            self._ready.append((*label, *item) if type(item) is tuple else (*label, item))
        return True

    def _leave_out(self) -> None:
        """Leave out the branches that do not ask for the variable."""
        asking = {
            stream: known
            for stream, readers in self._readers.items()
            if (known := [one for one in readers if one[1].name is None or stream.named(one[1].name) is not None])
        }
        if self._kin is not None and asking:
            self._readers = asking


def names_of(var_name: str | Iterable[str] | None, return_meta_data: bool) -> tuple[list[str | None], bool]:
    """Give the variables a reader is to read (None: the whole text), and whether several were asked for."""
    if var_name is None:
        if return_meta_data:
            raise InvalidRequest("return_meta_data", "only a variable has meta data; give var_name too")
        return [None], False
    if isinstance(var_name, str):
        return [var_name], False
    names = list(cast("Iterable[Any]", var_name)) if isinstance(var_name, Iterable) else []
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest("var_name", f"{var_name!r:.80} is neither a name nor a list of different names")
    return names, True
