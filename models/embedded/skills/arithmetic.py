"""Sums, differences, products and exact quotients of small numbers."""

from random import Random
from zlib import crc32

from ..documents import END_OF_TEXT, Document, Piece, Turn, mend

__all__ = ["comparison", "is_held", "judged_sheet", "sheet", "spelled", "sum_of", "turn"]

SIGNED = {"+": ("+", "plus"), "-": ("-", "minus"), "*": ("*", "x", "times", "multiplied by"), "/": ("/", "divided by")}

FORMS = (
    "What is {e}?", "What is {e}?", "What is {e}?", "What's {e}?", "Calculate {e}.", "How much is {e}?", "{e} = ?",
    "{e}", "{e} =", "Compute {e}.", "What does {e} equal?", "Solve {e}.", "What is the result of {e}?",
    "Can you compute {e}?", "Tell me {e}.", "Please calculate {e}.", "{e} is?", "How much does {e} make?",
    "What do I get when I calculate {e}?", "Evaluate {e}.", "{e}?", "What does {e} make?",
    "Please tell me what {e} is.", "I want to know what {e} is.", "Find {e}.", "Do the math: {e}.",
    "Can you tell me the value of {e}?", "Work out {e}.",
)  # fmt: skip
FORMS_HELD = (
    "Could you work out {e} for me?", "I need the result of {e}.", "Tell me the value of {e}.",
    "What do you get for {e}?", "Would you calculate {e}, please?",
)  # fmt: skip

SPOKEN = {
    "+": ("What is the sum of {a} and {b}?", "Add {a} and {b}.", "Add {b} to {a}.", "What is {a} and {b} together?",
          "Compute the sum of {a} and {b}."),
    "-": ("Subtract {b} from {a}.", "Take {b} away from {a}.", "What is {a} less {b}?",
          "What is left of {a} after taking {b}?"),
    "*": ("Multiply {a} by {b}.", "What is the product of {a} and {b}?", "Multiply {a} and {b}.",
          "Compute the product of {a} and {b}."),
    "/": ("Divide {a} by {b}.",),
}  # fmt: skip
SPOKEN_HELD = {
    "+": ("What do {a} and {b} add up to?", "Please add the numbers {a} and {b}."),
    "-": ("What remains if I subtract {b} from {a}?", "Please subtract {b} from {a}."),
    "*": ("What do you get if you multiply {a} by {b}?", "Please multiply {a} by {b}."),
    "/": ("Please divide {a} by {b}.",),
}

ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def spelled(number: int) -> str:
    """Write a number of 0 to 99 in words."""
    if number < 20:
        return ONES[number]
    tens, ones = divmod(number, 10)
    return TENS[tens] + (f"-{ONES[ones]}" if ones else "")


def is_held(a: int, sign: str, b: int) -> bool:
    """Tell whether a pair is kept out of training: one in ten sums and differences with a two-digit number."""
    if sign not in "+-" or max(a, b) < 10:
        return False
    low, high = sorted((a, b))
    return crc32(f"{low} {sign} {high}".encode()) % 10 == 3


def apply(a: int, sign: str, b: int) -> int:
    """Return what `a sign b` comes to."""
    match sign:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case _:
            return a // b


def pair(rng: Random, held: bool, sign: str) -> tuple[int, int]:
    """Draw two numbers for a sign, from the held-out pairs or from the others."""
    if sign == "*":
        return rng.randint(0, 12), rng.randint(0, 12)
    if sign == "/":
        b = rng.randint(1, 12)
        return rng.randint(0, 12) * b, b
    while True:
        small = not held and rng.random() < 0.12
        top = 12 if small else 99 if held or rng.random() < 0.9 else 120
        a, b = rng.randint(0, top), rng.randint(0, top)
        if is_held(a, sign, b) == held:
            return a, b


def sign_of(rng: Random) -> str:
    """Draw a sign, the hard ones more often."""
    return rng.choices("+-*/", (10, 12, 6, 2))[0]


def sum_of(a: int, sign: str, b: int) -> str:
    """Write the sum out with its result."""
    return f"{a} {sign} {b} = {apply(a, sign, b)}"


def turn(rng: Random, held: bool, sign: str | None = None) -> Turn:
    """Ask for the result of two numbers and a sign."""
    sign = sign or sign_of(rng)
    a, b = pair(rng, held, sign)
    words = not held and max(a, b) < 100 and rng.random() < 0.06
    left, right = (spelled(a), spelled(b)) if words else (str(a), str(b))
    if rng.random() < 0.2:
        question = rng.choice((SPOKEN_HELD if held else SPOKEN)[sign]).format(a=left, b=right)
    else:
        said = rng.choice(SIGNED[sign])
        if words and len(said) < 2:
            said = SIGNED[sign][-1]
        space = "" if len(said) == 1 and rng.random() < 0.2 else " "
        question = rng.choice(FORMS_HELD if held else FORMS).format(e=f"{left}{space}{said}{space}{right}")
    question = question[:1].upper() + question[1:]
    return Turn(question if held else mend(rng, question), sum_of(a, sign, b), str(apply(a, sign, b)))


