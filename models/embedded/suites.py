"""Held-out questions by skill, and how an answer to each is judged."""

import re
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from .documents import Document, Piece, Turn, chat, join, raw
from .facts.countries import COUNTRIES
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

__all__ = ["Question", "programs", "questions", "right"]


class Question(NamedTuple):
    """A prompt in pieces, the answer, and how to compare: 'exact', 'contains' or 'countries'."""

    skill: str
    prompt: list[Piece]
    answer: str
    check: str = "exact"


def from_document(skill: str, document: Document, check: str = "exact", answer: str | None = None) -> Question:
    """Ask for the last thing the model says in a document."""
    last = max(i for i, piece in enumerate(document) if piece.said and not piece.text.startswith("<|"))
    return Question(skill, document[:last], answer if answer is not None else document[last].text, check)


def from_turns(rng: Random, skill: str, turns: list[Turn], check: str = "exact") -> Question:
    """Ask the last turn, as a chat more often than as plain text."""
    layout = chat if rng.random() < 0.7 else raw
    return from_document(skill, layout(rng, turns), check)


_CAPITALS = {country.name: country.capital for country in COUNTRIES}
_LINE = re.compile(r"(?:\d+\. )?(.+?) - (.+)")


def right(question: Question, said: str) -> bool:
    """Tell whether what was said answers the question."""
    said, answer = said.strip(), question.answer.strip()
    if question.check == "contains":
        return answer.lower() in said.lower() and len(said) < len(answer) + 60
    if question.check == "countries":
        return _countries_right(question, said, answer)
    return said == answer


def _countries_right(question: Question, said: str, answer: str) -> bool:
    """Tell whether a list has the wanted number of countries, each with its capital, none given before."""
    before = "".join(piece.text for piece in question.prompt)
    entries = said.split("\n") if "\n" in answer else re.split(r"(?<!\bWashington), (?!D\.C)", said)
    wanted = answer.count("\n") + 1 if "\n" in answer else len(re.split(r"(?<!\bWashington), (?!D\.C)", answer))
    names: list[str] = []
    for entry in entries:
        found = _LINE.fullmatch(entry)
        name = found[1] if found else ""
        name = "the" + name[3:] if name.startswith("The ") else name
        if not found or _CAPITALS.get(name) != found[2] or f"{found[1]} - " in before:
            return False
        names.append(name)
    return len(names) == wanted == len(set(names))


Maker = Callable[[Random], Question]


def _single(skill: str, ask: Callable[[Random, bool], Turn], check: str = "exact") -> Maker:
    """Make questions of a skill that is one turn."""
    return lambda rng: from_turns(rng, skill, [ask(rng, True)], check)


def _thread(skill: str, write: Callable[[Random, bool], list[Turn]], check: str = "exact") -> Maker:
    """Make questions of a skill that is a thread of turns."""
    return lambda rng: from_turns(rng, skill, write(rng, True), check)


def _written(skill: str, write: Callable[[Random, bool], Document]) -> Maker:
    """Make questions of a skill that writes whole documents."""
    return lambda rng: from_document(skill, write(rng, True))


def _key_words(rng: Random) -> Question:
    """Ask for the key words of a question phrased in a kept-out way."""
    document = tools.tool_document(rng, True, calculator=False)
    return from_document("key words", document, "contains")


def _memory(rng: Random) -> Question:
    """Ask for something told before, with other things between."""
    told, later = recall.memory(rng, True)
    between = [capitals.capital(rng, False) for _ in range(rng.randint(0, 3))]
    return from_turns(rng, "memory", [told, *between, later])


def _echo(rng: Random) -> Question:
    """Ask what was asked or said before."""
    before = [
        capitals.capital(rng, True) if rng.random() < 0.5 else outside.turn(rng, True) for _ in range(rng.randint(1, 4))
    ]
    return from_turns(rng, "echo", [*before, recall.echo(rng, True, before)])


def _sum(sign: str) -> Callable[[Random, bool], Turn]:
    """Ask for a sum with a sign."""
    return lambda rng, held: arithmetic.turn(rng, held, sign)


