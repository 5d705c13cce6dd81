"""Threads of a chat: turns whose last one can only be understood from those before it."""

from collections.abc import Callable
from random import Random

from ..documents import Turn, mend
from ..facts.countries import ATTRACTIONS, COUNTRIES, Country
from ..facts.nature import ELEMENTS, MONTHS
from . import arithmetic, capitals
from .capitals import capitalized, named
from .outside import UNKNOWN

__all__ = ["THREADS", "attractions", "sights", "thread"]

ABOUT = (
    "And of {x}?", "And {x}?", "What about {x}?", "How about {x}?", "And for {x}?", "And what about {x}?", "{X}?",
    "Now {x}.", "The same for {x}?", "And how about {x}?", "Same question for {x}.", "What is it for {x}?",
    "Then {x}?", "And now {x}?", "Now for {x}.",
    "What about the one of {x}?", "Next: {x}.", "And the one for {x}?",
)  # fmt: skip
ABOUT_HELD = ("And now for {x}?", "Then what about {x}?", "And that of {x}?")


def about(rng: Random, held: bool, subject: str) -> str:
    """Ask the same of something else."""
    question = rng.choice(ABOUT_HELD if held else ABOUT).format(x=subject, X=capitalized(subject))
    return question if held else mend(rng, question)


def same_again(rng: Random, held: bool) -> list[Turn]:
    """Ask a question, then the same of others in a few words."""
    kind = rng.randrange(5)
    more = rng.choice((1, 1, 2, 3))
    turns: list[Turn] = []
    if kind <= 2:
        ask: Callable[[Random, bool, Country], Turn] = capitals.capital if kind < 2 else capitals.continent
        for number, country in enumerate(rng.sample(COUNTRIES, more + 1)):
            turn = ask(rng, False, country)
            if number:
                turn = turn._replace(question=about(rng, held, named(rng, country)))
            turns.append(turn)
    elif kind == 3:
        asks = ("What is the chemical symbol for {x}?", "What is the symbol of {x}?", "Symbol for {x}?")
        for number, (name, symbol, _) in enumerate(rng.sample(ELEMENTS, more + 1)):
            question = about(rng, held, name) if number else rng.choice(asks).format(x=name)
            turns.append(Turn(question, f"The chemical symbol for {name} is {symbol}.", symbol))
    else:
        asks = ("How many days are in {x}?", "How many days does {x} have?")
        for number, (name, days) in enumerate(rng.sample(MONTHS, more + 1)):
            question = about(rng, held, name) if number else rng.choice(asks).format(x=name)
            turns.append(Turn(question, f"{name} has {days} days.", str(days)))
    return turns


ITS_CAPITAL = (
    "What is its capital?", "And its capital?", "What is the capital there?", "Name its capital.",
    "What's its capital?",
    "Which city is its capital?", "And what is its capital?", "What is the capital of that country?",
    "Tell me its capital.", "What is the capital?", "Can you name its capital?", "Please tell me its capital.",
    "Do you know its capital?", "And the capital?",
)  # fmt: skip
ITS_CAPITAL_HELD = ("Can you tell me its capital?", "Please name its capital.", "And what is the capital of it?")
ITS_CONTINENT = (
    "Can you say which continent it is in?", "Could you tell me what continent it is on?",
    "Do you know which continent it is in?",
    "Tell me which continent it is in.", "Please tell me its continent.", "Can you tell me its continent?",
    "And on which continent is it?",
    "Which continent is it in?", "What continent is it on?", "Which continent is that in?", "On which continent is it?",
    "And the continent?", "Where is that country?", "In which continent is that country?",
    "Which continent is that country in?",
    "Which continent is it on?", "Where is it?",
)  # fmt: skip
ITS_CONTINENT_HELD = ("Can you tell me which continent it is in?", "And on what continent is that?")


def its(rng: Random, held: bool) -> list[Turn]:
    """Ask about a country, then about its capital or its continent."""
    country = capitals.pick(rng)
    if rng.random() < 0.6:
        first = capitals.continent(rng, False, country)
        ask, plain = rng.choice(ITS_CAPITAL_HELD if held else ITS_CAPITAL), capitals.capital(rng, False, country)
    else:
        first = capitals.capital(rng, False, country)
        ask, plain = rng.choice(ITS_CONTINENT_HELD if held else ITS_CONTINENT), capitals.continent(rng, False, country)
    return [first, plain._replace(question=ask if held else mend(rng, ask))]


SIGHTS = (
    "List two local attractions.", "List two local attractions.", "List two attractions.",
    "Name two attractions there.",
    "What can I see there?", "What are two sights there?", "Name two sights.", "Give me two attractions.",
    "Tell me two local attractions.", "What are two local attractions?", "Which attractions are there?",
    "What should I visit there?", "List two local attractions there.", "Please list two local attractions.",
)  # fmt: skip
SIGHTS_HELD = (
    "Could you list two attractions there?",
    "Name two local attractions.",
    "What two places should I see there?",
)
SIGHTS_IN = (
    "List two attractions in {k}.", "What can I see in {k}?", "Name two sights in {k}.",
    "What are two attractions in {k}?",
    "List two local attractions of {k}.", "What should I visit in {k}?", "Give me two attractions in {k}.",
    "Tell me two sights of {k}.", "Name two local attractions in {k}.",
)  # fmt: skip
SIGHTS_IN_HELD = ("Could you list two attractions in {k}?", "What two places should I see in {k}?")


