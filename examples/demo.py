"""Run programs on the model that ships with callboard: `make demo`."""

import asyncio
import textwrap
import time

from programs import character, conversation, name_server, question, tips, tool
from rich.console import Console
from rich.table import Table

import callboard as cb

COUNTRIES = (
    "Japan Italy Egypt Canada Norway Kenya Peru India Chile Cuba Spain Greece Poland Austria Portugal Vietnam "
    "Thailand Ireland Hungary Sweden"
).split()

console = Console(highlight=False)


def heading(title: str, program: str) -> None:
    """Say what comes next and which program of programs.py it is."""
    console.print(f"\n[bold cyan]{title}[/]  [dim]{program}[/]")


def show(label: str, text: str) -> None:
    """Print one variable, its lines under each other."""
    width = max(40, min(console.width, 100) - 13)
    lines: list[str] = []
    for line in text.strip().split("\n"):
        lines += textwrap.wrap(line, width) if len(line) > width else [line]
    console.print(f"  [dim]{label:>9}[/]  ", end="")
    console.print("\n             ".join(lines), markup=False)


async def stream() -> None:
    """Print an answer as its tokens arrive."""
    heading("A question, streamed token by token", "question")
    asked = "What is the capital of France?"
    show("user", asked)
    state = await question.arun(text=asked, stream=True)
    console.print("  [dim]assistant[/]  ", end="")
    async for text in state.text_async_iter("answer"):
        console.print(text, end="|", markup=False)
    console.print()


async def tour() -> None:
    """Run one program of each kind."""
    heading("Two turns; the second refers back", "conversation")
    state = await conversation.arun(first="What is the capital of Italy?", second="And of Japan?")
    for message in await state.amessages():
        show(message["role"], message["content"])

    heading("Two branches, written at the same time, joined into a summary", "tips")
    state = await tips.arun()
    show("program", await state.atext())

    heading("The model chooses a tool; Python acts on the choice", "tool")
    for asked in ("What is 7 * 8?", "Who won the world cup in 1998?"):
        state = await tool.arun(text=asked)
        show("user", asked)
        show("tool", f"{state['tool']} <-{state['input']}")
        if state["tool"] == "calculator" and (value := product(state["input"])) is not None:
            show("python", str(value))

    heading("An answer that must be an IP address", "name_server")
    show("answer", (await name_server.arun())["answer"])

    heading("A JSON object in a fixed shape", "character")
    show("json", (await character.arun(name="Hermione Granger"))["json"])


def product(expression: str) -> int | None:
    """Compute `a * b`, `a + b` or `a - b`; None for anything else."""
    match expression.split():
        case [left, ("*" | "+" | "-") as operator, right] if left.isdigit() and right.isdigit():
            a, b = int(left), int(right)
            return {"*": a * b, "+": a + b, "-": a - b}[operator]
    return None


async def batch() -> None:
    """Ask twenty questions at once."""
    heading("Twenty questions at once", "question.run_batch")
    items = [{"text": f"What is the capital of {country}?"} for country in COUNTRIES]
    states = await question.arun_batch(items, progress_bar=True)
    answers = [state["answer"].strip() for state in states]
    for row in range(0, len(answers), 2):
        console.print(f"  {answers[row]:<40}{answers[row + 1]}", markup=False)


async def main() -> None:
    """Start the engine in this loop, run everything, and tell what it took."""
    started = time.perf_counter()
    async with cb.Engine("embedded", seed=0) as engine:
        cb.set_default_backend(engine)
        console.print(f"The engine is up after {time.perf_counter() - started:.1f} s, inside this program's own loop.")
        begun = time.perf_counter()
        await stream()
        await tour()
        await batch()
        took = time.perf_counter() - begun
        summary(await engine.statistics(), took)
    console.print(
        "\nNext:  [bold].venv/bin/callboard chat[/]    talk to this model\n"
        "       [bold].venv/bin/callboard serve[/]   serve it to OpenAI and SGLang clients\n"
        "       [bold]docs/tutorial.md[/]            write programs of your own"
    )


def summary(statistics: dict, took: float) -> None:
    """Print the closing table."""
    scheduler = statistics["scheduler"]
    table = Table(title=None, show_header=True, header_style="bold")
    for column in ("programs", "generations", "tokens", "tokens/s", "prefix-cache hit rate"):
        table.add_column(column, justify="right")
    programs = 1 + 1 + 1 + 2 + 1 + 1 + len(COUNTRIES)
    table.add_row(
        str(programs),
        str(statistics["requests"]["admitted"]),
        str(scheduler["output_tokens"]),
        f"{scheduler['output_tokens'] / took:,.0f}",
        f"{scheduler['hit_rate']:.0%}",
    )
    console.print()
    console.print(table)


if __name__ == "__main__":
    asyncio.run(main())
