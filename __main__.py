"""The command `callboard`, also as `python -m callboard`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import __version__
from .commands import bench, chat, doctor, run, serve

__all__ = ["main"]

_EPILOG = """\
callboard chat            talk to the model that ships
callboard serve           serve it: OpenAI's and SGLang's routes on http://127.0.0.1:30000
callboard doctor          what this machine can run
callboard COMMAND --help  all options of a command
"""


class _Parser(argparse.ArgumentParser):
    """Tell a wrong argument in one line, and not a command's thirty options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"callboard: {message} (`{self.prog} --help` tells what there is)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; give its exit status: 0, 1 for what failed, 2 for wrong arguments, 130 for an interrupt."""
    parser = _Parser(
        prog="callboard",
        description="A language for programs that call language models, and the actor runtime that serves them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"callboard {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (serve, chat, run, bench, doctor):
        command.add(commands)
    chosen = parser.parse_args(arguments)
    if not hasattr(chosen, "command"):
        parser.print_help(sys.stderr)
        return 2
    try:
        return chosen.command(chosen)
    except ValueError as error:  # every wrong argument is one, and says which
        print(f"callboard: {' '.join(str(error).split())}", file=sys.stderr)  # a library's may have many lines
        return 2
    except BrokenPipeError:  # `callboard run ... | head`: who read has had enough, and nobody is there to be told
        # Or Python complains when it writes out the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # an address that is taken, a file that is not there
        print(f"callboard: {_told(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _told(error: OSError) -> str:
    """Leave the number out, which tells nobody anything."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main())
