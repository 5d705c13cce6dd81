"""A plain asyncio program: deadlines, a bounded number at once, and room that comes back when work is cancelled."""

import asyncio

import callboard as cb


@cb.function
async def qa(s, question):
    s += cb.user(question)
    s += cb.assistant(cb.gen("answer", max_tokens=64, temperature=0))


async def ask(question: str, engine: cb.Engine, deadline_s: float) -> str:
    """Answer within a deadline; past it the program is cancelled, and its memory is free."""
    try:
        async with asyncio.timeout(deadline_s):
            return (await qa.arun(question, backend=engine))["answer"]
    except TimeoutError:
        return "(too late)"


async def ask_again(question: str, engine: cb.Engine) -> str:
    """Answer, and where there is no room now, come again when the engine says so."""
    while True:
        try:
            return (await qa.arun(question, backend=engine))["answer"]
        except cb.Overloaded as busy:
            await asyncio.sleep(busy.retry_after_s)


async def main() -> None:
    """Ask some questions side by side, in this loop."""
    async with cb.Engine("embedded", max_queued=64) as engine:
        async with asyncio.TaskGroup() as group:
            soon = group.create_task(ask("What is the capital of France?", engine, deadline_s=30))
            late = group.create_task(ask("Count to 20.", engine, deadline_s=0))
            patient = group.create_task(ask_again("What is 12 + 30?", engine))
        print(soon.result(), late.result(), patient.result())
        more = [("List 3 countries.",), ("Name the planets.",), ("What is 7 * 8?",)]
        async for state in qa.arun_batch(more, num_threads=2, backend=engine):  # two at once, and no thread
            print(state["answer"])
        print("live:", (await engine.statistics())["requests"]["live"])


if __name__ == "__main__":
    asyncio.run(main())
