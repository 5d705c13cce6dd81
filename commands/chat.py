"""callboard chat: a conversation in a terminal, or one question on the command line or from a pipe."""

from __future__ import annotations

import argparse
import sys
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from .engine_arguments import add_engine_arguments, make_engine, summary

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from rich.console import Console

    from ..actors.engine import Engine

__all__ = ["Conversation", "add", "chat"]

_HELP = "/reset forgets the conversation   /system TEXT sets the system's words   /help   /quit (or Ctrl-D)"


def add(commands: Any) -> None:
    """Add the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description=f"Talk to a model. With a question: answer it and end. In the conversation: {_HELP}",
    )
    parser.add_argument("question", nargs="*", help="answer this and end; - reads it from standard input")
    parser.add_argument("--system", metavar="TEXT", help="the system's words")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0, the default, always takes the likeliest token"
    )
    parser.add_argument("--max-tokens", type=int, default=512, metavar="N", help="of one answer (default 512)")
    add_engine_arguments(parser)
    parser.set_defaults(command=chat)


class Conversation:
    """What has been said, and how the next answer is drawn."""

    def __init__(self, engine: Engine, system: str | None, temperature: float, max_tokens: int) -> None:
        from ..actors.sampling import SamplingParams

        self._engine = engine
        self._sampling = SamplingParams(temperature=temperature, max_new_tokens=max_tokens)
        self._sampling.verify()
        self.system = system
        self.messages: list[dict[str, str]] = []

    def reset(self) -> None:
        """Forget everything but the system's words."""
        self.messages.clear()

    async def answer(self, question: str, show: Any) -> None:
        """Stream the answer to `show`, and keep both.  An answer that is cut off is kept as far as it came.

        A question that was refused is not kept.
        """
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = [*self.messages, {"role": "user", "content": question}]
        text = ""
        try:
            prompt = self._engine.chat_template.render([*system, *asked])
            async for delta in self._engine.generate(prompt, self._sampling):
                text += delta.text
                if delta.text:
                    show(delta.text)
        finally:
            if text:
                self.messages = [*asked, {"role": "assistant", "content": text}]


def chat(arguments: argparse.Namespace) -> int:
    """Answer one question, or hold a conversation."""
    from anyio.from_thread import start_blocking_portal
    from rich.console import Console

    question = " ".join(arguments.question)
    if question == "-" or (not question and not sys.stdin.isatty()):
        question = sys.stdin.read().strip()
        if not question:
            raise ValueError("standard input is empty; give a question")
    console = Console(highlight=False, soft_wrap=True)
    engine = make_engine(arguments)
    conversation = Conversation(engine, arguments.system, arguments.temperature, arguments.max_tokens)
    # The engine runs in a loop of its own beside this thread, so that the terminal can be read in the plain way.
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(engine):
        if question:
            return 0 if _answer(portal, conversation, console, question) else 1
        console.print(f"[bold]{engine.name}[/bold]  [dim]{dict(summary(engine))['context']} of context[/dim]")
        console.print(f"[dim]{_HELP}[/dim]")
        while (line := _ask(console)) is not None:
            if not _command(line, conversation, console):
                _answer(portal, conversation, console, line)
        return 0


def _ask(console: Console) -> str | None:
    """Read what is said next; None at the end."""
    while True:
        try:
            line = console.input("[bold cyan]> [/bold cyan]").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return None
        if line in ("/quit", "/exit"):
            return None
        if line:
            return line


def _command(line: str, conversation: Conversation, console: Console) -> bool:
    """Carry out a line that begins with a slash; say whether it was one."""
    if not line.startswith("/"):
        return False
    name, _, rest = line.partition(" ")
    match name:
        case "/reset":
            conversation.reset()
            console.print("[dim]forgotten[/dim]")
        case "/system":
            conversation.system = rest.strip() or None
            conversation.reset()
            console.print("[dim]the conversation starts anew with these words[/dim]")
        case "/help":
            console.print(f"[dim]{_HELP}[/dim]")
        case _:
            console.print(f"no such command: {name}   {_HELP}", style="dim", markup=False)
    return True


def _answer(portal: BlockingPortal, conversation: Conversation, console: Console, question: str) -> bool:
    """Show one answer; Ctrl-C cuts it off and the conversation goes on.  Say whether it came to its end."""
    from ..actors.errors import Aborted, GenerationFailed, InvalidRequest, Overloaded

    def show(text: str) -> None:
        console.file.write(text)  # not by rich, which exits, in the engine's loop, if nobody reads what it writes
        console.file.flush()

    ended = threading.Event()

    async def answer() -> None:
        try:
            await conversation.answer(question, show)
        finally:
            ended.set()

    future = portal.start_task_soon(answer)
    try:
        future.result()
    except KeyboardInterrupt:
        future.cancel()
        ended.wait()  # or what is said next would overtake what the cut-off answer still writes down
        console.print(" [dim](cut off)[/dim]")
        return False
    except CancelledError:
        return False
    except InvalidRequest as error:
        _complain(console, f"{error} (/reset forgets the conversation)")
        return False
    except (Aborted, GenerationFailed, Overloaded) as error:
        _complain(console, str(error))
        return False
    console.print()
    return True


def _complain(console: Console, message: str) -> None:
    console.print(message, style="red", markup=False)
