"""Programs: functions that take a state, and the ways to run them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, overload

from ..actors.backend import Backend
from ..actors.chat_template import ChatTemplate
from ..actors.errors import InvalidRequest
from .batch import Batch, Items
from .crossing import await_in, wait_in
from .graph import Graph
from .house import HOUSE
from .performer import Call, play
from .precaching import precache_prefix
from .running import Running, start
from .sampling_arguments import RUN_ARGUMENTS, Defaults
from .state import ProgramState
from .tracing import TRACING, trace_body

__all__ = ["Program", "function"]

_OWN = frozenset({"stream", "backend", "use_thread"})


class Program:
    """A function whose first parameter is the state it writes to; make one with `@function`.

    Its body, plain or async, runs in the loop where its backend lives.  Sampling arguments given to `run` are the
    defaults of every `gen` in it.
    """

    def __init__(
        self, body: Callable[..., Any], bound: Mapping[str, Any] | None = None, num_api_spec_tokens: int | None = None
    ) -> None:
        if not callable(body):
            raise InvalidRequest("function", f"{body!r:.80} is not a function")
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise InvalidRequest("function", "it has a `yield`, so calling it runs nothing; let it return what it has")
        parameters = list(inspect.signature(body).parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):  # fmt: skip
            raise InvalidRequest("function", "its first parameter must be the state, as in `def program(s, ...)`")
        for parameter in parameters[1:]:
            if parameter.name in RUN_ARGUMENTS | _OWN:
                raise InvalidRequest("function", f"its parameter {parameter.name!r} is an argument of run; rename it")
        self.num_api_spec_tokens = _verified_tokens(num_api_spec_tokens)
        self.body = body
        self.bound = dict(bound or {})
        self.__name__ = getattr(body, "__name__", "program")
        self.__doc__ = body.__doc__
        self._names = [parameter.name for parameter in parameters[1:] if parameter.kind.name != "VAR_KEYWORD"]
        self._signature = inspect.signature(body)
        self._asynchronous = inspect.iscoroutinefunction(body)
        self._required = {p.name for p in parameters[1:] if p.default is p.empty and not p.kind.name.startswith("VAR")}
        self._plain: Defaults | None = None  # for runs without sampling arguments

    # --- one -------------------------------------------------------------------------------------------------------

    def run(
        self, *arguments: Any, stream: bool = False, backend: Backend | None = None, use_thread: bool = True,  # noqa: ARG002
        **keywords: Any,
    ) -> ProgramState:  # fmt: skip
        """Run to the end and give the state; with stream=True give it at once, to be read while the program runs.

        keywords: the body's own arguments, and sampling arguments (max_new_tokens, temperature, stop, ...).
        use_thread: accepted and without effect; there are no threads.  Raises what failed.  In async code use `arun`.
        """
        if (tracing := TRACING.get()) is not None:
            return tracing.call(self.trace(*arguments, backend=backend, **keywords))
        call = self._call(arguments, keywords, HOUSE.choose(backend))
        loop = HOUSE.home_blocking(call.backend)
        return wait_in(loop, lambda: start_new(call) if stream else play_new(call), "await program.arun(...)")

    __call__ = run

    async def arun(
        self, *arguments: Any, stream: bool = False, backend: Backend | None = None, **keywords: Any
    ) -> ProgramState:
        """Do what `run` does, in async code; cancelling it cancels the program."""
        if (tracing := TRACING.get()) is not None:
            return tracing.call(self.trace(*arguments, backend=backend, **keywords))
        call = self._call(arguments, keywords, HOUSE.choose(backend))
        loop = await HOUSE.home(call.backend)
        return await await_in(loop, lambda: start_new(call) if stream else play_new(call))

    def astream(self, *arguments: Any, backend: Backend | None = None, **keywords: Any) -> Running:
        """Run for the length of a block, and give its state at once: `async with program.astream(...) as state`.

        Leaving the block cancels what still runs.  A program that failed unseen raises its error behind the block.
        """
        return Running(self._call(arguments, keywords, HOUSE.choose(backend)))

    def stream(self, *arguments: Any, backend: Backend | None = None, **keywords: Any) -> Running:
        """Do what `astream` does, in synchronous code: `with program.stream(...) as state`."""
        return Running(self._call(arguments, keywords, HOUSE.choose(backend)))

    # --- many ------------------------------------------------------------------------------------------------------

    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | tuple[Any, ...] | list[Any]],
        *,
        backend: Backend | None = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        order: str = "input",
        on_error: str = "raise",
        precache: bool | None = None,
        **sampling: Any,
    ) -> Any:
        """Run once for each item, many at the same time, and give the states in the items' order.

        batch_kwargs: a dict of the body's arguments each, or a tuple of them in order.  num_threads: how many run
        at once (there are no threads).  generator_style: give an iterator instead of a list, in `order` "input" or
        "completion".  on_error: "raise" ends the batch with the first error; "return" gives failed states too, whose
        `error()` tells.  precache: trace what all begin with, and let the backend compute that before anything runs;
        the body is entered once more for it, up to the first thing that is not constant.  None does as
        `global_config.enable_precache_with_tracing` says.
        """
        batch = self.arun_batch(
            batch_kwargs, backend=backend, num_threads=num_threads, progress_bar=progress_bar, order=order,
            on_error=on_error, precache=precache, **sampling,
        )  # fmt: skip
        return batch.iterate() if generator_style else batch.collect_blocking()

    def arun_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | tuple[Any, ...] | list[Any]],
        *,
        backend: Backend | None = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,  # noqa: ARG002  (the batch is both)
        order: str = "input",
        on_error: str = "raise",
        precache: bool | None = None,
        **sampling: Any,
    ) -> Batch:
        """Do what `run_batch` does, in async code: `await` gives the list, `async for` the states one by one."""
        chosen = HOUSE.choose(backend)
        defaults = self._defaults(sampling, chosen)
        calls = [self._item(item, chosen, defaults) for item in batch_kwargs]
        ahead = HOUSE.settings.precache if precache is None else precache
        return Batch(calls, chosen, Items(num_threads, order, on_error, progress_bar), precache=ahead)

    # --- without arguments -------------------------------------------------------------------------------------------

    def trace(self, *arguments: Any, backend: Backend | None = None, **keywords: Any) -> Graph:
        """Give the graph of what this program says; for arguments that are left out stand marks, which are texts.

        The body is run, and generates nothing: what it reads of a generation is a mark, too.  backend: whose chat
        template writes roles; None writes them plainly.  Raises what the body raises.
        """
        given = {name: value for name, value in keywords.items() if name not in RUN_ARGUMENTS}
        try:
            told = self._signature.bind_partial(None, *arguments, **{**self.bound, **given}).arguments
        except TypeError as error:
            raise InvalidRequest("arguments", f"{self.__name__}{self._signature}: {error}") from None
        known = dict(list(told.items())[1:])
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                known.update(known.pop(parameter.name, {}))
        unknown = [name for name in self._names if name in self._required and name not in known]
        template = ChatTemplate() if backend is None else backend.chat_template
        return trace_body(self.__name__, self.body, known, unknown, template).graph

    def cache(self, backend: Backend | None = None) -> str:
        """Let a backend compute what this program begins with whatever its arguments are, and give that text."""
        chosen = HOUSE.choose(backend)
        return wait_in(HOUSE.home_blocking(chosen), lambda: self._cache(chosen), "await program.acache(...)")

    async def acache(self, backend: Backend | None = None) -> str:
        """Do what `cache` does, in async code."""
        chosen = HOUSE.choose(backend)
        return await await_in(await HOUSE.home(chosen), lambda: self._cache(chosen))

    async def _cache(self, backend: Backend) -> str:
        known = dict(self.bound)
        call = Call(self.body, (), known, backend, self._defaults({}, backend), asynchronous=self._asynchronous)
        return await precache_prefix(
            call, known, [name for name in self._names if name in self._required - known.keys()]
        )

    # --- variations ------------------------------------------------------------------------------------------------

    def bind(self, **arguments: Any) -> Program:
        """Give the same program with these arguments fixed; everything else about it stays."""
        unknown = [name for name in arguments if name not in self._signature.parameters]
        if unknown and not any(p.kind.name == "VAR_KEYWORD" for p in self._signature.parameters.values()):
            raise InvalidRequest(unknown[0], f"{self.__name__} has no such argument; it has {', '.join(self._names)}")
        program = copy(self)
        program.bound = {**self.bound, **arguments}
        return program

    def __repr__(self) -> str:
        return f"<Program {self.__name__}{self._signature}>"

    # --- inside ----------------------------------------------------------------------------------------------------

    def _call(self, arguments: tuple[Any, ...], keywords: dict[str, Any], backend: Backend) -> Call:
        sampling = {name: keywords.pop(name) for name in list(keywords) if name in RUN_ARGUMENTS}
        return self._checked(arguments, keywords, backend, self._defaults(sampling, backend))

    def _defaults(self, sampling: dict[str, Any], backend: Backend) -> Defaults:
        skip = HOUSE.settings.skip_special_tokens
        if sampling:
            return Defaults(
                sampling, backend, skip_special_tokens=skip, overrun_tokens=self.num_api_spec_tokens
            )  # fmt: skip
        plain = self._plain
        if plain is None or not plain.hold_for(backend) or plain.sampling.skip_special_tokens is not skip:
            plain = self._plain = Defaults(
                {}, backend, skip_special_tokens=skip, overrun_tokens=self.num_api_spec_tokens
            )
        return plain

    def _item(self, item: Any, backend: Backend, defaults: Defaults) -> Call:
        if type(item) is dict or isinstance(item, Mapping):
            return self._checked((), dict(item), backend, defaults)
        if isinstance(item, (tuple, list)):
            free = [name for name in self._names if name not in self.bound]
            if len(item) > len(free):
                raise InvalidRequest("batch_kwargs", f"{len(item)} values for the arguments {', '.join(free)}")
            return self._checked((), dict(zip(free, item, strict=False)), backend, defaults)
        raise InvalidRequest("batch_kwargs", f"an item is a dict or a tuple of arguments; got {item!r:.80}")

    def _checked(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], backend: Backend, defaults: Defaults
    ) -> Call:
        keywords = {**self.bound, **keywords}
        if arguments or keywords.keys() != self._required:  # else it is plain that they fit
            try:
                self._signature.bind(None, *arguments, **keywords)
            except TypeError as error:
                hint = "; a run's limit is max_new_tokens" if "max_tokens" in keywords else ""  # and a gen's is not
                raise InvalidRequest("arguments", f"{self.__name__}{self._signature}: {error}{hint}") from None
        return Call(self.body, arguments, keywords, backend, defaults, asynchronous=self._asynchronous)


async def play_new(call: Call) -> ProgramState:
    return await play(call, call.open())


async def start_new(call: Call) -> ProgramState:
    stream = call.open()
    await start(call, stream)
    return ProgramState(stream, inside=False)


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = None) -> Program: ...
@overload
def function(func: None = None, num_api_spec_tokens: int | None = None) -> Callable[[Callable[..., Any]], Program]: ...
def function(func: Any = None, num_api_spec_tokens: int | None = None) -> Any:
    """Make a program of a function, plain or async, whose first parameter is the state.

    num_api_spec_tokens: let one call to a service write up to so many tokens, and serve several `gen` where what it
    wrote fits what the program says.  It has no effect on backends that gain nothing by it.
    """
    if func is None:
        tokens = _verified_tokens(num_api_spec_tokens)
        return lambda body: Program(body, num_api_spec_tokens=tokens)
    return Program(func, num_api_spec_tokens=num_api_spec_tokens)


def _verified_tokens(tokens: Any) -> int | None:
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= 1 << 20):
        raise InvalidRequest("num_api_spec_tokens", f"{tokens!r:.80} is not a whole number of tokens, 1 to {1 << 20}")
    return tokens
