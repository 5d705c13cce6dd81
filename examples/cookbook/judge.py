"""A judge: one branch a dimension, a verdict by choices, and a mark from their log-probabilities.

The branches share the review, so its tokens are computed once, whatever the number of dimensions.
"""

import math

import callboard as cb

REVIEWS = (
    {"service": "The staff was awful.", "quality": "The camera is wonderful.", "price": "It was worth every cent."},
    {"service": "The service was great.", "quality": "The design was not boring, it was beautiful.",
     "price": "I want my money back."},
)  # fmt: skip


@cb.function
def judge(s, review):
    s += cb.system("You judge reviews, one sentence at a time.")
    with s.fork(len(review)) as branches:
        for sentence, branch in zip(review.values(), branches, strict=True):
            branch += cb.user(f"Is this review positive or negative? {sentence}")
            branch += cb.assistant(cb.select("verdict", ["positive", "negative"]))
    marks = [mark(branch.get_meta_info("verdict")["normalized_prompt_logprobs"]) for branch in branches]
    s["marks"] = dict(zip(review, marks, strict=True))


def mark(logprobs: tuple[float, float]) -> float:
    """Give the share of "positive" among the two, from 0 to 1."""
    return 1 / (1 + math.exp(logprobs[1] - logprobs[0]))


def main() -> None:
    """Judge two reviews in three dimensions each."""
    for review, state in zip(REVIEWS, judge.run_batch([{"review": review} for review in REVIEWS]), strict=True):
        print(" ".join(review.values()))
        marks = state["marks"]
        print("  " + ", ".join(f"{name} {mark:.1f}" for name, mark in marks.items()), end="")
        print(f" -> {sum(marks.values()) / len(marks):.2f} ({', '.join(state['verdict'])})")


if __name__ == "__main__":
    main()
