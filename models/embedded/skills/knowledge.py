"""Superlatives, planets, chemical elements, the calendar and a few well-known addresses."""

from random import Random

from ..documents import Turn, mend
from ..facts.nature import ADDRESSES, DAYS, ELEMENTS, MONTHS, ORDINALS, PLANETS, SUPERLATIVES
from .arithmetic import spelled
from .capitals import capitalized

__all__ = ["address", "calendar", "counting", "element", "planet", "superlative"]

ASK = (
    "What is the {s}?", "What is the {s}?", "What's the {s}?", "Which is the {s}?", "Name the {s}.",
    "Tell me the {s}.", "Can you tell me what the {s} is?", "Do you know the {s}?", "The {s}?",
    "Please name the {s}.", "I want to know the {s}.", "Tell me what the {s} is.", "What is the name of the {s}?",
    "Can you name the {s}?", "I forgot the {s}. What is it?", "Could you tell me the {s}?",
)  # fmt: skip
ASK_HELD = (
    "What do we call the {s}?", "Would you tell me what the {s} is?", "I need the name of the {s}.",
    "Any idea what the {s} is?",
)  # fmt: skip


def ask(rng: Random, held: bool, subject: str) -> str:
    """Ask for 'the <subject>' in one of many ways."""
    question = rng.choice(ASK_HELD if held else ASK).format(s=subject)
    return question if held else mend(rng, question)


def superlative(rng: Random, held: bool) -> Turn:
    """Ask for the longest, highest or largest of a kind."""
    fact = rng.choice(SUPERLATIVES)
    subject = rng.choice((fact.subject, fact.subject, *fact.others))
    return Turn(ask(rng, held, subject), f"The {subject} is {fact.answer}.", capitalized(fact.answer))


def planet(rng: Random, held: bool) -> Turn:
    """Ask for planets by their order from the Sun."""
    kind = rng.randrange(5)
    at = rng.randrange(len(PLANETS))
    if kind == 0:
        templates = (
            ("Can you give me the planets, starting at the Sun?", "Write down all planets in order.")
            if held
            else ("List the planets in order.", "Name the planets.", "What are the planets of the solar system?",
                  "List the planets of the solar system.", "Name all planets in order from the Sun.",
                  "What are the planets in order?", "Which planets are there?", "Give me all planets.",
                  "List the eight planets.",
                  "Tell me the planets in order.", "Give me a list of the planets.", "Write the planets in order.")
        )  # fmt: skip
        names = ", ".join(PLANETS)
        return Turn(_mended(rng, held, templates), names, names)
    if kind == 1:
        if not held and rng.random() < 0.4:
            numeral = f"{at + 1}{('st', 'nd', 'rd')[at] if at < 3 else 'th'}"
            subject = rng.choice((f"{ORDINALS[at]} planet", f"{numeral} planet", f"{numeral} planet from the Sun"))
            return Turn(ask(rng, held, subject), f"The {subject} is {PLANETS[at]}.", PLANETS[at])
        subject = f"{ORDINALS[at]} planet from the Sun"
        return Turn(ask(rng, held, subject), f"The {subject} is {PLANETS[at]}.", PLANETS[at])
    if kind == 4:
        templates = (
            ("Do you know how many planets there are?",)
            if held
            else ("How many planets are there?", "How many planets are in the solar system?",
                  "How many planets does the solar system have?", "What is the number of planets?")
        )  # fmt: skip
        return Turn(_mended(rng, held, templates), "There are 8 planets.", "8")
    step = 1 if kind == 2 else -1
    at = at % 7 + (0 if step == 1 else 1)
    return _neighbour(rng, held, "planet", PLANETS[at], PLANETS[at + step], step)


