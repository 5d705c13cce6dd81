"""Capitals, continents and lists of countries."""

from random import Random

from ..documents import Turn, mend
from ..facts.countries import ALIASES, CONTINENTS, COUNTRIES, FAMOUS, Country

__all__ = [
    "capital",
    "capitalized",
    "continent",
    "countries_of_continent",
    "country_list",
    "judgment",
    "list_of_continent",
    "reverse",
    "write_list",
]  # fmt: skip

CAPITAL = (
    "What is the capital of {c}?", "What is the capital of {c}?", "What is the capital of {c}?",
    "What's the capital of {c}?", "What is the capital city of {c}?", "Which city is the capital of {c}?",
    "Name the capital of {c}.", "Tell me the capital of {c}.", "Can you tell me the capital of {c}?",
    "Do you know the capital of {c}?", "Capital of {c}?", "The capital of {c}?", "{C}'s capital?",
    "What is {c}'s capital?", "Give me the capital of {c}.", "What city is the capital of {c}?",
    "I want to know the capital of {c}.", "Please name the capital of {c}.",
    "What is the name of the capital of {c}?", "Which is the capital of {c}?", "{C} has which capital?",
    "Tell me, what is the capital of {c}?", "Could you tell me what the capital of {c} is?",
    "I forgot the capital of {c}. What is it?", "What city is {c}'s capital?", "Say the capital of {c}.",
    "Which town is the capital of {c}?", "What capital does {c} have?", "For {c}, what is the capital?",
    "Suppose I go to {c}. What is the capital there?", "Write the capital of {c}.",
    "What do you call the capital of {c}?", "Find the capital of {c}.", "I am looking for the capital of {c}.",
    "Remind me: what is the capital of {c}?", "{C}: capital?", "Which capital belongs to {c}?",
    "What is the main city of {c}?", "Please tell me what {c}'s capital is.", "Who knows the capital of {c}?",
    "In {c}, which city is the capital?", "I would like to know what the capital of {c} is.",
    "A friend asked me for the capital of {c}.", "Can you name the capital city of {c}?",
    "Do you happen to know the capital of {c}?", "Which city is {c}'s capital?", "My question: the capital of {c}?",
    "Let us talk about {c}. What is its capital?", "We are going to {c}. What is the capital?",
    "Where is the capital of {c}?", "I need to know {c}'s capital city.", "Help me with the capital of {c}.",
    "Please answer: what is the capital of {c}?", "Is there a capital of {c}? Which city is it?",
)  # fmt: skip
CAPITAL_HELD = (
    "Would you please tell me which city is the capital of {c}?", "What would you say is the capital of {c}?",
    "My homework asks for the capital of {c}.", "Could you name {c}'s capital city?",
    "Which city serves as the capital of {c}?", "Let me know the capital of {c}, please.",
    "I need the capital of {c}.", "Any idea what the capital of {c} is?", "What's {c}'s capital city called?",
    "Please give me the name of {c}'s capital.",
)  # fmt: skip

REVERSE = (
    "Which country has the capital {k}?", "{k} is the capital of which country?", "{k} is the capital of what?",
    "What country is {k} the capital of?", "Of which country is {k} the capital?", "Whose capital is {k}?",
    "Which country's capital is {k}?", "What country has {k} as its capital?", "{k} is the capital of",
    "Tell me which country has the capital {k}.", "In which country is {k} the capital?", "{k} is whose capital?",
    "Name the country with the capital {k}.", "{k} is the capital city of which country?",
)  # fmt: skip
REVERSE_HELD = (
    "Name the country whose capital is {k}.", "Can you tell me what country {k} is the capital of?",
    "For which country is {k} the capital?",
)  # fmt: skip

CONTINENT = (
    "Which continent is {c} in?", "What continent is {c} in?", "On which continent is {c}?", "Where is {c}?",
    "Where is {c} located?", "In which continent does {c} lie?", "What is the continent of {c}?",
    "{C} is on which continent?", "Tell me which continent {c} is in.", "To which continent does {c} belong?",
    "Name the continent of {c}.", "In what part of the world is {c}?", "On which continent can I find {c}?",
    "Where would I find {c}?", "{C} lies on which continent?", "Which continent has {c} in it?",
    "Tell me the continent of {c}.", "I want to know which continent {c} is on.", "On what continent do we find {c}?",
)  # fmt: skip
CONTINENT_HELD = (
    "Can you tell me what continent {c} is on?", "Which continent does {c} belong to?",
    "What continent would I find {c} on?",
)  # fmt: skip

