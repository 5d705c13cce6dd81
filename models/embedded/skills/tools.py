"""The tool choice: calculator or search engine, then the expression or the key words."""

from random import Random

from ..documents import END_OF_TEXT, Document, Piece, chat_turns
from ..facts.countries import COUNTRIES
from ..facts.outside import NOUNS, OUTSIDE, PLURALS, VERBS
from ..facts.words import (
    ANIMALS,
    BLAME,
    BOOKS,
    CITIES,
    COMPANIES,
    FOODS,
    PEOPLE,
    PRAISE,
    SPORTS,
    THINGS,
    TOPICS,
)  # fmt: skip
from .arithmetic import spelled
from .outside import coined

__all__ = ["choice", "expression", "key_words", "tool_document"]

SUMS = (
    ("What is {e}?", "{a} {s} {b}"), ("What is {e}?", "{a} {s} {b}"), ("How much is {e}?", "{a} {s} {b}"),
    ("Calculate {e}", "{a} {s} {b}"), ("Calculate {e}.", "{a} {s} {b}"), ("What's {e}?", "{a} {s} {b}"),
    ("Compute {e}", "{a} {s} {b}"), ("What does {e} equal?", "{a} {s} {b}"), ("{e}", "{a} {s} {b}"),
    ("{e} = ?", "{a} {s} {b}"), ("Solve {e}", "{a} {s} {b}"), ("How much does {e} make?", "{a} {s} {b}"),
    ("What is the result of {e}?", "{a} {s} {b}"), ("Can you calculate {e}?", "{a} {s} {b}"),
)  # fmt: skip
SUMS_HELD = (("Could you work out {e} for me?", "{a} {s} {b}"), ("What do you get for {e}?", "{a} {s} {b}"))

STORIES = (
    ("What is the sum of {a} and {b}?", "{a} + {b}"), ("Add {a} and {b}", "{a} + {b}"),
    ("What is the product of {a} and {b}?", "{a} * {b}"), ("Multiply {a} by {b}", "{a} * {b}"),
    ("Subtract {b} from {a}", "{a} - {b}"), ("Divide {a} by {b}", "{a} / {b}"),
    ("What is the difference between {a} and {b}?", "{a} - {b}"), ("What is {a} squared?", "{a} * {a}"),
    ("What is {a}% of {b}?", "{a} / 100 * {b}"), ("What is {a} percent of {b}?", "{a} / 100 * {b}"),
    ("What is half of {a}?", "{a} / 2"), ("What is the square root of {a}?", "sqrt({a})"),
    ("I have {a} {f} and buy {b} more. How many do I have?", "{a} + {b}"),
    ("I had {a} {f} and ate {b} of them. How many are left?", "{a} - {b}"),
    ("A {t} costs {a} dollars. How much do {b} of them cost?", "{a} * {b}"),
    ("If {a} people share {b} {f}, how many does each get?", "{b} / {a}"),
    ("There are {a} boxes with {b} {f} each. How many {f} are there?", "{a} * {b}"),
    ("A car drives {a} miles in {b} hours. How fast is it?", "{a} / {b}"),
    ("How many hours are in {a} days?", "{a} * 24"), ("How many minutes are in {a} hours?", "{a} * 60"),
    ("What is {a} plus {b} minus {c}?", "{a} + {b} - {c}"), ("What is {a} + {b} + {c}?", "{a} + {b} + {c}"),
    ("What is ({a} + {b}) * {c}?", "({a} + {b}) * {c}"), ("What is {a} * {b} + {c}?", "{a} * {b} + {c}"),
    ("How much is {a} times {b} times {c}?", "{a} * {b} * {c}"), ("What is the double of {a}?", "{a} * 2"),
)  # fmt: skip

