"""What was told or asked before in the same chat: memories and echoes."""

from random import Random
from typing import NamedTuple

from ..documents import Turn
from ..facts.words import ANIMALS, COLORS, FOODS, SPORTS
from .outside import UNKNOWN
from .texts import city_name, person_name

__all__ = ["echo", "memory", "unknown_memory"]


class Fact(NamedTuple):
    """A fact about the user: how it is told, asked for and answered; `held` are kept-out ways to tell and to ask."""

    says: tuple[str, ...]
    asks: tuple[str, ...]
    held: tuple[tuple[str, ...], tuple[str, ...]]
    answer: str
    thanks: tuple[str, str] = ("I will remember that.", "I will remember that.")


NAME = Fact(
    ("My name is {x}, nice to meet you.", "My name is {x} and I have a question.", "{x} is my name.",
     "My name is {x}, as you know.", "Good morning, my name is {x}.", "Good evening, I am {x}.", "I am called {x}.",
     "Hello there, my name is {x}.", "My name is {x}.", "I am {x}.", "Hi, I am {x}.", "Hello, my name is {x}.",
     "My name is {x}!", "I'm {x}.", "Call me {x}.", "Please call me {x}.", "You can call me {x}.",
     "Hi! My name is {x}."),
    ("What is my name?", "What's my name?", "Do you know my name?", "Who am I?", "Do you remember my name?",
     "What am I called?", "Tell me my name.", "Say my name.", "Could you tell me my name?", "Now what is my name?",
     "Please tell me my name.", "So who am I?", "And who am I?", "And what is my name?", "So tell me my name.",
     "So do you know my name?", "Now tell me my name.", "Well, what is my name?"),
    (("Good day, my name is {x}.", "My name is {x}, by the way."), ("Can you tell me my name?", "So what is my name?")),
    "Your name is {x}.",
    ("Hello, {x}! How can I help you?", "Hello, {x}!"),
)  # fmt: skip
HOME = Fact(
    ("Now I live in {x}.", "I live in {x} at the moment.", "I live in {x} right now.", "I live in {x} again.",
     "I live in {x} today.", "I live in {x} for now.", "I live in {x} nowadays.", "I live in {x} currently.",
     "I have lived in {x} until now.", "These days I live in {x}.", "I live in {x} again now.",
     "I live in {x} these days.", "I live in {x} with my family.", "{x} is where I live.",
     "I live in {x}, as you know.", "I live near the park in {x}.", "I live here in {x} and like it.",
     "I live in {x}!", "I live in {x}.", "My home is in {x}.", "I am living in {x}."),
    ("Where do I live?", "In which city do I live?", "Do you know my city?", "Do you remember where I live?",
     "What is my city?", "So where do I live?", "And where do I live?", "Now where do I live?", "So what is my city?"),
    (("I live in {x} now.",), ("Do you know where I live?",)),
    "You live in {x}.",
)  # fmt: skip
AGE = Fact(
    ("Now I am {x} years old.", "I am {x} now.", "I am {x} years old now.", "I am {x} years old today.",
     "I am already {x} years old.", "I am just {x} years old.", "I am {x} years old.", "My age is {x}.",
     "I'm {x} years old."),
    ("How old am I?", "What is my age?", "Do you know my age?", "Do you remember how old I am?", "Tell me my age.",
     "So how old am I?", "And how old am I?", "So what is my age?", "Now tell me my age."),
    (("I am now {x} years old.",), ("Do you know how old I am?",)),
    "You are {x} years old.",
)  # fmt: skip
FAVORITE = Fact(
    ("My favorite {t} is {x}.", "My favourite {t} is {x}.", "I would say my favorite {t} is {x}.",
     "You should know that my favorite {t} is {x}.", "{X} is my favorite {t}."),
    ("What is my favorite {t}?", "What's my favorite {t}?", "Do you know my favorite {t}?",
     "Which {t} do I like best?", "Tell me my favorite {t}.", "Could you tell me my favorite {t}?",
     "Do you remember my favorite {t}?", "So what is my favorite {t}?", "And what is my favorite {t}?",
     "So which {t} do I like best?"),
    (("I think my favorite {t} is {x}.",), ("Can you tell me my favorite {t}?",)),
    "Your favorite {t} is {x}.",
)  # fmt: skip


