"""Retrieval: find what was said long ago by its words (BM25), and put only that before the question.

A small model, or a long history: in both cases the answer is right when little else stands beside what matters.
"""

import math
import re
from collections import Counter

import callboard as cb

NOTES = (
    "My name is Mira.", "I live in Lima.", "I am 31 years old.", "My favorite color is green.",
    "My favorite food is soup.", "My favorite sport is tennis.", "My favorite animal is the owl.",
)  # fmt: skip


COMMON = {"am", "do", "i", "in", "is", "my", "the", "what", "where"}


def words(text: str) -> list[str]:
    """Cut a text into words that tell something."""
    return [word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in COMMON]


class Index:
    """Rank texts for a query by BM25 (Robertson and Walker 1994)."""

    def __init__(self, texts: tuple[str, ...], k: float = 1.2, b: float = 0.75) -> None:
        self.texts = texts
        self.counts = [Counter(words(text)) for text in texts]
        self.mean = sum(map(Counter.total, self.counts)) / len(texts)
        self.k, self.b = k, b

    def best(self, query: str) -> str:
        """Give the text that fits the query best."""
        return max(zip(self.texts, self.counts, strict=True), key=lambda entry: self._score(words(query), entry[1]))[0]

    def _score(self, query: list[str], counts: Counter[str]) -> float:
        length = self.k * (1 - self.b + self.b * counts.total() / self.mean)
        return sum(self._rarity(word) * counts[word] * (self.k + 1) / (counts[word] + length) for word in query)

    def _rarity(self, word: str) -> float:
        holding = sum(word in counts for counts in self.counts)
        return math.log(1 + (len(self.texts) - holding + 0.5) / (holding + 0.5))


@cb.function
def recall(s, notes, question):
    for note in notes:
        s += cb.user(note)
        s += cb.assistant("I will remember that.")
    s += cb.user(question)
    s += cb.assistant(cb.gen("answer", max_tokens=32, temperature=0))


def main() -> None:
    """Ask with nothing, with everything, and with what the index finds."""
    index = Index(NOTES)
    for question in ("Where do I live?", "What is my favorite sport?", "What is my favorite food?", "What is my name?"):
        found = index.best(question)
        notes = ((), NOTES, (found,))
        nothing, everything, one = recall.run_batch([{"notes": chosen, "question": question} for chosen in notes])
        print(f"{question}  [{found}]")
        print(f"  nothing: {nothing['answer']}  everything: {everything['answer']}  retrieved: {one['answer']}")


if __name__ == "__main__":
    main()