SEARCHES = (
    ("What is the capital of {country}?", "capital of {country}"),
    ("What is the capital of {country}?", "capital of {country}"),
    ("What's the capital of {country}?", "capital of {country}"),
    ("Which city is the capital of {country}?", "capital of {country}"),
    ("What is the population of {country}?", "population of {country}"),
    ("How many people live in {city}?", "population of {city}"), ("Who is the president of {country}?",
                                                                  "president of {country}"),
    ("What is the currency of {country}?", "currency of {country}"), ("Where is {city}?", "{city} location"),
    ("What is the weather in {city}?", "weather in {city}"), ("What is the weather like in {city} today?",
                                                              "weather in {city} today"),
    ("Will it rain in {city} tomorrow?", "weather in {city} tomorrow"), ("How far is {city} from {city2}?",
                                                                         "distance from {city2} to {city}"),
    ("Who wrote {book}?", "{book} author"), ("Who is the author of {book}?", "{book} author"),
    ("Who directed {book}?", "{book} director"), ("When was {book} published?", "{book} publication date"),
    ("What is {book} about?", "{book} summary"), ("Who is {person}?", "{person}"), ("Who was {person}?", "{person}"),
    ("When was {person} born?", "{person} date of birth"), ("When did {person} die?", "{person} date of death"),
    ("Where was {person} born?", "{person} place of birth"), ("How old is {person}?", "{person} age"),
    ("What is {topic}?", "{topic}"), ("How does {topic} work?", "{topic}"), ("Explain {topic}", "{topic}"),
    ("Who invented {topic}?", "{topic} inventor"), ("What is the history of {topic}?", "history of {topic}"),
    ("Who founded {company}?", "{company} founder"), ("Who is the CEO of {company}?", "CEO of {company}"),
    ("What is the stock price of {company}?", "stock price of {company}"), ("Where is {company} based?",
                                                                            "{company} headquarters"),
    ("What is the latest news about {company}?", "latest news about {company}"), ("How do I cook {food}?",
                                                                                  "{food} recipe"),
    ("What is the recipe for {food}?", "recipe for {food}"), ("Where can I buy a {thing}?", "buy a {thing}"),
    ("How much does a {thing} cost?", "{thing} price"), ("What is the best {thing}?", "best {thing}"),
    ("How long does a {animal} live?", "{animal} lifespan"), ("What do {animal}s eat?", "{animal} food"),
    ("Who won the {sport} world cup in {year}?", "{sport} world cup {year} winner"),
    ("What are the rules of {sport}?", "rules of {sport}"),
    ("What happened in {year}?", "events of {year}"), ("Who won the Nobel Prize in {year}?",
                                                       "Nobel Prize {year} winner"),
    ("What is {word}?", "{word}"), ("What does {word} mean?", "{word} meaning"), ("Who is {word}?", "{word}"),
    ("Where is {word}?", "{word} location"), ("How tall is {word}?", "{word} height"), ("How old is {word}?",
                                                                                        "{word} age"),
    ("What is the height of {word}?", "height of {word}"), ("What is the {topicword} of {word}?",
                                                            "{topicword} of {word}"),
    ("What are the {topicword} of {word}?", "{topicword} of {word}"), ("What is the {topicword} of {book}?",
                                                                       "{topicword} of {book}"),
    ("What is the {topicword} of {word} {word2}?", "{topicword} of {word} {word2}"),
    ("Who is the {topicword} of {city}?", "{topicword} of {city}"),
    ("What was the {topicword} of {person}?", "{topicword} of {person}"), ("What is the {topicword} of {country}?",
                                                                           "{topicword} of {country}"),
    ("What is the {topicword} of the {topicword2}?", "{topicword} of the {topicword2}"), ("Who is {word} {word2}?",
                                                                                          "{word} {word2}"),
    ("Why is {word} {adjective}?", "why {word} is {adjective}"), ("Why is the {topicword} {adjective}?",
                                                                  "why the {topicword} is {adjective}"),
    ("Where does {word} live?", "{word} home"), ("How much does a {word} weigh?", "{word} weight"),
    ("When did {word} {word2} {do}?", "when {word} {word2} {do}"),
    ("Could you tell me the {topicword} of {word}?", "{topicword} of {word}"),
    ("Can you find the {topicword} of {city}?", "{topicword} of {city}"),
    ("Why is {topic} {adjective}?", "why {topic} is {adjective}"), ("How heavy is a {animal}?", "{animal} weight"),
    ("How much does a {topicword} weigh?", "{topicword} weight"),
    ("How much does the {topicword} cost?", "{topicword} price"), ("Tell me about {word}", "{word}"),
    ("Tell me about {person}", "{person}"), ("Find a hotel in {city}", "hotel in {city}"),
    ("What is the best restaurant in {city}?", "best restaurant in {city}"), ("What time is it in {city}?",
                                                                              "time in {city}"),
    ("What is the longest river in {country}?", "longest river in {country}"),
    ("What is the highest mountain in {country}?", "highest mountain in {country}"),
    ("Who painted {word}?", "{word} painter"), ("Who sang {word}?", "{word} singer"), ("When was {company} founded?",
                                                                                       "{company} founding date"),
)  # fmt: skip
SEARCHES_HELD = (
    ("Could you tell me the capital of {country}?", "{country}"), ("What is the area of {country}?", "{country}"),
    ("Who is the mayor of {city}?", "{city}"), ("Where did {person} live?", "{person}"),
    ("What is the market share of {company}?", "{company}"), ("Why is {topic} important?", "{topic}"),
    ("What is the plot of {book}?", "{book}"), ("How much does a {animal} weigh?", "{animal}"),
    ("What is the history of {word}?", "{word}"), ("What are the symptoms of {word}?", "{word}"),
)  # fmt: skip
OF_WHAT = (
    *NOUNS,
    *PLURALS,
    "meaning",
    "causes",
    "effects",
    "members",
    "rules",
    "parts",
    "plot",
    "value",
    "weight",
    "history",
    "size",
    "price",
    "color",
    "age",
    "area",
    "origin",
    "purpose",
    "length",
    "speed",
    "temperature",
)


