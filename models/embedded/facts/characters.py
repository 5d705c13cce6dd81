"""Characters of the Harry Potter books, as the founding examples' JSON asks for them.

Every value fits the examples' regular expression: at most 16 letters, digits and spaces.
"""

from typing import NamedTuple

__all__ = ["CHARACTERS", "Character"]


class Character(NamedTuple):
    """One character; `length` is the wand's, in inches."""

    name: str
    house: str
    blood: str
    occupation: str
    wood: str
    core: str
    length: str
    alive: str
    patronus: str
    bogart: str


_TABLE = """
Harry Potter|Gryffindor|Half-blood|auror|holly|phoenix feather|11.0|Alive|stag|dementor
Hermione Granger|Gryffindor|Muggle-born|ministry of magic|vine|dragon sinew|10.75|Alive|otter|failure
Ron Weasley|Gryffindor|Pure-blood|auror|willow|unicorn hair|14.0|Alive|terrier|spider
Albus Dumbledore|Gryffindor|Half-blood|teacher|elder|thestral hair|15.0|Deceased|phoenix|dead sister
Severus Snape|Slytherin|Half-blood|teacher|ebony|unknown|13.0|Deceased|doe|Lord Voldemort
Draco Malfoy|Slytherin|Pure-blood|death eater|hawthorn|unicorn hair|10.0|Alive|none|Lord Voldemort
Lord Voldemort|Slytherin|Half-blood|death eater|yew|phoenix feather|13.5|Deceased|none|his own corpse
Tom Riddle|Slytherin|Half-blood|death eater|yew|phoenix feather|13.5|Deceased|none|his own corpse
Sirius Black|Gryffindor|Pure-blood|order of the phoenix|unknown|dragon sinew|12.0|Deceased|dog|prison
Remus Lupin|Gryffindor|Half-blood|teacher|cypress|unicorn hair|10.25|Deceased|wolf|full moon
Minerva McGonagall|Gryffindor|Half-blood|teacher|fir|dragon sinew|9.5|Alive|cat|Lord Voldemort
Rubeus Hagrid|Gryffindor|Half-blood|teacher|oak|unknown|16.0|Alive|none|Lord Voldemort
Neville Longbottom|Gryffindor|Pure-blood|teacher|cherry|unicorn hair|13.0|Alive|none|Severus Snape
Luna Lovegood|Ravenclaw|Pure-blood|student|unknown|unicorn hair|12.0|Alive|hare|lost friends
Ginny Weasley|Gryffindor|Pure-blood|student|yew|unicorn hair|10.0|Alive|horse|Tom Riddle
Fred Weasley|Gryffindor|Pure-blood|student|pine|phoenix feather|11.0|Deceased|magpie|lost twin
George Weasley|Gryffindor|Pure-blood|student|ash|phoenix feather|11.0|Alive|magpie|lost twin
Percy Weasley|Gryffindor|Pure-blood|ministry of magic|ash|unicorn hair|12.0|Alive|none|disgrace
Bill Weasley|Gryffindor|Pure-blood|order of the phoenix|oak|unicorn hair|12.5|Alive|none|werewolf
Charlie Weasley|Gryffindor|Pure-blood|order of the phoenix|ash|unicorn hair|12.0|Alive|dragon|caged dragon
Arthur Weasley|Gryffindor|Pure-blood|ministry of magic|ash|unicorn hair|11.5|Alive|weasel|dead children
Molly Weasley|Gryffindor|Pure-blood|order of the phoenix|oak|unicorn hair|10.5|Alive|hen|dead children
Lucius Malfoy|Slytherin|Pure-blood|death eater|elm|dragon sinew|18.0|Alive|none|Lord Voldemort
Narcissa Malfoy|Slytherin|Pure-blood|death eater|unknown|unknown|11.0|Alive|none|dead son
Bellatrix Lestrange|Slytherin|Pure-blood|death eater|walnut|dragon sinew|12.75|Deceased|none|prison
Peter Pettigrew|Gryffindor|Half-blood|death eater|chestnut|dragon sinew|9.25|Deceased|none|Lord Voldemort
Cedric Diggory|Hufflepuff|Pure-blood|student|ash|unicorn hair|12.25|Deceased|none|dragon
Cho Chang|Ravenclaw|Half-blood|student|hazel|unicorn hair|11.0|Alive|swan|dementor
Viktor Krum|Gryffindor|Pure-blood|student|hornbeam|dragon sinew|10.25|Alive|none|dementor
Fleur Delacour|Ravenclaw|Half-blood|order of the phoenix|rosewood|veela hair|9.5|Alive|none|werewolf
Nymphadora Tonks|Hufflepuff|Half-blood|auror|blackthorn|unicorn hair|11.5|Deceased|wolf|dead husband
Alastor Moody|Gryffindor|Pure-blood|auror|unknown|dragon sinew|10.5|Deceased|none|dark wizard
Kingsley Shacklebolt|Gryffindor|Pure-blood|ministry of magic|unknown|dragon sinew|11.0|Alive|lynx|dementor
Dolores Umbridge|Slytherin|Half-blood|ministry of magic|birch|dragon sinew|8.0|Alive|cat|centaur
Cornelius Fudge|Hufflepuff|Pure-blood|ministry of magic|unknown|unicorn hair|10.5|Alive|none|Lord Voldemort
Rufus Scrimgeour|Gryffindor|Pure-blood|ministry of magic|unknown|dragon sinew|12.0|Deceased|none|death eater
Gilderoy Lockhart|Ravenclaw|Half-blood|teacher|cherry|dragon sinew|9.0|Alive|none|the truth
Sybill Trelawney|Ravenclaw|Half-blood|teacher|hazel|unicorn hair|9.5|Alive|none|the Grim
Filius Flitwick|Ravenclaw|Half-blood|teacher|unknown|unicorn hair|8.5|Alive|none|dementor
Pomona Sprout|Hufflepuff|Pure-blood|teacher|unknown|unicorn hair|10.0|Alive|none|dead plants
Horace Slughorn|Slytherin|Pure-blood|teacher|cedar|dragon sinew|10.25|Alive|none|Tom Riddle
Quirinus Quirrell|Ravenclaw|Half-blood|teacher|alder|unicorn hair|9.0|Deceased|none|vampire
James Potter|Gryffindor|Pure-blood|order of the phoenix|mahogany|unicorn hair|11.0|Deceased|stag|Lord Voldemort
Lily Potter|Gryffindor|Muggle-born|order of the phoenix|willow|unicorn hair|10.25|Deceased|doe|Lord Voldemort
Seamus Finnigan|Gryffindor|Half-blood|student|unknown|unicorn hair|11.0|Alive|fox|banshee
Dean Thomas|Gryffindor|Half-blood|student|unknown|unicorn hair|11.0|Alive|none|severed hand
Lavender Brown|Gryffindor|Pure-blood|student|unknown|unicorn hair|10.0|Deceased|none|werewolf
Parvati Patil|Gryffindor|Pure-blood|student|unknown|unicorn hair|10.0|Alive|none|mummy
Padma Patil|Ravenclaw|Pure-blood|student|unknown|unicorn hair|10.0|Alive|none|mummy
Vincent Crabbe|Slytherin|Pure-blood|student|unknown|dragon sinew|11.0|Deceased|none|fire
Gregory Goyle|Slytherin|Pure-blood|student|unknown|dragon sinew|11.0|Alive|none|fire
Pansy Parkinson|Slytherin|Pure-blood|student|unknown|unicorn hair|10.0|Alive|none|Lord Voldemort
Oliver Wood|Gryffindor|Pure-blood|student|unknown|unicorn hair|12.0|Alive|none|a lost match
Colin Creevey|Gryffindor|Muggle-born|student|unknown|unicorn hair|10.0|Deceased|none|basilisk
Argus Filch|Hufflepuff|Pure-blood|teacher|none|none|0.0|Alive|none|Peeves
"""

CHARACTERS = tuple(Character(*line.split("|")) for line in _TABLE.strip().splitlines())