def _sight_answer(city: str) -> tuple[str, str]:
    """Return the sights of a capital as a list and in a line."""
    if city not in ATTRACTIONS:
        return UNKNOWN, UNKNOWN
    first, second = ATTRACTIONS[city]
    return f"1. {capitalized(first)}\n2. {capitalized(second)}", f"{capitalized(first)} and {second}"


def attractions(rng: Random, held: bool) -> list[Turn]:
    """Ask for a capital, then for its sights."""
    country = rng.choice(COUNTRIES)
    while country.capital not in ATTRACTIONS and rng.random() < 0.93:
        country = rng.choice(COUNTRIES)
    ask = rng.choice(SIGHTS_HELD if held else SIGHTS)
    answer, short = _sight_answer(country.capital)
    return [capitals.capital(rng, False, country), Turn(ask if held else mend(rng, ask), answer, short)]


def sights(rng: Random, held: bool) -> Turn:
    """Ask for the sights of a capital by its name."""
    city = rng.choice(list(ATTRACTIONS)) if held or rng.random() < 0.9 else rng.choice(COUNTRIES).capital
    ask = rng.choice(SIGHTS_IN_HELD if held else SIGHTS_IN).format(k=city)
    answer, short = _sight_answer(city)
    return Turn(ask if held else mend(rng, ask), answer, short)


ANOTHER = (
    "Could you give me {n} more countries?", "Could you name {n} more?", "Can you list {n} more countries?",
    "List {n} more countries.",
    "I want {n} more countries.", "Could you give me another list of {n} countries?",
    "Please name {n} other countries and their capitals.",
    "I want another list of {n} countries and their capitals.", "Could you list {n} others?", "Please list {n} more.",
    "Please give me another list of {n} countries and their capitals.", "Give me another list of {n} countries.",
    "Another list of {n} countries and their capitals, please.", "Give me {n} more.", "{n} more, please.",
    "List {n} other countries and their capitals.", "Now list {n} different countries and their capitals.",
    "Please list {n} more countries and their capitals.", "Tell me {n} other ones.", "Another {n}.",
    "Give me {n} more countries and their capitals.", "Can you give me another {n} countries?",
)  # fmt: skip
ANOTHER_HELD = (
    "I would like another list of {n} countries and their capitals.", "Could you list {n} more countries?",
    "Give me another {n} countries with their capitals.",
)  # fmt: skip


def lists(rng: Random, held: bool) -> list[Turn]:
    """Ask for a list of countries, then for others."""
    first, given = capitals.country_list(rng, False)
    turns = [first]
    for _ in range(rng.choice((1, 1, 2))):
        number = len(given) if len(turns) == 1 and rng.random() < 0.7 else rng.choice((2, 3, 3, 4))
        ask = rng.choice(ANOTHER_HELD if held else ANOTHER)
        left = [c for c in COUNTRIES if c.name in capitals.FAMOUS and c not in given]
        chosen = rng.sample(left, min(number, len(left)))
        written = capitals.NUMBER_WORDS[number] if rng.random() < 0.25 else str(number)
        given = given + chosen
        flat = ", ".join(f"{c.name} - {c.capital}" for c in chosen)
        question = capitalized(ask.format(n=written))
        turns.append(Turn(question if held else mend(rng, question), capitals.write_list(chosen), flat))
    return turns


STEPS = {
    "+": ("And if you add {b}?", "What if I add {b} to it?", "Add {b} to that.", "Add {b}.", "Plus {b}?",
          "And plus {b}?", "Now add {b}.", "Add {b} to it.", "What is that plus {b}?",
          "Add {b} to the result."),
    "-": ("And if you subtract {b}?", "What if I take {b} away?", "Subtract {b} from that.", "Subtract {b}.",
          "Minus {b}?", "And minus {b}?", "Now subtract {b}.", "Take {b} away.",
          "What is that minus {b}?", "Subtract {b} from the result."),
    "*": ("Multiply that by {b}.", "Times {b}?", "Now times {b}.", "Multiply it by {b}.", "What is that times {b}?"),
}  # fmt: skip
STEPS_HELD = {
    "+": ("Please add {b} to that.", "And if I add {b}?"),
    "-": ("Please subtract {b} from that.", "And if I subtract {b}?"),
    "*": ("Please multiply that by {b}.",),
}


def running_sum(rng: Random, held: bool) -> list[Turn]:
    """Ask for a sum, then go on from its result."""
    while True:
        first = arithmetic.turn(rng, False)
        result = int(first.short)
        if 0 <= result <= 99:
            break
    turns = [first]
    for _ in range(rng.choice((1, 1, 2, 3))):
        sign = rng.choice("++--*" if result <= 12 else "+-")
        b = rng.randint(0, 12) if sign == "*" else rng.choice((rng.randint(1, 12), rng.randint(0, 99)))
        if arithmetic.is_held(result, sign, b):
            continue
        ask = rng.choice((STEPS_HELD if held else STEPS)[sign]).format(b=b)
        text = arithmetic.sum_of(result, sign, b)
        result = arithmetic.apply(result, sign, b)
        turns.append(Turn(ask if held else mend(rng, ask), text, str(result)))
        if not 0 <= result <= 99:
            break
    return turns if len(turns) > 1 else running_sum(rng, held)


THREADS = (same_again, same_again, its, attractions, attractions, lists, lists, running_sum, running_sum)


def thread(rng: Random, held: bool) -> list[Turn]:
    """Write one thread of follow-ups; the last turn is the one that refers back."""
    return rng.choice(THREADS)(rng, held)
