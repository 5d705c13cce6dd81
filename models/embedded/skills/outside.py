"""Questions beyond the model's knowledge, answered with 'I do not know that.'"""

import re
from random import Random

from ..documents import Turn, mend
from ..facts.countries import ATTRACTIONS, COUNTRIES, NOT_COUNTRIES
from ..facts.nature import DAYS, ELEMENTS, MONTHS, PLANETS, SUPERLATIVES
from ..facts.outside import (
    DEEDS,
    HELD_OUTSIDE,
    HELD_OUTSIDE_TEMPLATES,
    MOST,
    NOUNS,
    OUTSIDE,
    OUTSIDE_GRAMMAR,
    OUTSIDE_TEMPLATES,
    PLURALS,
    VERBS,
)  # fmt: skip
from ..facts.words import (
    ANIMALS,
    BLAME,
    BOOKS,
    CITIES,
    COMPANIES,
    FOODS,
    JOBS,
    NAMES,
    PEOPLE,
    PRAISE,
    SPORTS,
    SYLLABLES,
    THINGS,
    TOPICS,
)  # fmt: skip

__all__ = ["UNKNOWN", "coined", "rambling", "turn"]

UNKNOWN = "I do not know that."
_SLOT = re.compile(r"\{(\w+)\}")


def coined(rng: Random) -> str:
    """Make a word up, of syllables or of letters: what it teaches is to copy words never met."""
    if rng.random() < 0.25:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))
    word = rng.choice(_VOWELS) if rng.random() < 0.3 else ""
    for _ in range(rng.choice((1, 1, 2, 2, 2, 3))):
        word += rng.choice(_ONSETS) + rng.choice(_VOWELS)
    if len(word) < 3 or rng.random() < 0.6:
        word += rng.choice(_ENDS)
    return word


_ONSETS = (*"bcdfghjklmnpqrstvwxz", *"bdglmnrst", "br", "ch", "cl", "cr", "dr", "fr", "gl", "gr", "ll", "mb", "nd",
           "nn",
           "nt", "ph", "pr", "rb", "rd", "rl", "rn", "rt", "sh", "sk", "sl", "ss", "st", "th", "tr", "tt", "zz", "ld",
           "lv", "rr", "pp", "ck", "mm")  # fmt: skip
_VOWELS = (*"aeiou", *"aeiou", *"aei", "y", "ia", "ei", "au", "io", "ea", "ee", "oo", "ie", "ue", "oa")
_ENDS = (*"nrslmtdkx", "rt", "nd", "th", "ck", "ll", "ng", "rd", "st", "lf", "ne", "ce", "tte", "na", "ra", "la", "ric",
         "bert", "helm", "mar", "lyn", "son", "ton", "ix", "ias", "iel", "elle")  # fmt: skip


def rambling(rng: Random) -> str:
    """Return a row of unrelated words, as a question or a remark."""
    words: list[str] = []
    for _ in range(rng.randint(2, 8)):
        draw = rng.random()
        if draw < 0.35:
            words.append(rng.choice(_LINKS))
        elif draw < 0.6:
            words.append(coined(rng))
        else:
            words.append(
                _slot(rng, rng.choice(("thing", "animal", "food", "topic", "noun", "do", "person", "adjective")))
            )
    text = " ".join(words)
    return text[:1].upper() + text[1:] + rng.choice(("?", "?", ".", "", "!"))


_LINKS = tuple("the a of in my your with for and is are was does can will on to from which what how it they we".split())


def _slot(rng: Random, name: str) -> str:
    """Return something that fits the slot."""
    match name:
        case "country":
            return rng.choice(COUNTRIES).name
        case "place":
            return rng.choice((rng.choice(CITIES), rng.choice(COUNTRIES).capital))
        case "word":
            word = coined(rng)
            return word.capitalize() if rng.random() < 0.3 else word
        case "small":
            return str(rng.randint(2, 99))
        case "big":
            return str(rng.randint(200, 9999))
        case "year":
            return str(rng.randint(1200, 2030))
        case "element":
            return rng.choice(ELEMENTS)[0]
        case "great":
            return rng.choice(
                (*(fact.answer for fact in SUPERLATIVES), rng.choice(rng.choice(list(ATTRACTIONS.values()))))
            )
        case "month":
            return rng.choice(MONTHS)[0]
        case "book":
            return rng.choice(BOOKS)
        case _:
            return rng.choice(_TABLES[name])


_TABLES = {
    "fiction": NOT_COUNTRIES, "person": PEOPLE, "company": COMPANIES, "topic": TOPICS, "animal": ANIMALS,
    "noun": NOUNS, "plural": PLURALS, "do": VERBS, "done": DEEDS, "most": MOST, "adjective": (*PRAISE, *BLAME),
    "job": JOBS, "food": FOODS, "sport": SPORTS, "thing": THINGS, "name": NAMES, "planet": PLANETS, "day": DAYS,
}  # fmt: skip

LEADS = ("", "", "", "", "", "", "", "", "Can you tell me: ", "Tell me: ", "Please: ", "I wonder: ", "One question: ")


def turn(rng: Random, held: bool) -> Turn:
    """Ask something that is outside of what the model is taught."""
    if not held and rng.random() < 0.06:
        return Turn(rambling(rng), UNKNOWN, UNKNOWN)
    if held:
        template = rng.choice(HELD_OUTSIDE if rng.random() < 0.6 else HELD_OUTSIDE_TEMPLATES)
    else:
        draw = rng.random()
        template = rng.choice(OUTSIDE if draw < 0.3 else OUTSIDE_TEMPLATES if draw < 0.65 else OUTSIDE_GRAMMAR)
    question = _SLOT.sub(lambda found: _slot(rng, found[1]), template)
    if not held:
        if question.startswith(("What", "Who", "How", "Why", "When", "Where", "Which", "Is")):
            question = rng.choice(LEADS) + question
        question = mend(rng, question)
    return Turn(question, UNKNOWN, UNKNOWN)
