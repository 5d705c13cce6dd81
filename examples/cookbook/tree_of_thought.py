"""Tree of thought: each thought is a branch, the model judges it, and only the good ones grow on.

The task: three countries of a continent, their capitals, and what to see there. Forks share everything said above
them, in the KV cache too, and a branch grows on from where it was judged.
"""

import callboard as cb


@cb.function
def travel(s, continent, wanted):
    s += cb.system("You are a helpful assistant.")
    proposals = s.fork(4)
    for seed, thought in enumerate(proposals):  # four lists of countries, drawn apart from each other
        thought += cb.user("List 3 countries.")
        thought += cb.assistant(cb.gen("countries", max_tokens=48, temperature=1, seed=seed))
    lines = [line for thought in proposals for line in thought["countries"].split("\n")]
    s["thoughts"] = countries = list(dict.fromkeys(line.split(". ")[-1].split(" - ")[0] for line in lines))

    tree = dict(zip(countries, s.fork(len(countries)), strict=True))
    for country, branch in tree.items():
        branch += cb.user(f"Is {country} in {continent}?")
        branch += cb.assistant(cb.select("verdict", ["Yes", "No"]) + ".")
    s["kept"] = [country for country, branch in tree.items() if branch["verdict"] == "Yes"][:wanted]

    for country in s["kept"]:
        tree[country] += cb.user(f"What is the capital of {country}?")
        tree[country] += cb.assistant(cb.gen("capital", max_tokens=32, temperature=0))
        tree[country] += cb.user("List two local attractions.")
        tree[country] += cb.assistant(cb.gen("sights", max_tokens=32, temperature=0))
    s["plan"] = [(tree[country]["capital"], tree[country]["sights"].replace("\n", "  ")) for country in s["kept"]]


def main() -> None:
    """Plan one journey."""
    state = travel.run(continent="Europe", wanted=3)
    print(f"thoughts: {', '.join(state['thoughts'])}")
    print(f"kept: {', '.join(state['kept'])}")
    for capital, sights in state["plan"]:
        print(f"{capital}  {sights}")


if __name__ == "__main__":
    main()
