"""A chat with memory: the last turns as they were, and of older ones only what the user told about themselves.

Every turn is a run of one program over the messages so far; what they share with the run before is in the prefix cache.
"""

import asyncio

import callboard as cb

KEPT_TURNS = 2


@cb.function
def turn(s, messages, said):
    s += cb.system("You are a helpful assistant.")
    for question, answer in messages:
        s += cb.user(question)
        s += cb.assistant(answer)
    s += cb.user(said)
    s += cb.assistant(cb.gen("answer", max_tokens=48, temperature=0))


class Chat:
    """One user's chat."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, str]] = []
        self.recent: list[tuple[str, str]] = []

    async def say(self, text: str) -> str:
        """Answer, and remember."""
        state = await turn.arun([*self.facts, *self.recent], text)
        self.recent.append((text, state["answer"]))
        if len(self.recent) > KEPT_TURNS:
            old = self.recent.pop(0)
            if old[0].startswith(("I ", "My ")):
                self.facts.append(old)
        return state["answer"]


async def main() -> None:
    """Talk for a while, and ask what was said first."""
    chat = Chat()
    for text in ("My name is Mira.", "What is the capital of Peru?", "List two local attractions.", "What is 7 * 8?",
                 "And of Japan?", "What is my name?"):  # fmt: skip
        print(f"user: {text}\nassistant: {await chat.say(text)}")
    print(f"kept: {len(chat.facts)} fact about the user, the last {len(chat.recent)} turns")


if __name__ == "__main__":
    asyncio.run(main())