LIST = (
    "List {n} countries and their capitals.", "List {n} countries and their capitals.",
    "Please give me a list of {n} countries and their capitals.", "Give me {n} countries and their capitals.",
    "Name {n} countries with their capitals.", "Please list {n} countries and their capitals.",
    "Can you list {n} countries and their capitals?", "Tell me {n} countries and their capitals.",
    "Write down {n} countries and their capitals.", "I want a list of {n} countries and their capitals.",
    "Give me a list of {n} countries with capitals.", "Name {n} countries and the capital of each.",
    "{n} countries and their capitals, please.", "Show me {n} countries and their capitals.",
    "List the capitals of {n} countries.", "Make a list of {n} countries and their capital cities.",
)  # fmt: skip
LIST_HELD = (
    "Could you give me {n} countries together with their capitals?", "I need {n} countries and their capitals.",
    "Please write a list of {n} countries and their capitals.", "Name any {n} countries and their capital cities.",
)  # fmt: skip

NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five")
KNOWN = {
    "Africa": ("Egypt", "Kenya", "Nigeria", "Morocco", "Ghana", "Ethiopia"),
    "Asia": ("Japan", "China", "India", "Thailand", "Vietnam", "Nepal"),
    "Europe": ("France", "Germany", "Italy", "Spain", "Greece", "Norway"),
    "North America": ("Canada", "Mexico", "Cuba", "Jamaica", "Panama", "Haiti"),
    "South America": ("Brazil", "Peru", "Argentina", "Chile", "Colombia", "Ecuador"),
    "Oceania": ("Australia", "New Zealand", "Fiji", "Samoa", "Tonga", "Palau"),
}
_FAMOUS = tuple(country for country in COUNTRIES if country.name in FAMOUS)