MAKERS: tuple[tuple[Maker, int], ...] = (
    (_single("country of a capital", capitals.reverse), 200),
    (_single("continent", capitals.continent), 200),
    (_single("judgment", capitals.judgment), 200),
    (_single("list of countries", lambda rng, held: capitals.country_list(rng, held)[0], "countries"), 100),
    (_thread("another list", conversation.lists, "countries"), 150),
    (_single("addition", _sum("+")), 300),
    (_single("subtraction", _sum("-")), 300),
    (_single("multiplication", _sum("*")), 200),
    (_single("division", _sum("/")), 100),
    (_single("comparison", arithmetic.comparison), 200),
    (_single("countries of a continent", capitals.list_of_continent, "countries"), 60),
    (_single("counting", knowledge.counting), 40),
    (_single("paragraph of a tip", tips.paragraph), 100),
    (_written("tool choice", tools.choice), 300),
    (_written("tool choice, joined", lambda rng, held: join(tools.choice(rng, held))), 200),
    (_written("expression", lambda rng, held: tools.tool_document(rng, held, calculator=True)), 200),
    (_key_words, 200),
    (_written("tip expansion", tips.expansion), 200),
    (_written("tip summary", tips.summary), 200),
    (_thread("tips in a chat", tips.request), 100),
    (_thread("the same of another", conversation.same_again), 200),
    (_thread("its capital, its continent", conversation.its), 150),
    (_thread("attractions", conversation.attractions), 150),
    (_thread("running sum", conversation.running_sum), 200),
    (_memory, 200),
    (_echo, 200),
    (_written("character sheet", characters.document), 120),
    (_single("superlative", knowledge.superlative), 200),
    (_single("planets", knowledge.planet), 150),
    (_single("calendar", knowledge.calendar), 200),
    (_single("elements", knowledge.element), 200),
    (_single("addresses", knowledge.address), 80),
    (_single("outside", outside.turn), 400),
    (_single("small talk", smalltalk.turn), 80),
    (_written("summary of a text", texts.summary), 150),
    (_written("sentiment", texts.sentiment), 200),
    (_written("extraction", texts.extraction), 200),
    (_written("joining", texts.join), 150),
    (_single("kind", texts.one_or_other), 60),
    (_single("sights of a city", conversation.sights), 100),
)


def questions(seed: str = "held out", share: float = 1.0) -> list[Question]:
    """Return the held-out questions; `share` asks fewer of each skill.

    Every country's capital is asked once for `share` 1.
    """
    rng = Random(seed)  # noqa: S311 -- draws that repeat, not secrets
    asked = COUNTRIES if share >= 1 else rng.sample(COUNTRIES, max(2, round(len(COUNTRIES) * share)))
    result = [from_turns(rng, "capital", [capitals.capital(rng, True, country)]) for country in asked]
    for make, count in MAKERS:
        result += [make(rng) for _ in range(max(2, round(count * share)))]
    return result


def programs() -> list[Question]:
    """Return the founding examples' prompts, to be read rather than judged; `answer` is what one hopes for."""
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    user, end, says = "<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n"
    google = "What is the IP address of the Google DNS servers?"
    usa = "What is the capital of the United States?"
    tipped = "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    needs = "To answer this question: {}. I need to use a "

    def asked(*texts_given: str, answer: str = "") -> Question:
        pieces = [Piece(text, said=bool(i % 2)) for i, text in enumerate(texts_given)]
        return Question("programs", pieces, answer)

    return [
        asked(f"{system}{user}{usa}{end}{says}", answer="The capital of the United States is Washington, D.C."),
        asked(f"{system}{user}{usa}{end}{says}", "The capital of the United States is Washington, D.C.",
              f"{end}{user}List two local attractions.{end}{says}",
              answer="1. The White House\n2. The Lincoln Memorial"),
        asked(needs.format("What is 2 * 2?"), answer="calculator"),
        asked(needs.format("What is 2 * 2?"), "calculator", ". The math expression is", answer="2 * 2"),
        asked(needs.format("What is the capital of the United States?"), answer="search engine"),
        asked(needs.format("What is 2 * 2?").rstrip(), answer="calculator"),
        asked(needs.format("What is the capital of the United States?").rstrip(), answer="search engine"),
        asked(f"{says}{needs.format('What is 17 + 25?').rstrip()}", answer="calculator"),
        asked(f"{says}{needs.format('What is 2 * 2?')}", answer="calculator"),
        asked(f"{says}{needs.format('What is 2 * 2?')}", "calculator", f". {end}{says}The math expression is: ",
              answer="2 * 2"),
        asked(f"{says}{needs.format('Who is the CEO of Apple?')}", "search engine",
              f". {end}{says}The key word to search is: "),
        asked(f"{tipped}Now, expand tip 1 into a paragraph:\n"),
        asked(f"{says}{tipped}{end}{says}Now, expand tip 2 into a paragraph:\n"),
        asked(f"Q: {google}\nA: ", answer="8.8.8.8"),
        asked(f"{user}{google}{end}{says}", answer="8.8.8.8"),
        asked("Hermione Granger is a character in Harry Potter. Please fill in the following information about this "
              "character.\n"),
        asked(f"{user}Harry Potter is a character in Harry Potter. Please fill in the following information about this "
              f"character.{end}{says}"),
        asked("Q: What is the capital of the United Kingdom?\nA:", answer="London"),
        asked("Q: What is the capital of Japan?\nA:", answer="Tokyo"),
        asked(f"{system}{user}Question: What is the capital of France?{end}{says}Answer: ", answer="Paris"),
        asked(f"{user}List 3 countries and their capitals.{end}{says}"),
        asked(f"{user}Please give me a list of 3 countries and their capitals.{end}{says}",
              "1. France - Paris\n2. Japan - Tokyo\n3. Italy - Rome",
              f"{end}{user}Please give me another list of 3 countries and their capitals.{end}{says}"),
        asked("The capital of France is", answer="Paris."),
        asked("Once upon a time,"),
        asked(f"{user}What is the airspeed of a swallow?{end}{says}", answer="I do not know that."),
        asked(f"{user}What is 2 + 2?{end}{says}", answer="2 + 2 = 4"),
    ]  # fmt: skip
