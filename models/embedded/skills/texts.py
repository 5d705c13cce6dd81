"""Work on a given text: summaries, sentiment, extraction into JSON, and joining two statements."""

from random import Random

from ..documents import END_OF_TEXT, Document, Piece, Turn, chat_turns
from ..facts.countries import ATTRACTIONS, COUNTRIES
from ..facts.words import ANIMALS, BLAME, CITIES, COLORS, FOODS, HELD_NAMES, JOBS, NAMES, PRAISE, SPORTS, THINGS
from .capitals import capitalized
from .outside import coined

__all__ = ["extraction", "join", "one_or_other", "person_name", "sentiment", "summary"]


def person_name(rng: Random, held: bool) -> str:
    """Return a first name: one of the kept-out ones if held; now and then one made up."""
    if held:
        return rng.choice(HELD_NAMES)
    return coined(rng).capitalize() if rng.random() < 0.6 else rng.choice(NAMES)


def city_name(rng: Random) -> str:
    """Return a city."""
    draw = rng.random()
    if draw < 0.25:
        return coined(rng).capitalize()
    return rng.choice(CITIES) if draw < 0.5 else rng.choice(COUNTRIES).capital.rstrip(".")


def with_article(noun: str) -> str:
    """Put 'a' or 'an' before a noun."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _story(rng: Random, held: bool) -> tuple[str, str]:
    """Return a short text and its summary."""
    kind = rng.randrange(5)
    if kind == 4:
        return _scene(rng, held)
    if kind == 0:
        name, job, city = person_name(rng, held), rng.choice(JOBS), city_name(rng)
        thing, animal = rng.choice(SPORTS), rng.choice(ANIMALS)
        sentences = [f"{name} is {with_article(job)}.", f"{name} lives in {city}."]
        extra = [
            f"Every weekend {name} plays {thing}.",
            f"At home {name} has {with_article(animal)}.",
            f"{name} likes {rng.choice(FOODS)}.",
            f"The favorite color of {name} is {rng.choice(COLORS)}.",
        ]
        sentences += rng.sample(extra, rng.randint(1, 3))
        return " ".join(sentences), f"{name} is {with_article(job)} who lives in {city}."
    if kind == 1:
        city = rng.choice(list(ATTRACTIONS))
        country = next(c for c in COUNTRIES if c.capital == city)
        first, second = ATTRACTIONS[city]
        text = (
            f"{city} is the capital of {country.name}. Many people visit {first}. Others like {second} more. "
            f"The city is full of life in every season."
        )
        return text, f"{city} is the capital of {country.name}, known for {first} and {second}."
    if kind == 2:
        thing, good, bad = rng.choice(THINGS), rng.choice(PRAISE), rng.choice(BLAME)
        shop = coined(rng).capitalize()
        text = (
            f"I bought a {thing} from {shop} last month. At first it was {good}. After a week it became {bad}. "
            f"I wrote to {shop}, but nobody answered."
        )
        return text, f"The {thing} from {shop} was {good} at first but became {bad}."
    name, other = person_name(rng, held), person_name(rng, held)
    thing, city = rng.choice(THINGS), city_name(rng)
    text = (
        f"Yesterday {name} met {other} in {city}. They talked about a {thing} for an hour. "
        f"In the end {name} gave the {thing} to {other}. Both went home happy."
    )
    return text, f"{name} met {other} in {city} and gave {other} the {thing}."  # fmt: skip


def _scene(rng: Random, held: bool) -> tuple[str, str]:
    """Return a text of loose sentences and, as its summary, the first of them."""

    def who() -> str:
        return rng.choice(
            (f"The {rng.choice(ANIMALS)}", f"The {rng.choice(JOBS)}", person_name(rng, held), f"The {coined(rng)}")
        )

    def sentence() -> str:
        thing, adjective = rng.choice((*THINGS, *FOODS, coined(rng))), rng.choice((*PRAISE, *BLAME))
        deed = rng.choice(("sat on", "saw", "found", "lost", "liked", "bought", "opened", "painted", "ate", "made",
                           "slept on",
                           "carried", "watched", "broke", "wanted", "ran to", "looked at", "waited for"))  # fmt: skip
        return rng.choice((
            f"{who()} {deed} the {thing}.", f"{who()} was {adjective}.", f"It was {with_article(adjective)} day.",
            f"The {thing} was {adjective}.", f"{who()} {deed} the {thing} in {city_name(rng)}.",
            f"Then {who()} {deed} the {thing}.",
            f"Nobody {deed} the {thing}.", f"{who()} and {who()} {deed} the {thing}.",
        ))  # fmt: skip

    subject = who()
    deed = rng.choice(("sat on", "found", "bought", "lost", "painted", "opened", "saw"))
    first = f"{subject} {deed} the {rng.choice((*THINGS, coined(rng)))}."
    if rng.random() < 0.5:
        first = f"{first[:-1]} in {city_name(rng)}."
    return " ".join([first, *(sentence() for _ in range(rng.randint(1, 4)))]), first


def summary(rng: Random, held: bool) -> Document:
    """Ask for the summary of a short text."""
    text, said = _story(rng, held)
    if rng.random() < 0.6:
        asks = (
            ("Please sum up this text: {t}", "What is this text about? {t}")
            if held
            else ("Please summarize: {t}", "What does this text say? {t}", "Tell me what this text is about: {t}",
                  "Sum this up: {t}",
                  "Please sum this up: {t}", "In one sentence, what is this about? {t}", "What is the text about?\n{t}",
                  "Please give me a summary of this text: {t}", "What happens in this text? {t}",
                  "Summarize this text: {t}", "Summarize the following text:\n{t}", "Summarize: {t}",
                  "Please summarize this text in one sentence: {t}", "Summarize this in one sentence: {t}",
                  "{t}\n\nSummarize the text above.", "Write a summary of this text:\n\n{t}", "Sum up this text: {t}",
                  "Give me a short summary: {t}", "Can you summarize this? {t}")
        )  # fmt: skip
        return chat_turns(
            rng, [("user", [Piece(rng.choice(asks).format(t=text))]), ("assistant", [Piece(said, said=True)])]
        )
    opening, lead = rng.choice((
        ("Text: {t}\nSummary:", " "), ("Text: {t}\nSummary: ", ""), ("{t}\n\nIn summary,", " "),
        ("{t}\nIn one sentence:", " "),
        ("Summarize the text.\n\nText: {t}\n\nSummary:", " "),
    ))  # fmt: skip
    return [Piece(opening.format(t=text)), Piece(lead + said, said=True), Piece(END_OF_TEXT, said=True)]


def _review(rng: Random) -> tuple[str, str]:
    """Return a review and its sentiment."""
    good = rng.random() < 0.5
    word, other = (rng.choice(PRAISE if good else BLAME) for _ in range(2))
    against = rng.choice(BLAME if good else PRAISE)
    thing, part = rng.choice(THINGS), rng.choice(("service", "staff", "price", "quality", "sound", "design", "team"))
    love = rng.choice(("loved", "enjoyed", "liked", "adored") if good else ("hated", "disliked", "regretted"))
    forms = [
        f"The {thing} was {word}.", f"I {love} this {thing}.", f"What {with_article(word)} {thing}!",
        f"This {thing} is {word}.",
        f"The {part} was {word} and the {thing} was {other}.", f"I {love} the {thing}, it was {word}.",
        f"The {thing} was not {against}, it was {word}.", f"My {thing} is really {word}.",
        f"Such {with_article(word)} {thing}.",
        f"A very {word} {thing} with {with_article(other)} {part}.", f"The {part} of this {thing} is {word}.",
        "I will come back." if good else "I will never come back.",
        "I want my money back." if not good else "It was worth every cent.",
        f"Best {thing} ever!" if good else f"Worst {thing} ever!",
        f"I would {'' if good else 'not '}recommend this {thing}.",
    ]  # fmt: skip
    text = rng.choice(forms)
    if rng.random() < 0.25:
        text += " " + rng.choice(forms)
    return text, "positive" if good else "negative"


def sentiment(rng: Random, held: bool) -> Document:
    """Ask whether a review is positive or negative."""
    text, said = _review(rng)
    if rng.random() < 0.55:
        asks = (
            ("How does this review sound, positive or negative? {t}", "Decide if this is positive or negative: {t}")
            if held
            else ("Is this review positive or negative? {t}", "Classify the sentiment as positive or negative: {t}",
                  "What is the sentiment of this sentence? {t}", "Sentiment of this review: {t}",
                  "Classify this text as positive or negative: {t}", "Positive or negative? {t}",
                  'Is the sentiment of "{t}" positive or negative?', "What is the sentiment? {t}",
                  "Is the following text positive or negative?\n{t}", "Classify the sentiment of this review: {t}",
                  "Tell me if this is positive or negative: {t}")
        )  # fmt: skip
        opening = rng.choice(("", "", "", "Sentiment: "))
        given = Piece(rng.choice(asks).format(t=text))
        return chat_turns(rng, [("user", [given]), ("assistant", [Piece(opening), Piece(said, said=True)])])
    head = rng.choice(("", "", "Classify the sentiment of each review as positive or negative.\n\n"))
    named, label = rng.choice(
        (("Review", "Sentiment"), ("Text", "Sentiment"), ("Review", "Label"), ("Tweet", "Sentiment"))
    )
    shots = ""
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        shot, answer = _review(rng)
        shots += f"{named}: {shot}\n{label}: {answer}\n" + rng.choice(("", "\n"))
    space = rng.choice(("", "", " "))
    return [
        Piece(f"{head}{shots}{named}: {text}\n{label}:{space}"),
        Piece(said if space else " " + said, said=True),
        Piece(END_OF_TEXT, said=True),
    ]


def extraction(rng: Random, held: bool) -> Document:
    """Ask for the facts of a sentence as JSON."""
    name, age, city, job = person_name(rng, held), rng.randint(5, 95), city_name(rng), rng.choice(JOBS)
    sentences = [
        (f"{name} is {age} years old and lives in {city}.", ("name", "age", "city")),
        (f"My name is {name}, I am {age} years old and I live in {city}.", ("name", "age", "city")),
        (f"{name} from {city} is {age}.", ("name", "age", "city")),
        (f"In {city} lives {name}, who is {age} years old.", ("name", "age", "city")),
        (f"I am {name}. I live in {city} and I am {age}.", ("name", "age", "city")),
        (f"{name}, {age}, lives in {city}.", ("name", "age", "city")),
        (f"{name} ({age}) moved to {city} last year.", ("name", "age", "city")),
        (f"{name}, aged {age}, works in {city} as {with_article(job)}.", ("name", "age", "city", "job")),
        (f"{name} is {with_article(job)} from {city} and is {age} years old.", ("name", "age", "city", "job")),
        (f"{age}-year-old {name} works as {with_article(job)} in {city}.", ("name", "age", "city", "job")),
    ]
    text, known = rng.choice(sentences)
    wanted = ["name", "age", "city"]
    draw = rng.random()
    if draw < 0.35:
        wanted = rng.sample(known, rng.randint(1, len(known)))
    values = {"name": f'"{name}"', "age": str(age), "city": f'"{city}"', "job": f'"{job}"'}
    said = "{" + ", ".join(f'"{key}": {values[key]}' for key in wanted) + "}"
    if len(wanted) == 1:
        keys = wanted[0]
    else:
        keys = ", ".join(wanted[:-1]) + " and " + wanted[-1]
    asks = (
        ("Give me the {k} as JSON. {t}", "Please return the {k} in this text as JSON: {t}")
        if held
        else ("Give me the {k} of this text as JSON: {t}", "Please return the {k} as JSON. {t}",
              "Give me {k} in JSON: {t}",
              "Please extract the {k} of this text as JSON: {t}", "What are the {k} here? Answer as JSON. {t}",
              "I need the {k} as JSON. {t}", "Extract the {k} as JSON: {t}",
              "Extract the {k} from this sentence as JSON: {t}",
              "Extract {k} as JSON.\n{t}", "Return the {k} as JSON: {t}", "{t}\nExtract the {k} as JSON.",
              "Write the {k} as JSON: {t}", "Find the {k} in this text and answer in JSON: {t}",
              "Turn this into JSON with {k}: {t}")
    )  # fmt: skip
    ask = rng.choice(asks).format(k=keys, t=text)
    if rng.random() < 0.7:
        return chat_turns(rng, [("user", [Piece(ask)]), ("assistant", [Piece(said, said=True)])])
    opening = rng.choice(("\nJSON:", "\nJSON: ", "\n"))
    return [
        Piece(ask + opening),
        Piece(said if opening != "\nJSON:" else " " + said, said=True),
        Piece(END_OF_TEXT, said=True),
    ]


def join(rng: Random, held: bool) -> Document:
    """Join two statements, as the branches of a fork end in one."""
    first, second = (_statement(rng, held) for _ in range(2))
    head, label = rng.choice((
        ("Here are two facts.\n", "Fact"), ("", "Fact"), ("", "Branch"), ("Here are two answers:\n", "Answer"), ("",
                                                                                                                 "Part"),
        ("", "Statement"),
    ))  # fmt: skip
    if held:
        head, label = rng.choice((("These are two facts:\n", "Fact"), ("Two statements:\n", "Statement")))
    body = f"{head}{label} 1: {capitalized(first)}.\n{label} 2: {capitalized(second)}.\n"
    opening, lead = rng.choice(
        (("In summary", ", "), ("In summary,", " "), ("Summary:", " "), ("Together:", " "), ("Summary: ", ""))
    )
    text = f"{first}, and {second}."
    said = lead + (text if lead == ", " or opening.endswith(",") else capitalized(text))
    if rng.random() < 0.6:
        return [Piece(body + opening), Piece(said, said=True), Piece(END_OF_TEXT, said=True)]
    ask = rng.choice(("Summarize: ", "Join these into one sentence: ", "Combine these: "))
    return chat_turns(
        rng, [("user", [Piece(f"{ask}\n{body.rstrip()}")]), ("assistant", [Piece(capitalized(text), said=True)])]
    )


def _statement(rng: Random, held: bool) -> str:
    """Return a statement, its first letter as inside a sentence."""
    kind = rng.randrange(4)
    if kind == 0:
        country = rng.choice(COUNTRIES)
        return f"the capital of {country.name} is {country.capital.rstrip('.')}"
    name = person_name(rng, held)
    if kind == 1:
        return f"{name} likes {rng.choice(FOODS)}"
    if kind == 2:
        return f"{name} lives in {city_name(rng)}"
    return f"{name} is {with_article(rng.choice(JOBS))}"


def one_or_other(rng: Random, held: bool) -> Turn:
    """Ask of a thing which of a few kinds it is."""
    kinds: list[tuple[str, tuple[str, ...]]] = [
        ("animal", ANIMALS),
        ("color", COLORS),
        ("food", FOODS),
        ("sport", SPORTS),
    ]
    kind, members = rng.choice(kinds)
    other = rng.choice([name for name, _ in kinds if name != kind])
    word = rng.choice(members)
    pair = [kind, other]
    rng.shuffle(pair)
    form = (
        "Which is it, {a} or {b}? {w}"
        if held
        else rng.choice(
            ("Is {w} {an} or {bn}?", "{W}: {a} or {b}?", "Classify as {a} or {b}: {w}", "What is {w}, {an} or {bn}?")
        )
    )
    question = form.format(
        w=word, W=word.capitalize(), a=pair[0], b=pair[1], an=with_article(pair[0]), bn=with_article(pair[1])
    )
    return Turn(question, kind, kind)