def _draw(rng: Random, held: bool) -> tuple[Fact, str, str]:
    """Draw a kind of fact, what it is, and (of a favorite) the thing it is about."""
    kind = rng.randrange(6)
    if kind <= 1:
        return NAME, person_name(rng, held), ""
    if kind == 2:
        return HOME, city_name(rng), ""
    if kind == 3:
        return AGE, str(rng.randint(3, 99)), ""
    thing, words = rng.choice((("color", COLORS), ("animal", ANIMALS), ("food", FOODS), ("sport", SPORTS)))
    return FAVORITE, rng.choice(words), thing


def memory(rng: Random, held: bool) -> tuple[Turn, Turn]:
    """Tell something of oneself, and ask for it later."""
    fact, value, thing = _draw(rng, held)
    says, asks = fact.held if held else (fact.says, fact.asks)

    def fill(template: str) -> str:
        return template.format(x=value, X=value.capitalize(), t=thing)

    told = Turn(fill(rng.choice(says)), fill(fact.thanks[0]), fill(fact.thanks[1]))
    return told, Turn(fill(rng.choice(asks)), fill(fact.answer), value)


def unknown_memory(rng: Random) -> Turn:
    """Ask for something that was never told."""
    question = rng.choice(("What is my name?", "What's my name?", "Do you know my name?", "Where do I live?",
                           "How old am I?",
                           "What is my favorite color?", "What is my favorite food?", "Who am I?"))  # fmt: skip
    return Turn(question, UNKNOWN, UNKNOWN)


FIRST = ("What did I ask first?", "Which was my first question?", "Could you tell me my first question?",
         "What question did I start with?", "Repeat what I asked first.", "Do you remember my first question?",
         "Can you tell me what I asked first?", "What was my first question?", "What did I ask you first?",
         "What did I ask at first?",
         "Repeat my first question.", "Tell me my first question.", "What was the first thing I asked?")  # fmt: skip
FIRST_HELD = ("Which question did I ask first?", "Can you repeat my first question?")
LAST = ("What did I just ask?", "What did I ask a moment ago?", "Which question did I ask last?",
        "What did I say before?",
        "Could you repeat my question?", "Tell me what I asked before.", "What have I just asked you?",
        "Repeat what I asked last.", "What was my last question?", "Repeat my question.", "What did I ask before this?",
        "What was my question?", "Repeat my last question.")  # fmt: skip
LAST_HELD = ("Can you repeat my last question?", "What did I ask just now?")
AGAIN = ("Say that again.", "Repeat that.", "Please repeat your answer.", "Repeat your answer.",
         "What was your last answer?",
         "Can you say that again?", "Could you say it once more?", "Please repeat that.",
         "Can you repeat your answer?", "Pardon?", "Again, please.", "What did you say?")  # fmt: skip
AGAIN_HELD = ("Could you repeat that?", "Please say that again.")


def echo(rng: Random, held: bool, before: list[Turn]) -> Turn:
    """Ask for something said before in the same chat."""
    kind = rng.randrange(3)
    if kind == 0:
        ask, question = rng.choice(FIRST_HELD if held else FIRST), before[0].question
        return Turn(ask, f"Your first question was: {question}", question)
    if kind == 1:
        ask, question = rng.choice(LAST_HELD if held else LAST), before[-1].question
        return Turn(ask, f"Your last question was: {question}", question)
    return Turn(rng.choice(AGAIN_HELD if held else AGAIN), before[-1].answer, before[-1].short)
