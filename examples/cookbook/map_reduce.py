"""Map-reduce: read every document by itself, then bring the results together two at a time.

Each round of the reduction is one batch, so n documents take one round of reading and log2(n) of joining.
"""

import json

import msgspec

import callboard as cb

DOCUMENTS = (
    "Mira is a nurse from Lima and is 31 years old. Every weekend Mira plays chess.",
    "In Oslo lives Jonas, who is 9 years old. Jonas likes soup.",
    "Petra, aged 24, works in Madrid as a baker.",
    "My name is Tomas, I am 18 years old and I live in Prague.",
)


class Person(msgspec.Struct):
    """What is wanted of a document."""

    name: str
    age: int
    city: str


@cb.function
def read(s, document):
    s += cb.user(f"Extract the name, age and city as JSON: {document}")
    s += cb.assistant(cb.gen("person", max_tokens=48, temperature=0, json_schema=Person))


@cb.function
def add(s, left, right):
    s += cb.user(f"What is {left} + {right}?")
    s += cb.assistant(f"{left} + {right} = " + cb.gen("sum", max_tokens=4, temperature=0, dtype=int))


def main() -> None:
    """Ask how old the people of all documents are together."""
    states = read.run_batch([{"document": document} for document in DOCUMENTS])
    people = [state.get_meta_info("person")["parsed"] for state in states]
    print("\n".join(json.dumps(msgspec.to_builtins(person)) for person in people))
    ages = [person.age for person in people]
    while len(ages) > 1:
        print(" + ".join(map(str, ages)))
        pairs = list(zip(ages[::2], ages[1::2], strict=False))
        rest = ages[len(pairs) * 2 :]
        ages = [state.get_meta_info("sum")["parsed"] for state in add.run_batch(pairs)] + rest
    print(f"together they are {ages[0]} years old")


if __name__ == "__main__":
    main()