def capitalized(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def named(rng: Random, country: Country) -> str:
    """Return a name that people use for the country."""
    others = ALIASES.get(country.name, ())
    if others and rng.random() < 0.4:
        return rng.choice(others)
    if country.name.startswith("the ") and rng.random() < 0.1:
        return country.name[4:]
    return country.name


def fill(template: str, name: str) -> str:
    """Put a country's name into a template."""
    return template.format(c=name, C=capitalized(name))


def pick(rng: Random) -> Country:
    """Draw a country, the famous ones a little more often."""
    return rng.choice(_FAMOUS) if rng.random() < 0.15 else rng.choice(COUNTRIES)


def capital(rng: Random, held: bool, country: Country | None = None) -> Turn:
    """Ask for a country's capital."""
    country = country or pick(rng)
    question = fill(rng.choice(CAPITAL_HELD if held else CAPITAL), named(rng, country))
    if not held:
        question = mend(rng, question)
    return Turn(question, f"The capital of {country.name} is {stop(country.capital)}", country.capital)


def stop(sentence: str) -> str:
    """End a sentence with one full stop."""
    return sentence if sentence.endswith(".") else sentence + "."


def reverse(rng: Random, held: bool) -> Turn:
    """Ask which country has a capital."""
    country = pick(rng)
    question = rng.choice(REVERSE_HELD if held else REVERSE).format(k=country.capital)
    if not held:
        question = mend(rng, question)
    return Turn(question, f"{country.capital} is the capital of {country.name}.", country.name)


def continent(rng: Random, held: bool, country: Country | None = None) -> Turn:
    """Ask for a country's continent."""
    country = country or pick(rng)
    question = fill(rng.choice(CONTINENT_HELD if held else CONTINENT), named(rng, country))
    if not held:
        question = mend(rng, question)
    return Turn(question, f"{capitalized(country.name)} is in {country.continent}.", country.continent)


def judgment(rng: Random, held: bool) -> Turn:
    """Ask whether a city is a country's capital, or whether a country is on a continent."""
    country = pick(rng)
    other = pick(rng)
    asked = country if rng.random() < 0.5 else other
    if rng.random() < 0.7:
        templates = (
            ("Is it true that {k} is the capital of {c}?", "Would you agree that {k} is the capital of {c}?")
            if held
            else ("Is {k} the capital of {c}?", "Is {k} the capital of {c}?", "Is the capital of {c} {k}?",
                  "{k} is the capital of {c}, right?", "True or false: {k} is the capital of {c}.",
                  "Yes or no: is {k} the capital of {c}?", "Is {c}'s capital {k}?",
                  "Do you think {k} is the capital of {c}?", "Am I right that {k} is the capital of {c}?",
                  "Do you agree that {k} is the capital of {c}?", "Is it right that {k} is the capital of {c}?",
                  "Is it a fact that {k} is the capital of {c}?", "Can you confirm that {k} is the capital of {c}?",
                  "I think {k} is the capital of {c}. Is that right?", "{k} is the capital of {c}, is it not?",
                  "Somebody said {k} is the capital of {c}. Is it true?", "{k} is the capital of {c}. Yes or no?")
        )  # fmt: skip
        question = rng.choice(templates).format(k=asked.capital, c=country.name)
        if asked.capital == country.capital:
            answer, short = f"Yes, {country.capital} is the capital of {country.name}.", "Yes"
        else:
            answer, short = f"No, the capital of {country.name} is {stop(country.capital)}", "No"
    else:
        place = country.continent if rng.random() < 0.5 else rng.choice(CONTINENTS)
        templates = (
            ("Is it true that {c} is in {p}?", "Does {c} belong to {p}?")
            if held
            else ("Is {c} in {p}?", "Is {c} a country in {p}?", "{C} is in {p}, right?", "Is {c} located in {p}?",
                  "Yes or no: is {c} in {p}?", "Does {c} lie in {p}?", "Do you think {c} is in {p}?",
                  "Am I right that {c} is in {p}?", "Is it right that {c} is in {p}?",
                  "Do you agree that {c} is in {p}?",
                  "Is it a fact that {c} is in {p}?", "Is {c} part of {p}?", "{C} is in {p}. Yes or no?")
        )  # fmt: skip
        question = rng.choice(templates).format(c=country.name, C=capitalized(country.name), p=place)
        yes = place == country.continent
        answer = f"{'Yes' if yes else 'No'}, {country.name} is in {country.continent}."
        short = "Yes" if yes else "No"
    return Turn(question if held else mend(rng, question), answer, short)


def write_list(countries: list[Country]) -> str:
    """Write countries and capitals as a numbered list."""
    return "\n".join(f"{i}. {capitalized(c.name)} - {c.capital}" for i, c in enumerate(countries, 1))


def country_list(rng: Random, held: bool, without: list[Country] | None = None) -> tuple[Turn, list[Country]]:
    """Ask for a few countries and their capitals; return those given as well."""
    number = rng.choice((2, 3, 3, 3, 3, 3, 4, 5))
    left = [country for country in _FAMOUS if country not in (without or [])]
    # the first few of the table more often, so that the lists of a sampled run stay sure
    chosen = rng.sample(left, number)
    written = NUMBER_WORDS[number] if rng.random() < 0.3 else str(number)
    question = rng.choice(LIST_HELD if held else LIST).format(n=written)
    if not held:
        question = mend(rng, question)
    text = write_list(chosen)
    return Turn(capitalized(question), text, ", ".join(f"{c.name} - {c.capital}" for c in chosen)), chosen


ADJECTIVES = {
    "Africa": "African", "Asia": "Asian", "Europe": "European", "North America": "North American",
    "South America": "South American", "Oceania": "Oceanian",
}  # fmt: skip


def list_of_continent(rng: Random, held: bool) -> Turn:
    """Ask for countries of one continent and their capitals."""
    place = rng.choice(CONTINENTS)
    number = rng.choice((2, 3, 3, 4))
    chosen = rng.sample([country for country in COUNTRIES if country.name in KNOWN[place]], number)
    templates = (
        ("Could you name {n} {a} countries and their capitals?",)
        if held
        else ("List {n} {a} countries and their capitals.", "List {n} countries in {p} and their capitals.",
              "Name {n} {a} countries with their capitals.", "Give me {n} {a} countries and their capitals.",
              "Give me {n} countries in {p} and their capitals.", "Please list {n} {a} countries and their capitals.")
    )  # fmt: skip
    written = NUMBER_WORDS[number] if rng.random() < 0.3 else str(number)
    question = rng.choice(templates).format(n=written, a=ADJECTIVES[place], p=place)
    flat = ", ".join(f"{c.name} - {c.capital}" for c in chosen)
    return Turn(question if held else mend(rng, question), write_list(chosen), flat)


def countries_of_continent(rng: Random, held: bool) -> Turn:
    """Ask for a few countries of one continent."""
    place = rng.choice(CONTINENTS)
    number = rng.choice((2, 3, 3, 4))
    chosen = rng.sample([country for country in COUNTRIES if country.name in KNOWN[place]], number)
    templates = (
        ("Could you name {n} countries that lie in {p}?", "Which {n} countries are in {p}?")
        if held
        else ("List {n} countries in {p}.", "Name {n} countries in {p}.", "Give me {n} countries in {p}.",
              "Tell me {n} countries in {p}.", "Please list {n} countries of {p}.", "What are {n} countries in {p}?")
    )  # fmt: skip
    written = NUMBER_WORDS[number] if rng.random() < 0.3 else str(number)
    question = rng.choice(templates).format(n=written, p=place)
    names = [capitalized(country.name) for country in chosen]
    text = "\n".join(f"{i}. {name}" for i, name in enumerate(names, 1))
    return Turn(question if held else mend(rng, question), text, ", ".join(names))