def _neighbour(rng: Random, held: bool, kind: str, known: str, sought: str, step: int) -> Turn:
    """Ask what comes after (`step` 1) or before (-1) a member of a series."""
    side = "after" if step == 1 else "before"
    templates = (
        ("Can you tell me which {k} comes {s} {x}?", "Name the {k} that follows {x}." if step == 1
         else "Name the {k} that precedes {x}.")
        if held
        else ("Which {k} comes {s} {x}?", "What {k} comes {s} {x}?", "What comes {s} {x}?",
              "Which {k} is {s} {x}?", "What is the {k} {s} {x}?", "Name the {k} {s} {x}.",
              "Tell me the {k} that comes {s} {x}.", "The {k} {s} {x}?",
              "Which {k} follows {x}?" if step == 1 else "Which {k} precedes {x}?",
              "Do you know which {k} comes {s} {x}?", "Please tell me the {k} {s} {x}.",
              "Tell me the {k} that follows {x}." if step == 1 else "Tell me the {k} that precedes {x}.",
              "What follows {x}?" if step == 1 else "What precedes {x}?")
    )  # fmt: skip
    question = rng.choice(templates).format(k=kind, s=side, x=known)
    return Turn(question if held else mend(rng, question), f"{sought} comes {side} {known}.", sought)


def _mended(rng: Random, held: bool, templates: tuple[str, ...], **slots: str) -> str:
    """Fill one of the templates, roughened in training."""
    question = rng.choice(templates).format(**slots)
    return question if held else mend(rng, question)


def calendar(rng: Random, held: bool) -> Turn:
    """Ask about days and months."""
    kind = rng.randrange(8)
    if kind == 0:
        day, step = rng.randrange(7), rng.choice((1, -1))
        return _neighbour(rng, held, "day", DAYS[day], DAYS[(day + step) % 7], step)
    names = [name for name, _ in MONTHS]
    if kind == 1:
        month, step = rng.randrange(12), rng.choice((1, -1))
        return _neighbour(rng, held, "month", names[month], names[(month + step) % 12], step)
    if kind == 2:
        at = rng.randrange(12)
        subject = f"{ORDINALS[at]} month of the year"
        return Turn(ask(rng, held, subject), f"The {subject} is {names[at]}.", names[at])
    if kind == 3:
        at = rng.randrange(7)
        subject = f"{ORDINALS[at]} day of the week"
        return Turn(ask(rng, held, subject), f"The {subject} is {DAYS[at]}.", DAYS[at])
    if kind in (4, 5):
        name, days = rng.choice(MONTHS)
        templates = (
            ("Can you tell me how many days {m} has?", "What is the number of days in {m}?")
            if held
            else ("How many days are in {m}?", "How many days does {m} have?", "How long is {m}?",
                  "How many days are there in {m}?", "{m} has how many days?", "Tell me how many days are in {m}.",
                  "How many days has {m}?", "Days in {m}?", "What number of days does {m} have?",
                  "I want to know how many days {m} has.", "Count the days of {m}.",
                  "How many days does the month {m} have?")
        )  # fmt: skip
        return Turn(_mended(rng, held, templates, m=name), f"{name} has {days} days.", str(days))
    if kind == 6:
        unit, amount, whole = rng.choice((
            ("days", 7, "a week"), ("months", 12, "a year"), ("days", 365, "a year"), ("hours", 24, "a day"),
            ("minutes", 60, "an hour"), ("seconds", 60, "a minute"), ("weeks", 52, "a year"),
            ("days", 366, "a leap year"),
        ))  # fmt: skip
        templates = (
            ("Can you tell me how many {u} {w} has?",)
            if held
            else ("How many {u} are in {w}?", "How many {u} does {w} have?", "How many {u} are there in {w}?",
                  "{W} has how many {u}?", "Tell me how many {u} are in {w}.", "Do you know how many {u} {w} has?",
                  "What is the number of {u} in {w}?")
        )  # fmt: skip
        question = _mended(rng, held, templates, u=unit, w=whole, W=capitalized(whole))
        return Turn(question, f"There are {amount} {unit} in {whole}.", str(amount))
    what, listed = rng.choice(
        (("days of the week", DAYS), ("months of the year", tuple(names)), ("months", tuple(names)))
    )
    templates = (
        ("Can you give me all {w}?", "Write down the {w} in order.")
        if held
        else ("List the {w}.", "Name the {w}.", "What are the {w}?", "Tell me the {w}.", "List all {w}.",
              "Name all {w}.", "What are the {w} in order?", "Write the {w}.", "Give me the {w}.",
              "Tell me all {w}.", "List the {w} in order.")
    )  # fmt: skip
    text = ", ".join(listed)
    return Turn(_mended(rng, held, templates, w=what), text, text)