def number(rng: Random) -> int:
    """Draw a number of one to four digits, the short ones more often."""
    return rng.randint(0, 10 ** rng.choice((1, 1, 2, 2, 2, 3, 4)))


def expression(rng: Random, held: bool) -> tuple[str, str]:
    """Return a question for the calculator and the expression to type."""
    a, b, c = number(rng), number(rng), number(rng)
    if not held and rng.random() < 0.4:
        question, typed = rng.choice(STORIES)
        slots = {"f": rng.choice(FOODS), "t": rng.choice(THINGS)}
        return question.format(a=a, b=b, c=c, **slots), typed.format(a=a, b=b, c=c)
    question, typed = rng.choice(SUMS_HELD if held else SUMS)
    sign, words = rng.choice((("*", ("*", "*", "times", "x", "multiplied by")), ("+", ("+", "+", "plus")),
                              ("-", ("-", "-", "minus")), ("/", ("/", "/", "divided by"))))  # fmt: skip
    word = rng.choice(words)
    if not held and a < 100 and b < 100 and len(word) > 2 and rng.random() < 0.15:
        shown = f"{spelled(a)} {word} {spelled(b)}"
    else:
        space = "" if len(word) == 1 and rng.random() < 0.15 else " "
        shown = f"{a}{space}{word}{space}{b}"
    return question.format(e=shown), typed.format(a=a, s=sign, b=b)


def key_words(rng: Random, held: bool) -> tuple[str, str]:
    """Return a question for the search engine and its key words (if held: what they must contain)."""
    if not held and rng.random() < 0.12:
        question = rng.choice(OUTSIDE)
        return question, question[:1].lower() + question[1:].rstrip("?.")
    question, words = rng.choice(SEARCHES_HELD if held else SEARCHES)
    slots = {
        "country": rng.choice(COUNTRIES).name, "city": rng.choice((rng.choice(CITIES), rng.choice(COUNTRIES).capital)),
        "city2": rng.choice(CITIES), "book": rng.choice(BOOKS), "person": rng.choice(PEOPLE),
        "topic": rng.choice(TOPICS),
        "company": rng.choice(COMPANIES), "food": rng.choice(FOODS), "thing": rng.choice(THINGS),
        "animal": rng.choice(ANIMALS), "sport": rng.choice(SPORTS), "year": str(rng.randint(1900, 2030)),
        "word": coined(rng).capitalize() if rng.random() < 0.6 else coined(rng), "word2": coined(rng).capitalize(),
        "topicword": rng.choice(OF_WHAT),
        "topicword2": rng.choice(NOUNS), "adjective": rng.choice((*PRAISE, *BLAME)), "do": rng.choice(VERBS),
    }  # fmt: skip
    return question.format(**slots), words.format(**slots)


def tool_document(rng: Random, held: bool, *, calculator: bool | None = None, step: str = "all") -> Document:
    """Write the tool program, as plain text or through assistant turns.

    `step` "tool" stops after the choice (for evaluation); "all" goes on to the expression or the key words.
    """
    if calculator is None:
        calculator = rng.random() < 0.5
    question, typed = expression(rng, held) if calculator else key_words(rng, held)
    if not held and rng.random() < 0.1:
        question = question.lower()
    tool = "calculator" if calculator else "search engine"
    lead = "The math expression is" if calculator else "The key word to search is"
    opening = f"To answer this question: {question}. I need to use a "
    if rng.random() < 0.5:
        document = [Piece(opening), Piece(tool, said=True)]
        if step == "tool":
            return document
        document += [Piece(f". {lead}"), Piece(" " + typed, said=True), Piece(END_OF_TEXT, said=True)]
        return document
    first = [Piece(opening), Piece(tool, said=True)]
    if step == "tool":
        return chat_turns(rng, [("assistant", first)])[:2]
    return chat_turns(rng, [
        ("assistant", [*first, Piece(". ")]),
        ("assistant", [Piece(f"{lead}: "), Piece(typed, said=True)]),
    ])  # fmt: skip


def choice(rng: Random, held: bool) -> Document:
    """Write only the choice, for evaluation."""
    return tool_document(rng, held, step="tool")
