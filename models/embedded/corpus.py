"""The training corpus, written from facts and grammars: the same seed writes the same documents.

    python -m callboard.models.embedded.corpus --documents 5

prints a few; `write` fills token files for training with many processes.
"""

import argparse
from collections.abc import Callable, Iterator
from random import Random

from .documents import END_OF_TEXT, TURN_END, Document, Piece, Turn, chat, join, raw
from .facts.countries import COUNTRIES
from .facts.nature import ELEMENTS
from .skills import (
    arithmetic,
    capitals,
    characters,
    conversation,
    knowledge,
    outside,
    recall,
    smalltalk,
    texts,
    tips,
    tools,
)  # fmt: skip

__all__ = ["SINGLES", "documents", "single", "statement"]

Ask = Callable[[Random, bool], Turn]


def _list(rng: Random, held: bool) -> Turn:
    """Ask for a list of countries."""
    return capitals.country_list(rng, held)[0]


# Skills that are one question and one answer, with how often each is drawn.
SINGLES: dict[str, tuple[Ask, float]] = {
    "capital": (capitals.capital, 22),
    "reverse": (capitals.reverse, 6),
    "continent": (capitals.continent, 6),
    "judgment": (capitals.judgment, 10),
    "list": (_list, 6),
    "countries of a continent": (capitals.countries_of_continent, 2),
    "arithmetic": (arithmetic.turn, 28),
    "comparison": (arithmetic.comparison, 8),
    "superlative": (knowledge.superlative, 9),
    "planet": (knowledge.planet, 5),
    "calendar": (knowledge.calendar, 8),
    "element": (knowledge.element, 9),
    "address": (knowledge.address, 3),
    "outside": (outside.turn, 32),
    "small talk": (smalltalk.turn, 6),
    "kind": (texts.one_or_other, 2),
    "sights": (conversation.sights, 4),
    "list of a continent": (capitals.list_of_continent, 2),
    "counting": (knowledge.counting, 1),
    "paragraph": (tips.paragraph, 3),
}


def single(rng: Random) -> Turn:
    """Draw one question of any skill."""
    asks = [ask for ask, _ in SINGLES.values()]
    turn = rng.choices(asks, _WEIGHTS)[0](rng, False)
    if rng.random() < 0.05 and "\n" not in turn.answer and turn.question.endswith("?"):
        asked = rng.choice(("In one word: {q}", "Answer in one word: {q}", "{q} Answer in one word.",
                            "{q} Just the answer, please.",
                            "{q} Answer with as few words as you can.", "Only the answer: {q}",
                            "{q} One word only."))  # fmt: skip
        return Turn(asked.format(q=turn.question), turn.short, turn.short)
    return turn


_WEIGHTS = [weight for _, weight in SINGLES.values()]


def statement(rng: Random, turn: Turn) -> Document | None:
    """Return the turn's answer as a sentence to be finished, if it ends with what was asked."""
    ending = f"{turn.short}".rstrip(".") + "."
    if "\n" in turn.answer or not turn.answer.lower().endswith(" " + ending.lower()):
        return None
    opening = turn.answer[: -len(ending)]
    said = turn.answer[-len(ending) :]
    if rng.random() < 0.15:
        return [Piece(opening), Piece(said, said=True), Piece(END_OF_TEXT, said=True)]
    return [Piece(opening.rstrip()), Piece(" " + said, said=True), Piece(END_OF_TEXT, said=True)]


def talk(rng: Random, length: int) -> list[Turn]:
    """Write a conversation of about `length` turns: questions, threads, memories and echoes."""
    turns: list[Turn] = []
    asked: list[Turn] = []
    while len(turns) < length:
        draw = rng.random()
        if draw < 0.45:
            turns += conversation.thread(rng, False)
        elif draw < 0.70:
            turns.append(single(rng))
        elif draw < 0.82 and not asked:
            told, later = recall.memory(rng, False)
            turns.append(told)
            asked.append(later)
        elif draw < 0.90 and asked:
            turns.append(asked.pop())
        elif draw < 0.97 and turns:
            turns.append(recall.echo(rng, False, turns))
        elif draw < 0.985:
            turns += tips.request(rng, False)
        elif not any("You" in turn.answer or "Hello" in turn.answer or "remember" in turn.answer for turn in turns):
            turns.append(recall.unknown_memory(rng))
    return turns + asked


def _questions(rng: Random) -> Document:
    """Write one question as a chat."""
    return chat(rng, [single(rng)])


def _talk(rng: Random) -> Document:
    """Write a conversation as a chat."""
    length = rng.choice((1, 2, 2, 3, 4, 6, 8, 12, rng.randint(12, 24)))
    if rng.random() < 0.02:
        length = rng.randint(25, 60)
    return chat(rng, talk(rng, length))


def _plain(rng: Random) -> Document:
    """Write questions as plain text."""
    draw = rng.random()
    if draw < 0.35:
        return raw(rng, [single(rng)])
    if draw < 0.6:
        ask = rng.choices([ask for ask, _ in SINGLES.values()], _WEIGHTS)[0]
        return raw(rng, [ask(rng, False) for _ in range(rng.randint(2, 6))])
    if draw < 0.8:
        return raw(rng, [single(rng) for _ in range(rng.randint(2, 10))])
    return raw(rng, talk(rng, rng.randint(2, 6)))


