"""The programs of the demo and of the tutorial: each is a few lines and runs on any backend."""

import callboard as cb

IP_ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"

CHARACTER = (
    r"""\{\n"""
    r"""    "name": "[\w\d\s]{1,16}",\n"""
    r"""    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n"""
    r"""    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n"""
    r"""    "occupation": "(student|teacher|auror|ministry of magic|death eater|order of the phoenix)",\n"""
    r"""    "wand": \{\n"""
    r"""        "wood": "[\w\d\s]{1,16}",\n"""
    r"""        "core": "[\w\d\s]{1,16}",\n"""
    r"""        "length": [0-9]{1,2}\.[0-9]{0,2}\n"""
    r"""    \},\n"""
    r"""    "alive": "(Alive|Deceased)",\n"""
    r"""    "patronus": "[\w\d\s]{1,16}",\n"""
    r"""    "bogart": "[\w\d\s]{1,16}"\n"""
    r"""\}"""
)


@cb.function
def question(s, text):
    """Ask one question in a chat."""
    s += cb.user(text)
    s += cb.assistant(cb.gen("answer", max_tokens=64, temperature=0))


@cb.function
def conversation(s, first, second):
    """Ask twice; the second question refers back to the first answer."""
    s += cb.system("You are a helpful assistant.")
    s += cb.user(first)
    s += cb.assistant(cb.gen("first", max_tokens=64, temperature=0))
    s += cb.user(second)
    s += cb.assistant(cb.gen("second", max_tokens=64, temperature=0))


@cb.function
def tips(s):
    """Expand two tips side by side, then summarize what both branches wrote."""
    s += "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    branches = s.fork(2)
    for number, branch in enumerate(branches, start=1):
        branch += f"Now, expand tip {number} into a paragraph:\n"
        branch += cb.gen("paragraph", max_tokens=96, stop="\n\n", temperature=0)
    s += "Tip 1:" + branches[0]["paragraph"] + "\n"
    s += "Tip 2:" + branches[1]["paragraph"] + "\n"
    s += "In summary" + cb.gen("summary", max_tokens=64, stop="\n", temperature=0)


@cb.function
def tool(s, text):
    """Let the model choose a tool, and let Python act on the choice."""
    s += "To answer this question: " + text + ". I need to use a "
    s += cb.select("tool", ["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The math expression is:" + cb.gen("input", max_tokens=24, stop="\n", temperature=0)
    else:
        s += "The key word to search is:" + cb.gen("input", max_tokens=24, stop="\n", temperature=0)


@cb.function
def name_server(s):
    """Answer in the form of an IP address and nothing else."""
    s += cb.user("What is the IP address of the Google DNS servers?")
    s += cb.assistant(cb.gen("answer", max_tokens=32, temperature=0, regex=IP_ADDRESS))


@cb.function
def character(s, name):
    """Fill in a JSON object whose shape a regular expression fixes."""
    s += cb.user(
        f"{name} is a character in Harry Potter. Please fill in the following information about this character."
    )
    s += cb.assistant(cb.gen("json", max_tokens=256, temperature=0, regex=CHARACTER))
