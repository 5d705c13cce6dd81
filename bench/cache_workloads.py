"""Programs shaped like trees, for the bench of the prefix cache: those of the papers on which caches are compared.

Lengths are in tokens, scaled down so that a run takes a second; what counts is who shares what with whom, and when.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator

__all__ = ["WORKLOADS", "Program", "Wish"]

# A program yields the requests it wants run together, as (prompt, output tokens), or a delay in steps; it is sent their
# outputs, in order.
Wish = list[tuple[list[int], int]] | int
Program = Generator[Wish, list[list[int]], None]


def words(rng: random.Random, low: int, high: int | None = None) -> list[int]:
    """Draw a text of so many tokens."""
    return [rng.randrange(4000) for _ in range(rng.randint(low, high or low))]


def few_shot(rng: random.Random) -> list[Program]:
    """400 questions behind one of 8 lists of 300 tokens of examples."""
    examples = [words(rng, 300) for _ in range(8)]

    def program(shots: list[int]) -> Program:
        yield [(shots + words(rng, 20, 60), 8)]

    return [program(rng.choice(examples)) for _ in range(400)]


def chat(rng: random.Random) -> list[Program]:
    """100 conversations of 5 turns behind one system prompt."""
    system = words(rng, 60)

    def program() -> Program:
        text = list(system)
        for _ in range(5):
            text += words(rng, 20, 40)
            (answer,) = yield [(list(text), 40)]
            text += answer

    return [program() for _ in range(100)]


def tree_of_thought(rng: random.Random) -> list[Program]:
    """30 problems; 4 thoughts each, 3 levels deep, the best 2 of each level gone on with, each thought judged."""

    def program() -> Program:
        beams = [words(rng, 120, 200)]
        for _ in range(3):
            asked = [([*beam, 1, 2, 3, 4, branch], 24) for beam in beams for branch in range(4)]
            thoughts = yield asked
            paths = [prompt + thought for (prompt, _), thought in zip(asked, thoughts, strict=True)]
            yield [([*path, 9, 8, 7, 6], 2) for path in paths]
            beams = rng.sample(paths, min(2, len(paths)))

    return [program() for _ in range(30)]


def self_consistency(rng: random.Random) -> list[Program]:
    """80 questions behind one instruction, each answered 8 times."""
    instruction = words(rng, 80)

    def program() -> Program:
        question = instruction + words(rng, 60, 150)
        yield [(list(question), 30) for _ in range(8)]

    return [program() for _ in range(80)]


def agents(rng: random.Random) -> list[Program]:
    """60 agents of 3 kinds, 6 actions each; a tool takes 1 to 10 steps to answer with 30 to 80 tokens."""
    kinds = [words(rng, 250) for _ in range(3)]

    def program(kind: list[int]) -> Program:
        text = kind + words(rng, 20, 60)
        for _ in range(6):
            (action,) = yield [(list(text), 20)]
            yield rng.randint(1, 10)
            text += action + words(rng, 30, 80)

    return [program(rng.choice(kinds)) for _ in range(60)]


def select(rng: random.Random) -> list[Program]:
    """200 questions behind one of 4 lists of examples; each of 4 endings is scored behind its question."""
    examples = [words(rng, 300) for _ in range(4)]

    def program(shots: list[int]) -> Program:
        question = shots + words(rng, 40, 80)
        yield [(question, 0)]
        yield [(question + words(rng, 10, 20), 0) for _ in range(4)]

    return [program(rng.choice(examples)) for _ in range(200)]


def skeleton_of_thought(rng: random.Random) -> list[Program]:
    """60 questions behind one instruction; a skeleton, its 4 to 8 points written out at once, and a summary of all."""
    instruction = words(rng, 80)
    ask = words(rng, 10)

    def program() -> Program:
        text = instruction + words(rng, 30, 60)
        (skeleton,) = yield [(list(text), 40)]
        text += skeleton
        points = yield [([*text, *ask, point], 50) for point in range(rng.randint(4, 8))]
        yield [(text + [token for point in points for token in point] + ask, 20)]

    return [program() for _ in range(60)]


def judge(rng: random.Random) -> list[Program]:
    """60 essays behind one instruction; each judged in 5 respects at once, the judgements merged into one."""
    instruction = words(rng, 100)
    respects = [words(rng, 20) for _ in range(5)]
    merge = words(rng, 15)

    def program() -> Program:
        essay = instruction + words(rng, 200, 400)
        judgements = yield [(essay + respect, 30) for respect in respects]
        merged = [token for respect, found in zip(respects, judgements, strict=True) for token in respect + found]
        yield [(essay + merged + merge, 10)]

    return [program() for _ in range(60)]


def talk(rng: random.Random, *, shortest: int, longest: int) -> list[Program]:
    """80 conversations of 4 turns that share nothing: what is to be kept is each one's own."""

    def program() -> Program:
        text: list[int] = []
        for _ in range(4):
            text += words(rng, 64, 128)
            (answer,) = yield [(list(text), rng.randint(shortest, longest))]
            text += answer

    return [program() for _ in range(80)]


def talk_briefly(rng: random.Random) -> list[Program]:
    """Answers of 4 to 8 tokens."""
    return talk(rng, shortest=4, longest=8)


def talk_at_length(rng: random.Random) -> list[Program]:
    """Answers of 64 to 128 tokens."""
    return talk(rng, shortest=64, longest=128)


def retrieval(rng: random.Random) -> list[Program]:
    """200 questions, each put into a query, then answered behind 3 of 60 passages, some of them wanted often."""
    query, answer = words(rng, 120), words(rng, 200)
    passages = [words(rng, 60, 120) for _ in range(60)]
    favour = [1 / (rank + 1) for rank in range(60)]

    def program() -> Program:
        question = words(rng, 15, 40)
        yield [(query + question, 10)]
        yield rng.randint(1, 5)
        found = sorted(set(rng.choices(range(60), favour, k=3)))
        yield [(answer + [token for place in found for token in passages[place]] + question, 20)]

    return [program() for _ in range(200)]


def strangers(rng: random.Random) -> list[Program]:
    """30 agents, whose tools take 20 to 60 steps, among 300 prompts of 200 to 400 tokens that nobody asks for again."""
    kinds = [words(rng, 250) for _ in range(3)]

    def agent(kind: list[int]) -> Program:
        text = kind + words(rng, 20, 60)
        for _ in range(6):
            (action,) = yield [(list(text), 20)]
            yield rng.randint(20, 60)
            text += action + words(rng, 30, 80)

    def stranger() -> Program:
        yield rng.randint(1, 400)
        yield [(words(rng, 200, 400), 20)]

    return [agent(rng.choice(kinds)) for _ in range(30)] + [stranger() for _ in range(300)]


# name, workload, slots
WORKLOADS: list[tuple[str, Callable[[random.Random], list[Program]], int]] = [
    ("few-shot", few_shot, 2500),
    ("few-shot, select", select, 3000),
    ("chat, one system prompt", chat, 8000),
    ("chat, short answers", talk_briefly, 8000),
    ("chat, long answers", talk_at_length, 16000),
    ("tree of thought", tree_of_thought, 8000),
    ("skeleton of thought", skeleton_of_thought, 6000),
    ("self-consistency", self_consistency, 4000),
    ("judge", judge, 6000),
    ("agents", agents, 12000),
    ("agents among strangers", strangers, 16000),
    ("retrieval", retrieval, 4000),
]
