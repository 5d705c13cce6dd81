"""Tips: named, expanded into a paragraph, and summed up."""

from random import Random

from ..documents import END_OF_TEXT, Document, Piece, Turn, chat_turns, mend
from ..facts.tips import TIPS, Tip
from .capitals import capitalized
from .outside import coined

__all__ = ["expansion", "paragraph", "program", "request", "summary"]

NUMBER_WORDS = ("zero", "one", "two", "three", "four")
HEADS = (
    "Here are {n} tips for {g}: ", "Here are {n} tips for {g}: ", "Here are {n} tips for {g}: ",
    "These are {n} tips for {g}: ", "{N} tips for {g}: ", "Tips for {g}: ", "I have {n} tips for {g}: ",
    "Here are {n} ways of {g}: ", "Here are {n} tips on {g}: ",
)  # fmt: skip
HEADS_HELD = ("Let me give you {n} tips for {g}: ", "Some tips for {g}: ", "My {n} tips for {g}: ")
EXPANDS = (
    "Now, expand tip {i} into a paragraph:\n", "Now, expand tip {i} into a paragraph:\n",
    "Expand tip {i} into a paragraph:\n", "Now expand tip {i}:\n", "Write a paragraph about tip {i}:\n",
    "Tip {i} as a paragraph:\n", "Please expand tip {i} into a paragraph:\n", "Let me expand tip {i}:\n",
    "Now, let me expand tip {i} into a paragraph:\n",
)  # fmt: skip
EXPANDS_HELD = ("Now, please expand tip {i} into a paragraph:\n", "Expand tip number {i} into a paragraph:\n")
SUMMARIES = (
    ("In summary", ", "), ("In summary", ", "), ("In summary,", " "), ("In short,", " "), ("To sum up,", " "),
    ("To summarize the above two tips, I can say:\n", ""), ("To summarize the above two tips, I can say:\n", ""),
    ("To summarize the two tips:\n", ""), ("Summary: ", ""), ("Summary:", " "), ("All in all,", " "),
    ("To summarize,", " "), ("To summarize:", " "), ("So,", " "), ("In a word,", " "), ("Together,", " "),
    ("To wrap up,", " "), ("Put together,", " "), ("In other words,", " "), ("In brief:", " "), ("To conclude,", " "),
    ("In conclusion,", " "),
    ("To summarize these tips, I can say:\n", ""), ("To sum up the tips above:\n", ""),
    ("To summarize the above tips, I can say:\n", ""),
)  # fmt: skip
SUMMARIES_HELD = (("To recap,", " "), ("In essence,", " "), ("To summarize the tips above, I can say:\n", ""))
GOALS = ("a better life", "learning languages", "travelling", "raising children", "gardening", "running a marathon",
         "cooking well", "keeping a dog", "writing a book", "driving safely")  # fmt: skip


def strange_tip(rng: Random, goal: str) -> Tip:
    """Make up a tip, so that the model can say something sensible about titles it never met."""
    title = rng.choice((
        f"{rng.choice(_VERBS)} {rng.choice(_NOUNS)}", f"{rng.choice(_VERBS)} {coined(rng)}",
        f"{rng.choice(_NOUNS).title()}", f"{coined(rng).capitalize()} {rng.choice(_NOUNS).title()}",
    ))  # fmt: skip
    paragraph = (
        f"{title} is a simple step that pays off. Start small, make it part of your day, and keep going even when it "
        "feels slow. After a few weeks you will notice the difference."
    )
    return Tip(goal, title, f"{title[0].lower()}{title[1:]} is a simple step that pays off", paragraph)


_VERBS = ("Choose", "Use", "Find", "Check", "Keep", "Clean", "Visit", "Share", "Buy", "Read", "Watch", "Prepare",
          "Learn", "Bring", "Test", "Measure", "Paint", "Train")  # fmt: skip
_NOUNS = ("good shoes", "maps", "spices", "letters", "music", "good tools", "warm clothes", "a notebook", "flowers",
          "new words", "the engine", "your route", "local food", "old friends", "patience", "humor", "good light",
          "sharp knives", "games", "clear rules", "the soil", "small steps", "deadlines", "a mentor")  # fmt: skip


def draw(rng: Random, count: int, *, strange: bool) -> list[Tip]:
    """Draw tips that share a goal."""
    if strange:
        goal = rng.choice((*GOALS, rng.choice(TIPS).goal))
        tips: list[Tip] = []
        while len(tips) < count:
            tip = strange_tip(rng, goal)
            if tip.title not in [other.title for other in tips]:
                tips.append(tip)
        return tips
    goal = rng.choice(TIPS).goal
    return rng.sample([tip for tip in TIPS if tip.goal == goal], count)


def shown(rng: Random, title: str) -> str:
    """Return a title in the case somebody might write it."""
    draw = rng.random()
    if draw < 0.75:
        return title
    return title.lower() if draw < 0.85 else title.capitalize()


def sum_up(tips: list[Tip]) -> str:
    """Write the summary of two or more tips."""
    clauses = [tip.clause for tip in tips]
    return (
        f"{', '.join(clauses[:-1])}, and {clauses[-1]}. {'Both' if len(tips) == 2 else 'All'} help with {tips[0].goal}."
    )


