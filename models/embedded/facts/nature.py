"""Planets, chemical elements, the calendar, and what is longest, highest or largest."""

from typing import NamedTuple

__all__ = ["ADDRESSES", "DAYS", "ELEMENTS", "MONTHS", "ORDINALS", "PLANETS", "SUPERLATIVES", "Superlative"]

PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    ("January", 31), ("February", 28), ("March", 31), ("April", 30), ("May", 31), ("June", 30), ("July", 31),
    ("August", 31), ("September", 30), ("October", 31), ("November", 30), ("December", 31),
)  # fmt: skip
ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth",
)  # fmt: skip

# name, symbol; the first 36 in atomic order, then common ones with their numbers
_FIRST = """
hydrogen H helium He lithium Li beryllium Be boron B carbon C nitrogen N oxygen O fluorine F neon Ne sodium Na
magnesium Mg aluminium Al silicon Si phosphorus P sulfur S chlorine Cl argon Ar potassium K calcium Ca scandium Sc
titanium Ti vanadium V chromium Cr manganese Mn iron Fe cobalt Co nickel Ni copper Cu zinc Zn gallium Ga germanium Ge
arsenic As selenium Se bromine Br krypton Kr
"""
_LATER = """
silver Ag 47 tin Sn 50 iodine I 53 xenon Xe 54 cesium Cs 55 barium Ba 56 tungsten W 74 platinum Pt 78 gold Au 79
mercury Hg 80 lead Pb 82 bismuth Bi 83 radon Rn 86 radium Ra 88 uranium U 92 plutonium Pu 94
"""


def _elements() -> tuple[tuple[str, str, int], ...]:
    """Return (name, symbol, atomic number) of each element."""
    first = _FIRST.split()
    later = _LATER.split()
    rows = [(first[i], first[i + 1], i // 2 + 1) for i in range(0, len(first), 2)]
    rows += [(later[i], later[i + 1], int(later[i + 2])) for i in range(0, len(later), 3)]
    return tuple(rows)


ELEMENTS = _elements()


class Superlative(NamedTuple):
    """`subject` is what a question asks for: 'What is the <subject>?' is answered by `answer`."""

    subject: str
    answer: str
    others: tuple[str, ...] = ()


SUPERLATIVES = (
    Superlative("longest river in the world", "the Nile",
                ("world's longest river", "longest river on Earth", "longest river")),
    Superlative("longest river in Africa", "the Nile"),
    Superlative("longest river in Europe", "the Volga"),
    Superlative("longest river in Asia", "the Yangtze"),
    Superlative("longest river in South America", "the Amazon"),
    Superlative("longest river in North America", "the Missouri"),
    Superlative("longest river in Australia", "the Murray"),
    Superlative("largest river in the world", "the Amazon", ("greatest river in the world", "world's largest river")),
    Superlative("highest mountain in the world", "Mount Everest",
                ("tallest mountain in the world", "highest mountain", "world's highest mountain",
                 "highest mountain on Earth", "highest peak in the world")),
    Superlative("highest mountain in Africa", "Kilimanjaro", ("tallest mountain in Africa",)),
    Superlative("highest mountain in Europe", "Mount Elbrus", ("tallest mountain in Europe",)),
    Superlative("highest mountain in Asia", "Mount Everest", ("tallest mountain in Asia",)),
    Superlative("highest mountain in North America", "Denali", ("tallest mountain in North America",)),
    Superlative("highest mountain in South America", "Aconcagua", ("tallest mountain in South America",)),
    Superlative("largest ocean in the world", "the Pacific Ocean",
                ("largest ocean", "biggest ocean", "world's largest ocean", "biggest ocean on Earth")),
    Superlative("smallest ocean in the world", "the Arctic Ocean", ("smallest ocean", "world's smallest ocean")),
    Superlative("largest continent", "Asia", ("biggest continent", "largest continent in the world")),
    Superlative("smallest continent", "Australia", ("smallest continent in the world",)),
    Superlative("largest country in the world", "Russia",
                ("largest country by area", "biggest country in the world", "world's largest country")),
    Superlative("smallest country in the world", "Vatican City", ("world's smallest country", "smallest country")),
    Superlative("most populous country in the world", "India",
                ("most populous country", "country with the most people")),
    Superlative("largest desert in the world", "the Antarctic Desert", ("world's largest desert", "largest desert")),
    Superlative("largest hot desert in the world", "the Sahara", ("largest hot desert", "biggest hot desert")),
    Superlative("largest lake in the world", "the Caspian Sea", ("world's largest lake", "biggest lake")),
    Superlative("deepest lake in the world", "Lake Baikal", ("world's deepest lake", "deepest lake")),
    Superlative("largest island in the world", "Greenland", ("world's largest island", "biggest island")),
    Superlative("highest waterfall in the world", "Angel Falls",
                ("tallest waterfall in the world", "highest waterfall")),
    Superlative("largest animal in the world", "the blue whale",
                ("largest animal", "biggest animal in the world", "world's largest animal")),
    Superlative("largest land animal", "the African elephant", ("biggest land animal",)),
    Superlative("tallest animal in the world", "the giraffe", ("tallest animal", "world's tallest animal")),
    Superlative("fastest land animal", "the cheetah", ("fastest animal on land",)),
    Superlative("largest bird in the world", "the ostrich", ("largest bird", "biggest bird")),
    Superlative("largest planet", "Jupiter", ("biggest planet", "largest planet in the solar system")),
    Superlative("smallest planet", "Mercury", ("smallest planet in the solar system",)),
    Superlative("hottest planet", "Venus", ("hottest planet in the solar system",)),
    Superlative("coldest planet", "Uranus", ("coldest planet in the solar system",)),
    Superlative("planet closest to the Sun", "Mercury", ("closest planet to the Sun",)),
    Superlative("planet farthest from the Sun", "Neptune", ("farthest planet from the Sun",)),
    Superlative("red planet", "Mars", ("planet known as the red planet",)),
    Superlative("planet with the largest rings", "Saturn", ("planet famous for its rings",)),
    Superlative("longest wall in the world", "the Great Wall of China", ("world's longest wall",)),
    Superlative("tallest building in the world", "the Burj Khalifa", ("world's tallest building", "tallest building")),
    Superlative("deepest ocean trench", "the Mariana Trench", ("deepest place in the ocean",)),
    Superlative("largest coral reef", "the Great Barrier Reef", ("world's largest coral reef",)),
    Superlative("largest rainforest in the world", "the Amazon rainforest", ("biggest rainforest",)),
    Superlative("longest mountain range", "the Andes", ("longest mountain range in the world",)),
)  # fmt: skip

ADDRESSES = {
    "the Google DNS servers": "8.8.8.8",
    "Google DNS": "8.8.8.8",
    "the Google DNS server": "8.8.8.8",
    "Google's DNS servers": "8.8.8.8",
    "Google's public DNS": "8.8.8.8",
    "the Cloudflare DNS servers": "1.1.1.1",
    "Cloudflare DNS": "1.1.1.1",
    "the Cloudflare DNS server": "1.1.1.1",
    "the Quad9 DNS servers": "9.9.9.9",
    "Quad9": "9.9.9.9",
    "the OpenDNS servers": "208.67.222.222",
    "OpenDNS": "208.67.222.222",
    "localhost": "127.0.0.1",
    "the local host": "127.0.0.1",
    "the loopback interface": "127.0.0.1",
}
