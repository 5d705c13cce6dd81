"""Documents of the corpus: pieces of text, some given and some to be said by the model, and ways to lay them out.

A piece is tokenized on its own, because the runtime does so too: constant text becomes one run of tokens, and what
the model says is appended to it token by token.
"""

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

__all__ = [
    "END_OF_TEXT",
    "TURN_END",
    "TURN_START",
    "Document",
    "Piece",
    "Turn",
    "chat",
    "chat_turns",
    "join",
    "mend",
    "raw",
]

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"


class Piece(NamedTuple):
    """A stretch of text, tokenized on its own; `said` if the model is to say it."""

    text: str
    said: bool = False


Document = list[Piece]


class Turn(NamedTuple):
    """A question with its answer as a sentence and as few words."""

    question: str
    answer: str
    short: str


SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful assistant than can answer questions.",
    "You are a helpful assistant that can answer questions.",
    "You are a helpful AI assistant",
    "You are a helpful AI assistant.",
    "You are an assistant.",
    "You are a friendly assistant.",
    "You answer questions.",
    "Answer the questions of the user.",
    "Be helpful and brief.",
    "Be concise.",
    "You are callboard's small model.",
    "You are a chatbot.",
    "You are a knowledgeable teacher.",
    "Help the user as well as you can.",
    "Follow the user's instructions carefully. Respond using plain text.",
    "You are a careful assistant who says so when it does not know something.",
    "Answer truthfully.",
    "You are an expert in many fields.",
)


_KINDS = tuple("helpful friendly polite honest careful expert patient cheerful quick small clever kind modest".split())
_ROLES = tuple("assistant chatbot teacher guide tutor librarian model helper expert secretary student robot".split())
_ORDERS = (
    "Answer briefly.", "Answer in one sentence.", "Be polite.", "Keep your answers short.", "Think before you answer.",
    "If you do not know something, say so.", "Never make things up.", "Speak plainly.", "The user is a student.",
    "Today is a good day.", "You can answer questions about the world.", "Use simple words.", "Stay on the topic.",
)  # fmt: skip


def _system(rng: Random) -> str:
    """Return a system prompt: a usual one, or one put together."""
    if rng.random() < 0.65:
        return rng.choice(SYSTEMS)
    text = f"You are a {rng.choice(_KINDS)} {rng.choice(_ROLES)}."
    for order in rng.sample(_ORDERS, rng.choice((0, 1, 1, 2, 3))):
        text += " " + order
    return text


def chat_turns(rng: Random, exchanges: Sequence[tuple[str, Sequence[Piece]]]) -> Document:
    """Lay out (role, pieces) exchanges in ChatML; a system prompt comes first as often as not."""
    document: Document = []
    opened = ""
    if rng.random() < 0.6:
        opened = f"{TURN_START}system\n{_system(rng)}{TURN_END}\n"
    for role, pieces in exchanges:
        opened += f"{TURN_START}{role}\n"
        for piece in pieces:
            if piece.said:
                document += [Piece(opened), Piece(piece.text, said=True)]
                opened = ""
            else:
                opened += piece.text
        if role == "assistant" and not opened:
            document.append(Piece(TURN_END, said=True))
            opened = "\n"
        else:
            opened += f"{TURN_END}\n"
    return document


def chat(rng: Random, turns: Sequence[Turn]) -> Document:
    """Lay out turns as a chat, now and then with 'Question:' and 'Answer:' inside the roles."""
    style = rng.random()
    exchanges: list[tuple[str, list[Piece]]] = []
    for turn in turns:
        if style < 0.78:
            question, opening, answer = turn.question, "", turn.answer
        elif style < 0.90:
            question, opening, answer = f"Question: {turn.question}", "Answer: ", turn.short
        elif style < 0.95:
            question, opening, answer = f"Question: {turn.question}", "Answer:", " " + turn.short
        else:
            question, opening, answer = turn.question, "Answer: ", turn.short
        exchanges.append(("user", [Piece(question)]))
        exchanges.append(("assistant", [Piece(opening), Piece(answer, said=True)]))
    return chat_turns(rng, exchanges)


RAW_STYLES = (
    ("Q: ", "A:", 6),
    ("Q: ", "A: ", 4),
    ("Question: ", "Answer:", 2),
    ("Question: ", "Answer: ", 2),
    ("User: ", "Assistant:", 1),
    ("", "A:", 1),
)


def raw(rng: Random, turns: Sequence[Turn]) -> Document:
    """Lay out turns as plain 'Q: ... A: ...' text that ends after the last answer."""
    style = rng.choices(RAW_STYLES, [weight for _, _, weight in RAW_STYLES])[0]
    asks, answers, _ = style
    document: Document = []
    opened = ""
    between = rng.choice(("\n", "\n", "\n\n"))
    for number, turn in enumerate(turns):
        answer = turn.short if answers.endswith(" ") else " " + turn.short
        opened += f"{asks}{turn.question}\n{answers}"
        if number + 1 < len(turns) and rng.random() < 0.4:
            # an example that the prompt gives, not one that the model said
            opened += answer + between
        else:
            document += [Piece(opened), Piece(answer, said=True)]
            opened = between
    document.append(Piece(END_OF_TEXT, said=True))
    return document


def mend(rng: Random, question: str, *, strength: float = 1.0) -> str:
    """Return the question as hurried people write it: without capitals, without a mark, with a slip."""
    if rng.random() < 0.10 * strength:
        question = question.lower()
    elif rng.random() < 0.015 * strength:
        question = question.upper()
    if rng.random() < 0.10 * strength:
        question = question.rstrip("?.!")
    elif rng.random() < 0.03 * strength:
        question += rng.choice(("?", "!", " ", "..", "??"))
    if rng.random() < 0.04 * strength:
        question = _slip(rng, question)
    return question


def join(document: Document) -> Document:
    """Move the space that ends given text to the word the model says behind it.

    That is how the two are tokenized as one text, which the runtime does where it scores choices.
    """
    joined = list(document)
    for at, (before, piece) in enumerate(pairwise(document)):
        if before.text.endswith(" ") and piece.said and not before.said and not piece.text[:1].isspace():
            joined[at] = before._replace(text=before.text[:-1])
            joined[at + 1] = piece._replace(text=" " + piece.text)
    return joined


def _slip(rng: Random, question: str) -> str:
    """Misspell one long word in small letters; names are left alone, as they may be all that tells two apart."""
    words = question.split(" ")
    places = [i for i, word in enumerate(words) if len(word) > 4 and word.isalpha() and word.islower()]
    if not places:
        return question
    place = rng.choice(places)
    word = words[place]
    at = rng.randrange(1, len(word) - 2)
    kind = rng.randrange(3)
    if kind == 0:
        word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    elif kind == 1:
        word = word[:at] + word[at + 1 :]
    else:
        word = word[:at] + word[at] + word[at:]
    words[place] = word
    return " ".join(words)