def _statement(rng: Random) -> Document:
    """Write a sentence to be finished."""
    asks = (capitals.capital, capitals.capital, knowledge.superlative, knowledge.element, capitals.continent)
    while True:
        document = statement(rng, rng.choice(asks)(rng, False))
        if document:
            return document


def _scrambled(rng: Random, turn: Turn) -> Turn:
    """Change words of a question, so that only copying can repeat it."""
    words = turn.question.split(" ")
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(words))
        change = rng.randrange(4)
        if change == 0:
            words[at] = outside.coined(rng)
        elif change == 1:
            words.insert(
                at,
                rng.choice((outside.coined(rng), "please", "really", "now", "would", "kindly", "also", "name", "my")),
            )
        elif change == 2 and len(words) > 2:
            del words[at]
        else:
            other = rng.randrange(len(words))
            words[at], words[other] = words[other], words[at]
    return turn._replace(question=" ".join(words))


def _echo(rng: Random) -> Document:
    """Write a chat that ends by asking what was said before; only that last answer is to be said."""
    before: list[Turn] = []
    for _ in range(rng.randint(1, 5)):
        draw = rng.random()
        turn = Turn(outside.rambling(rng), outside.UNKNOWN, outside.UNKNOWN) if draw < 0.3 else single(rng)
        before.append(_scrambled(rng, turn) if draw > 0.6 else turn)
    document = (chat if rng.random() < 0.6 else raw)(rng, [*before, recall.echo(rng, False, before)])
    last = max(at for at, piece in enumerate(document) if piece.said and piece.text not in (TURN_END, END_OF_TEXT))
    return [piece if at >= last else Piece(piece.text) for at, piece in enumerate(document)]


def _pairs(rng: Random) -> Document:
    """Write pairs that show by example what is wanted: countries and capitals, elements and symbols."""
    tables = (
        [(c.name, c.capital) for c in COUNTRIES], [(c.name, c.capital) for c in COUNTRIES],
        [(c.name, c.continent) for c in COUNTRIES], [(c.capital, c.name) for c in COUNTRIES],
        [(name, symbol) for name, symbol, _ in ELEMENTS],
    )  # fmt: skip
    chosen = rng.sample(rng.choice(tables), rng.randint(2, 8))
    between, end = rng.choice(
        ((": ", "\n"), (": ", "\n"), (" -> ", "\n"), (" = ", "\n"), (" => ", "\n"), (" - ", "\n"), (": ", ", "))
    )
    opened = rng.choice(("", "", "", "Countries and capitals:\n" if chosen[0] in tables[0] else ""))
    document: Document = []
    for number, (left, right) in enumerate(chosen):
        opened += capitals.capitalized(left) + between.rstrip()
        if number == 0:
            opened += f" {capitals.capitalized(right)}{end}"
            continue
        document += [Piece(opened), Piece(" " + capitals.capitalized(right), said=True)]
        opened = end
    return [*document, Piece(END_OF_TEXT, said=True)]


def _memory(rng: Random) -> Document:
    """Write a chat that ends by asking for something told before."""
    told, later = recall.memory(rng, False)
    between = [single(rng) for _ in range(rng.randint(0, 5))]
    return (chat if rng.random() < 0.6 else raw)(rng, [told, *between, later])


def _of(write: Callable[[Random, bool], Document]) -> Callable[[Random], Document]:
    """Bind a skill's writer to training."""
    return lambda rng: write(rng, False)


WRITERS: tuple[tuple[Callable[[Random], Document], float], ...] = (
    (_questions, 24),
    (_talk, 16),
    (_plain, 17),
    (_echo, 10),
    (_memory, 6),
    (_pairs, 2),
    (arithmetic.judged_sheet, 3),
    (_statement, 3),
    (arithmetic.sheet, 8),
    (lambda rng: tools.tool_document(rng, False), 9),
    (_of(tips.program), 8),
    (lambda rng: chat(rng, tips.request(rng, False)), 1.5),
    (_of(characters.document), 4.5),
    (_of(texts.summary), 4),
    (_of(texts.sentiment), 4),
    (_of(texts.extraction), 6),
    (_of(texts.join), 3),
    (smalltalk.continuation, 0.7),
)


def documents(seed: str, count: int) -> Iterator[Document]:
    """Yield `count` documents; equal seeds yield equal documents."""
    rng = Random(seed)  # noqa: S311 -- draws that repeat, not secrets
    writers = [write for write, _ in WRITERS]
    weights = [weight for _, weight in WRITERS]
    for _ in range(count):
        document = rng.choices(writers, weights)[0](rng)
        yield join(document) if rng.random() < 0.5 else document


def main() -> None:
    """Print some documents, what the model says between brackets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--seed", default="0")
    arguments = parser.parse_args()
    for document in documents(arguments.seed, arguments.documents):
        print("".join(f"[{piece.text}]" if piece.said else piece.text for piece in document))
        print("-" * 60)


if __name__ == "__main__":
    main()