def comparison(rng: Random, held: bool) -> Turn:
    """Ask whether a sum is right or a number greater than another."""
    if rng.random() < 0.4:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        greater = rng.random() < 0.5
        word = rng.choice(("greater", "larger", "bigger") if greater else ("less", "smaller"))
        right = a > b if greater else a < b
        if a == b:
            right = False
        form = (
            "Is it true that {a} is {w} than {b}?"
            if held
            else rng.choice(
                (
                    "Is {a} {w} than {b}?",
                    "Yes or no: is {a} {w} than {b}?",
                    "{a} is {w} than {b}, right?",
                    "Is it right that {a} is {w} than {b}?",
                    "Am I right that {a} is {w} than {b}?",
                    "Do you think {a} is {w} than {b}?",
                    "Is it a fact that {a} is {w} than {b}?",
                )
            )
        )
        relation = "equal to" if a == b else "greater than" if a > b else "less than"
        answer = f"{'Yes' if right else 'No'}, {a} is {relation} {b}."
        if a != b and rng.random() < 0.3:
            form = (
                "Can you tell me which is {w}, {a} or {b}?"
                if held
                else rng.choice(
                    ("Which is {w}, {a} or {b}?", "Which number is {w}, {a} or {b}?", "What is {w}, {a} or {b}?")
                )
            )
            sought, other = (max(a, b), min(a, b)) if greater else (min(a, b), max(a, b))
            return Turn(form.format(a=a, b=b, w=word), f"{sought} is {word} than {other}.", str(sought))
        return Turn(form.format(a=a, b=b, w=word), answer, "Yes" if right else "No")
    sign = rng.choice("++-*")
    a, b = pair(rng, held, sign)
    result = apply(a, sign, b)
    claimed = result if rng.random() < 0.5 else result + rng.choice((-10, -2, -1, 1, 2, 3, 10))
    form = (
        "Is it correct that {a} {s} {b} = {r}?"
        if held
        else rng.choice(
            (
                "Is {a} {s} {b} = {r}?",
                "Is {a} {s} {b} equal to {r}?",
                "{a} {s} {b} = {r}, right?",
                "Does {a} {s} {b} make {r}?",
                "True or false: {a} {s} {b} = {r}.",
                "Is {a} {s} {b} really {r}?",
                "Am I right that {a} {s} {b} = {r}?",
                "Is it right that {a} {s} {b} = {r}?",
                "Is it a fact that {a} {s} {b} = {r}?",
                "Yes or no: {a} {s} {b} = {r}?",
                "Can you confirm that {a} {s} {b} = {r}?",
                "{a} {s} {b} = {r}. Correct?",
            )
        )
    )
    yes = claimed == result
    answer = f"{sum_of(a, sign, b)}, so {'yes' if yes else 'no'}."
    return Turn(form.format(a=a, s=sign, b=b, r=claimed), answer, "Yes" if yes else "No")


def judged_sheet(rng: Random) -> Document:
    """Write a sheet of claimed sums, of each of which the model is to say whether it is right."""
    document: Document = []
    before = ""
    asks, answers = rng.choice((("", " ->"), ("", "? "), ("Is ", "?"), ("Q: Is ", "?\nA:"), ("Q: Is ", "?\nA: ")))
    for _ in range(rng.randint(1, 20)):
        sign = rng.choice("++--*")
        a, b = pair(rng, False, sign)
        result = apply(a, sign, b)
        claimed = result if rng.random() < 0.5 else result + rng.choice((-10, -2, -1, 1, 2, 3, 10))
        said = "Yes" if claimed == result else "No"
        document.append(Piece(f"{before}{asks}{a} {sign} {b} = {claimed}{answers}"))
        document.append(Piece(said if answers.endswith(" ") else " " + said, said=True))
        before = "\n"
    document.append(Piece(END_OF_TEXT, said=True))
    return document


def sheet(rng: Random) -> Document:
    """Write a sheet of sums, each result to be said: the densest way to practise."""
    document: Document = []
    before = ""
    equals = rng.choice((" =", " =", " = "))
    space = "" if rng.random() < 0.15 else " "
    for _ in range(rng.randint(1, 24)):
        sign = sign_of(rng)
        a, b = pair(rng, False, sign)
        result = str(apply(a, sign, b))
        document.append(Piece(f"{before}{a}{space}{sign}{space}{b}{equals}"))
        document.append(Piece(result if equals.endswith(" ") else " " + result, said=True))
        before = "\n"
    document.append(Piece(END_OF_TEXT, said=True))
    return document
