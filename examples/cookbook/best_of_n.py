"""Best of n: draw candidates, let the model score each by how likely it finds "Yes", and take the best.

A choice keeps the log-probability of every text it could have been, so a verdict is a number, too.
"""

import callboard as cb


@cb.function
def best_capital(s, country, count):
    draw = s.fork(count)
    for seed, branch in enumerate(draw):
        branch += cb.user(f"What is the capital of {country}?")
        branch += cb.assistant(
            "Answer: " + cb.gen("city", max_tokens=8, temperature=3, top_k=4, seed=seed, regex="[A-Z][a-z ]{3,15}")
        )
    cities = list(dict.fromkeys(branch["city"].strip() for branch in draw))
    checks = s.fork(len(cities))
    for city, branch in zip(cities, checks, strict=True):
        branch += cb.user(f"Is {city} the capital of {country}?")
        branch += cb.assistant(cb.select("verdict", ["Yes", "No"]))
    scores = [branch.get_meta_info("verdict")["normalized_prompt_logprobs"] for branch in checks]
    margins = {city: yes - no for city, (yes, no) in zip(cities, scores, strict=True)}
    s["candidates"] = cities
    s["best"] = max(margins, key=lambda city: margins[city])


def main() -> None:
    """Do so for three countries."""
    for country in ("Norway", "Bhutan", "Chile"):
        state = best_capital.run(country=country, count=8)
        print(f"{country}: {state['best']}  (of {', '.join(state['candidates'])})")


if __name__ == "__main__":
    main()
