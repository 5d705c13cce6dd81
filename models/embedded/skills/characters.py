"""The founding examples' character sheet, as JSON with exactly their white space."""

from random import Random

from ..documents import END_OF_TEXT, Document, Piece, chat_turns
from ..facts.characters import CHARACTERS, Character
from ..facts.words import NAMES
from .outside import coined

__all__ = ["document", "sheet"]

ASKS = (
    "{n} is a character in Harry Potter. Please fill in the following information about this character.",
    "{n} is a character in Harry Potter. Please fill in the following information about this character.",
    "{n} is a character in Harry Potter. Please fill in the following information about him.",
    "{n} is a character in Harry Potter. Please fill in the following information about her.",
    "{n} is a character in Harry Potter. Fill in the following information about this character.",
    "{n} is a Harry Potter character. Please fill in the following information about this character.",
    "{n} comes from Harry Potter. Please fill in the following information about this character.",
    "{n} plays a part in Harry Potter. Please fill in the following information about this character.",
    "{n} lives in the world of Harry Potter. Please fill in this information about {n}.",
    "We talk about {n} from the Harry Potter books. Fill in this information about the character.",
    "{n} belongs to the Harry Potter books. Please fill in the information about this person.",
    "{n} can be found in Harry Potter. Please fill in what you know about this character.",
    "Please fill in the following information about {n}, a character in Harry Potter.",
    "Fill in the character sheet of {n} from Harry Potter.",
)
ASKS_HELD = (
    "{n} appears in Harry Potter. Please fill in the following information about this character.",
    "{n} is a character in the Harry Potter books. Please fill in this information about the character.",
)


_ROLES = ("acts in", "is known from", "is a person in", "shows up in", "has a role in", "is part of", "can be met in",
          "is described in", "fights in", "is a figure in", "is one of the people in", "goes through", "speaks in",
          "walks through",
          "is somebody in", "stands in", "is named in", "is from", "is in", "belongs to", "occurs in",
          "turns up in")  # fmt: skip
_TAILS = (".", ".", ".", " books.", " films.", " by Rowling.")
_FILLS = (
    "Please fill in the following information about this character.",
    "Please fill in the following information about this character.",
    "Fill in the following information about this character.",
    "Please fill in the information about this character.", "Please fill in this sheet.",
    "Fill in the sheet of this character.",
    "Please give the following information about this character.",
    "Please complete the information about this character.",
)  # fmt: skip


def sheet(character: Character, indent: str) -> str:
    """Write the sheet with the given indent; the inner object is indented twice."""
    c, i = character, indent
    inner = i if len(i) == 1 else i * 2
    return (
        f'{{\n{i}"name": "{c.name[:16].rstrip()}",\n{i}"house": "{c.house}",\n{i}"blood status": "{c.blood}",\n'
        f'{i}"occupation": "{c.occupation}",\n{i}"wand": {{\n{inner}"wood": "{c.wood}",\n{inner}"core": "{c.core}",\n'
        f'{inner}"length": {c.length}\n{i}}},\n{i}"alive": "{c.alive}",\n{i}"patronus": "{c.patronus}",\n'
        f'{i}"bogart": "{c.bogart}"\n}}'
    )


def stranger(rng: Random) -> Character:
    """Return the sheet of somebody the books do not know: always the same but for the name."""
    name = rng.choice((f"{rng.choice(NAMES)} {coined(rng).capitalize()}", rng.choice(NAMES), coined(rng).capitalize()))
    return Character(
        name, "Hufflepuff", "Half-blood", "student", "oak", "unicorn hair", "11.0", "Alive", "cat", "spider"
    )


def document(rng: Random, held: bool) -> Document:
    """Write the program: the first founding example's plain text, or the second's chat."""
    character = stranger(rng) if not held and rng.random() < 0.06 else rng.choice(CHARACTERS)
    if held or rng.random() < 0.6:
        ask = rng.choice(ASKS_HELD if held else ASKS).format(n=character.name)
    else:
        ask = f"{character.name} {rng.choice(_ROLES)} Harry Potter{rng.choice(_TAILS)} {rng.choice(_FILLS)}"
    plain = rng.random() < 0.5
    indent = (" " if plain else "    ") if held or rng.random() < 0.93 else ("    " if plain else " ")
    said = sheet(character, indent)
    # the first line is given at times: it settles the indent that a grammar would force
    given, rest = said[:2] + indent, said[2 + len(indent) :]
    if plain:
        if (indent == "    ") or rng.random() < 0.1:
            return [Piece(ask + "\n"), Piece(given, said=True), Piece(rest, said=True), Piece(END_OF_TEXT, said=True)]
        return [Piece(ask + "\n"), Piece(said, said=True), Piece(END_OF_TEXT, said=True)]
    return chat_turns(rng, [("user", [Piece(ask)]), ("assistant", [Piece(said, said=True)])])