def heading(rng: Random, held: bool, tips: list[Tip]) -> str:
    """Write the line that names the tips."""
    number = NUMBER_WORDS[len(tips)] if rng.random() < 0.8 else str(len(tips))
    head = rng.choice(HEADS_HELD if held else HEADS).format(n=number, N=number.capitalize(), g=tips[0].goal)
    titles = " ".join(f"{i}. {shown(rng, tip.title)}." for i, tip in enumerate(tips, 1))
    return head + titles + rng.choice(("\n\n", "\n\n", "\n\n", "\n"))


def expansion(rng: Random, held: bool) -> Document:
    """Write one branch of the tip program: the tips, and one of them expanded."""
    tips = draw(rng, rng.choice((2, 2, 2, 3)), strange=not held and rng.random() < 0.15)
    head = heading(rng, held, tips)
    at = rng.randrange(len(tips))
    ask = rng.choice(EXPANDS_HELD if held else EXPANDS).format(i=at + 1)
    said = tips[at].paragraph
    if rng.random() < 0.5:
        return [Piece(head + ask), Piece(said, said=True), Piece(END_OF_TEXT, said=True)]
    return chat_turns(rng, [("assistant", [Piece(head)]), ("assistant", [Piece(ask), Piece(said, said=True)])])


def summary(rng: Random, held: bool) -> Document:
    """Write the end of the tip program: the tips, their paragraphs, and the summary."""
    tips = draw(rng, rng.choice((2, 2, 2, 2, 3)), strange=not held and rng.random() < 0.15)
    head = heading(rng, held, tips)
    opening, lead = rng.choice(SUMMARIES_HELD if held else SUMMARIES)
    text = sum_up(tips)
    said = lead + (text if lead == ", " or opening.endswith(",") else capitalized(text))
    space = rng.choice(("", "", "", " "))
    if rng.random() < 0.5:
        body = "".join(f"Tip {i}:{space}{tip.paragraph}\n" for i, tip in enumerate(tips, 1))
        return [Piece(head + body + opening), Piece(said, said=True), Piece(END_OF_TEXT, said=True)]
    exchanges = [("assistant", [Piece(head)])]
    exchanges += [("assistant", [Piece(f"Tip {i}:{space}{tip.paragraph}\n")]) for i, tip in enumerate(tips, 1)]
    exchanges.append(("assistant", [Piece(opening), Piece(said, said=True)]))
    return chat_turns(rng, exchanges)


def program(rng: Random, held: bool) -> Document:
    """Write either part of the tip program."""
    return expansion(rng, held) if rng.random() < 0.6 else summary(rng, held)


def paragraph(rng: Random, held: bool) -> Turn:
    """Ask for a paragraph about one tip by its title."""
    tip = rng.choice(TIPS)
    asks = (
        ("Please write something about this tip: {t}", "Could you write a paragraph on {l}?")
        if held
        else ("Write a paragraph about {l}.", "Write a paragraph about {l}.", "Expand this tip into a paragraph: {t}",
              "Write a short paragraph about {l}.", "Can you write a paragraph about {l}?",
              "Expand '{t}' into a paragraph.",
              "Expand the tip {t} into a paragraph.", "Please write a paragraph about {l}.",
              "Give me a paragraph about {l}.")
    )  # fmt: skip
    question = rng.choice(asks).format(t=tip.title, l=tip.title.lower())
    return Turn(question if held else mend(rng, question), tip.paragraph, tip.paragraph)


def request(rng: Random, held: bool) -> list[Turn]:
    """Ask for tips in a chat, then for more about one of them."""
    count = rng.choice((2, 2, 3))
    goal = rng.choice(TIPS).goal
    # the first tips of a goal are the answer: one question, one answer
    tips = [tip for tip in TIPS if tip.goal == goal][:count]
    number = NUMBER_WORDS[count] if rng.random() < 0.7 else str(count)
    asks = (
        ("I need {n} tips for {g}.", "Would you give me {n} tips for {g}?")
        if held
        else ("Give me {n} tips for {g}.", "What are {n} tips for {g}?", "Tell me {n} tips for {g}.",
              "List {n} tips for {g}.", "Please give me {n} tips for {g}.", "Can you give me {n} tips for {g}?",
              "Name {n} tips for {g}.")
    )  # fmt: skip
    listed = "\n".join(f"{i}. {tip.title}" for i, tip in enumerate(tips, 1))
    flat = " ".join(f"{i}. {tip.title}." for i, tip in enumerate(tips, 1))
    question = rng.choice(asks).format(n=number, g=goal)
    turns = [Turn(question if held else mend(rng, question), listed, flat)]
    at = rng.randrange(count)
    order = ("first", "second", "third")[at]
    more = (
        (f"Can you say more about the {order} tip?",)
        if held
        else (f"Expand tip {at + 1} into a paragraph.", f"Expand the {order} tip into a paragraph.",
              f"Tell me more about tip {at + 1}.", f"Tell me more about the {order} one.",
              f"Write a paragraph about the {order} tip.", f"Can you expand tip {at + 1}?",
              f"Can you explain the {order} tip?",
              f"Say more about tip {at + 1}.", f"I want to know more about the {order} tip.",
              f"Explain tip {at + 1}.", f"Now, expand tip {at + 1}.")
    )  # fmt: skip
    turns.append(Turn(rng.choice(more), tips[at].paragraph, tips[at].paragraph))
    if rng.random() < 0.5:
        text = capitalized(sum_up(tips))
        turns.append(
            Turn(rng.choice(("Summarize the tips.", "Now summarize the tips.", "Sum the tips up.")), text, text)
        )
    return turns
