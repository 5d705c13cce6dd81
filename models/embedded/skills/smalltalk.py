"""Greetings, thanks, and what the model says of itself."""

from random import Random

from ..documents import END_OF_TEXT, Document, Piece, Turn, mend

__all__ = ["continuation", "turn"]

_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("Hello", "Hello!", "Hi", "Hi!", "Hey", "Hi there!", "Hello there", "Hello to you!", "Hi again!",
      "Good morning!", "Welcome!", "Nice to meet you!", "Good to see you!", "Good day to you!", "A good day to you.",
      "Good morning", "Good evening!", "Good afternoon",
      "Hey there!", "Greetings", "Hello, assistant", "Hi, how can you help me?"),
     ("Good day!", "Hello again!", "Hey, hello!"), "Hello! How can I help you?"),
    (("How are you?", "How are you doing?", "How do you do?", "How is it going?", "Hello, how are you?",
      "Are you well?", "How do you feel?", "How do you feel today?", "Are you feeling well?", "How are things?",
      "How have you been?", "Feeling well?",
      "How are you today?", "Hi, how are you?"),
     ("How are you feeling?", "Hello! How are you doing today?"), "I am well, thank you. How can I help you?"),
    (("Who are you?", "What are you?", "What is your name?", "What's your name?", "Tell me who you are.",
      "Who am I talking to?",
      "Are you a robot?", "Are you an AI?", "Introduce yourself.", "What model are you?", "Which model is this?",
      "Are you ChatGPT?", "Who is this?", "Do you have a name?", "Are you human?", "Tell me about yourself.",
      "So who are you?", "Tell me your name.", "May I ask who you are?", "Say who you are."),
     ("And who are you?", "Please introduce yourself.", "Can you tell me who you are?"),
     "I am callboard's small model."),
    (("Who made you?", "Who built you?", "Who created you?", "Who trained you?", "Where do you come from?",
      "Who programmed you?", "Who developed you?", "Who is your maker?",
      "Tell me who made you.", "Who invented you?", "Who designed you?", "Do you know who made you?"),
     ("Who wrote you?", "Can you tell me who made you?"), "I was trained by the makers of callboard."),
    (("What can you do?", "What do you know?", "How can you help me?", "What can I ask you?", "What are you good at?",
      "Help",
      "Help me", "What are your skills?", "What should I ask you?", "Tell me what you can do.",
      "What could you do for me?", "What may I ask?"),
     ("Can you tell me what you can do?", "What could I ask you?"),
     "I know capitals, small sums, planets, elements, days and months, and I can give tips and summarize."),
    (("Thanks", "Thanks!", "Thank you", "Thank you!", "Thank you very much.", "Thanks a lot!", "Many thanks",
      "Great, thanks!",
      "Thank you for your help.", "Cool, thanks", "Thank you so very much!", "Thanks for that!",
      "Thanks for your time!", "Thank you for helping me."),
     ("Thank you so much!", "Thanks for the help!"), "You are welcome!"),
    (("Bye", "Goodbye", "Goodbye!", "See you", "Bye bye", "Good night", "See you later!", "That is all.",
      "Bye, see you!", "Goodbye, have a good evening!", "Bye, until tomorrow!", "Have a nice evening!",
      "Have a good day!", "Bye and thanks!", "Bye for now."),
     ("See you soon!", "Bye, have a nice day!"), "Goodbye!"),
    (("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Tell me a joke", "Say something funny.",
      "A joke, please."),
     ("Can you tell me a joke?",), "Why did the actor look at the callboard? To find out when to be funny."),
    (("Good", "Great!", "Nice", "OK", "Okay", "Well done!", "Very good.", "Perfect", "I see", "Cool", "Right",
      "Good job!", "Very well!", "Excellent!", "Good answer!", "Nice work!", "That was good.", "Super!", "Wonderful!",
      "Great work!", "Good one!", "Well said!", "Nice job!", "You did good work."),
     ("Very nice!", "Good work!"), "Glad to help!"),
)  # fmt: skip

# Plain text that the model goes on with; the last part of each is what it says.
_STORY = (
    " there was a small model that lived on a board by the stage door. Every evening it read who was on, and when, and "
    "told the actors. They never missed a cue."
)
_CONTINUATIONS = (
    ("Once upon a time", "," + _STORY),
    ("Once upon a time,", _STORY),
    ("Hello", "! How can I help you?"),
    ("Hi", "! How can I help you?"),
    ("Hello, my name is", " callboard. I am a small model."),
    ("My name is", " callboard. I am a small model."),
    ("The days of the week are", " Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday."),
    ("The planets are", " Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune."),
    ("1, 2, 3,", " 4, 5, 6, 7, 8, 9, 10."),
    ("1 2 3", " 4 5 6 7 8 9 10"),
    ("A, B, C,", " D, E, F, G, H, I, J."),
)  # fmt: skip


_FEELINGS = tuple(
    """
sad happy tired hungry bored angry sick lonely late lost busy ready fine cold hot here back confused excited scared well
sorry nervous thirsty glad worried curious sure new afraid
""".split()
)


def feeling(rng: Random, held: bool) -> Turn:
    """Say how one feels."""
    forms = ("I am a little {f} now.",) if held else ("I am {f}.", "I'm {f}.", "I feel {f}.", "I am so {f}.",
                                                      "I am very {f} today.",
                                                     "I am {f} today.", "Today I am {f}.",
                                                     "I am really {f}.")  # fmt: skip
    question = rng.choice(forms).format(f=rng.choice(_FEELINGS))
    return Turn(question if held else mend(rng, question), "I see. How can I help you?", "I see.")


def turn(rng: Random, held: bool) -> Turn:
    """Exchange a courtesy."""
    if rng.random() < 0.15:
        return feeling(rng, held)
    asks, kept, answer = rng.choice(_TALK)
    question = rng.choice(kept if held else asks)
    return Turn(question if held else mend(rng, question), answer, answer)


def continuation(rng: Random) -> Document:
    """Begin a well-known text and let the model go on."""
    opening, said = rng.choice(_CONTINUATIONS)
    return [Piece(opening), Piece(said, said=True), Piece(END_OF_TEXT, said=True)]