def element(rng: Random, held: bool) -> Turn:
    """Ask for an element's symbol, its name or its atomic number."""
    name, symbol, number = rng.choice(ELEMENTS)
    kind = rng.randrange(5)
    if kind < 3:
        templates = (
            ("Which chemical symbol does {n} have?", "Can you tell me the chemical symbol of {n}?",
             "How do chemists write {n}?")
            if held
            else ("What is the chemical symbol for {n}?", "What is the chemical symbol of {n}?",
                  "What is the symbol for {n}?", "Chemical symbol of {n}?", "Tell me the symbol of {n}.",
                  "What is {n}'s chemical symbol?", "Which symbol stands for {n}?", "Give me the symbol for {n}.",
                  "Name the chemical symbol of {n}.", "What symbol does {n} have?", "How is {n} written in chemistry?",
                  "What is the element symbol for {n}?", "Do you know the chemical symbol for {n}?",
                  "How is {n} abbreviated?", "What do chemists call {n} for short?", "How do I write {n} as a symbol?",
                  "What does a chemist write for {n}?", "Which letters stand for {n}?", "Chemical symbol for {n}?",
                  "How do you write {n} in chemistry?", "What is {n} in the periodic table?",
                  "Could you tell me the chemical symbol for {n}?", "How does the periodic table write {n}?")
        )  # fmt: skip
        question = _mended(rng, held, templates, n=name)
        return Turn(question, f"The chemical symbol for {name} is {symbol}.", symbol)
    if kind == 3:
        templates = (
            ("Can you tell me which element {s} stands for?",)
            if held
            else ("Which element has the symbol {s}?", "What element is {s}?",
                  "What does the chemical symbol {s} mean?",
                  "{s} is the symbol of which element?", "Which element is {s}?", "What element has the symbol {s}?",
                  "Name the element with the symbol {s}.", "Which element does {s} stand for?",
                  "Tell me which element {s} is.",
                  "What does {s} stand for in chemistry?", "Do you know which element {s} is?",
                  "{s} stands for which element?",
                  "Could you tell me which element has the symbol {s}?", "Do you know what {s} stands for?",
                  "The chemical symbol {s} stands for what?")
        )  # fmt: skip
        return Turn(rng.choice(templates).format(s=symbol), f"{symbol} is the symbol for {name}.", capitalized(name))
    templates = (
        ("Can you tell me the atomic number of {n}?",)
        if held
        else ("What is the atomic number of {n}?", "Which atomic number does {n} have?", "Atomic number of {n}?",
              "Tell me the atomic number of {n}.", "What atomic number has {n}?")
    )  # fmt: skip
    question = _mended(rng, held, templates, n=name)
    return Turn(question, f"The atomic number of {name} is {number}.", str(number))


def counting(rng: Random, held: bool) -> Turn:
    """Ask to count."""
    top = rng.randint(3, 20)
    templates = (
        ("Could you count to {n}?",)
        if held
        else (
            "Count to {n}.",
            "Count from 1 to {n}.",
            "Please count to {n}.",
            "Can you count to {n}?",
            "Count up to {n}.",
        )
    )
    text = ", ".join(str(number) for number in range(1, top + 1))
    written = spelled(top) if rng.random() < 0.4 else str(top)
    return Turn(_mended(rng, held, templates, n=written), text, text)


def address(rng: Random, held: bool) -> Turn:
    """Ask for a well-known IP address; the answer is the bare address, so that a regex can hold it."""
    owner, number = rng.choice(tuple(ADDRESSES.items()))
    templates = (
        ("Can you tell me the IP address of {o}?", "Which IP address belongs to {o}?", "I need the IP of {o}.")
        if held
        else ("What is the IP address of {o}?", "What is the IP address of {o}?", "What's the IP address of {o}?",
              "Tell me the IP address of {o}.", "Which IP address does {o} have?", "IP address of {o}?",
              "What is the IP of {o}?", "Give me the IP address of {o}.", "What IP address has {o}?",
              "What is the address of {o}?", "Name the IP address of {o}.", "Do you know the IP address of {o}?")
    )  # fmt: skip
    return Turn(_mended(rng, held, templates, o=owner), number, number)
