"""callboard run: run a program of a file and print what it wrote."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine_arguments import add_engine_arguments, make_engine
from .user_failure import UserFailure, tell_failure

if TYPE_CHECKING:
    from ..actors.engine import Engine
    from ..lang import Program, ProgramState, Recording

__all__ = ["add", "find_program", "read_arguments", "run"]


def add(commands: Any) -> None:
    """Add the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a program of a Python file",
        description="Import FILE.py, run the program in it, and print the text as it grows.",
    )
    parser.add_argument("target", metavar="FILE.py[:PROGRAM]", help="PROGRAM may be left out if the file has only one")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=TEXT", help="an argument, as a string")
    parser.add_argument("--json", action="append", default=[], metavar="NAME=JSON", help="an argument, as JSON")
    parser.add_argument("--trace", metavar="FILE.json", help="write a timeline of the run, for ui.perfetto.dev")
    add_engine_arguments(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the program on an engine of its own; a failure is printed and gives exit status 1."""
    import anyio

    given = read_arguments(arguments.arg, arguments.json)
    try:
        program = find_program(arguments.target)
    except UserFailure as failure:
        return _fail(failure.__cause__ or failure, arguments.target)
    engine = make_engine(arguments)
    try:
        return anyio.run(_run, engine, program, given, _recording(arguments.trace), arguments.trace)
    except UserFailure as failure:
        return _fail(failure.__cause__ or failure, arguments.target)


def _recording(trace: str | None) -> Recording | None:
    from ..lang import record

    try:
        return None if trace is None else record(trace)
    except OSError as error:
        raise ValueError(f"--trace: {trace!r} cannot be written: {error.strerror}") from error


def _fail(error: BaseException, target: str) -> int:
    if isinstance(error.__cause__, SystemExit):  # `sys.exit()` in a body, which readers of its text get as Aborted
        raise error.__cause__
    print(tell_failure(error, Path(target.partition(":")[0])), file=sys.stderr)
    return 1


async def _run(
    engine: Engine, program: Program, given: dict[str, Any], recording: Recording | None, trace: str | None
) -> int:
    async with engine:
        if recording is None:
            return await _show(engine, program, given)
        with recording:
            status = await _show(engine, program, given)
    print(f"callboard: {trace} is a timeline; open it in ui.perfetto.dev", file=sys.stderr)
    if recording.left_out:
        print(f"callboard: {trace} was full: {recording.left_out:,} events are left out", file=sys.stderr)
    return status


async def _show(engine: Engine, program: Program, given: dict[str, Any]) -> int:
    state = await program.arun(**given, backend=engine, stream=True)
    text = ""
    try:
        async with aclosing(_texts(state)) as texts:
            async for text in texts:
                print(text, end="", flush=True)
    finally:
        if text and not text.endswith("\n"):
            print(flush=True)
    return 0


async def _texts(state: ProgramState) -> AsyncGenerator[str]:
    """Give a program's text as it grows; UserFailure is raised from what its body raises, and from nothing else."""
    try:
        async for text in state.text_async_iter():
            yield text
        if (error := await state.aerror()) is not None:
            raise error
    except Exception as error:
        raise UserFailure from error


def read_arguments(texts: list[str], jsons: list[str]) -> dict[str, Any]:
    """Read NAME=TEXT and NAME=JSON; ValueError says which is wrong."""
    import msgspec

    given: dict[str, Any] = {}
    for flag, items in (("--arg", texts), ("--json", jsons)):
        for item in items:
            name, equals, value = item.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(f"{flag}: {item!r} is not NAME=VALUE")
            if name in given:
                raise ValueError(f"{flag}: {name!r} is given twice")
            try:
                given[name] = value if flag == "--arg" else msgspec.json.decode(value)
            except msgspec.DecodeError as error:
                raise ValueError(f"--json: the value of {name!r} is not JSON: {error}") from error
    return given


def find_program(target: str) -> Program:
    """Import the file and find its program.

    ValueError says what there is if it cannot be told; UserFailure is raised from what the file raises.
    """
    from ..lang import Program

    file, _, name = target.partition(":")
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"there is no file {file!r}")
    if path.suffix != ".py":
        raise ValueError(f"{file!r} is not a Python file: its name does not end in .py")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))  # as `python FILE.py` does, so that it finds its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserFailure from error
    programs = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    if name:
        if name not in programs:
            raise ValueError(f"{file} has no program {name!r}; it has {', '.join(programs) or 'none'}")
        return programs[name]
    if len(programs) != 1:
        raise ValueError(f"{file} has {len(programs)} programs; name one, as in {file}:NAME: {', '.join(programs)}")
    return next(iter(programs.values()))
