"""Threads that are there anyway, of a WSGI server or a task queue: they call `run`, the engine stays where it is."""

import asyncio
import threading

import callboard as cb


@cb.function
def qa(s, question):
    s += cb.user(question)
    s += cb.assistant(cb.gen("answer", max_tokens=64, temperature=0))


def handle(question: str, answers: dict[str, str], engine: cb.Engine) -> None:
    """Do what a thread of a synchronous server does: call, wait, go on."""
    answers[question] = qa.run(question, backend=engine)["answer"]


async def main() -> None:
    """Serve three threads from an engine in this loop."""
    answers: dict[str, str] = {}
    async with cb.Engine("embedded") as engine:
        questions = ("What is the capital of Peru?", "What is 7 * 8?", "Which planet comes after Mars?")
        threads = [threading.Thread(target=handle, args=(question, answers, engine)) for question in questions]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    for question in questions:
        print(question, answers[question])


if __name__ == "__main__":
    asyncio.run(main())
