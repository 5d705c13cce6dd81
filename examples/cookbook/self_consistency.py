"""Self-consistency: draw several answers to one question and take the one that most of them give.

`n` texts of one generation share their prompt; with a seed, each draws its own, and the run repeats.
"""

from collections import Counter

import callboard as cb


@cb.function
def answers(s, question):
    s += cb.user(question)
    s += cb.assistant("Answer: " + cb.gen("answer", n=16, max_tokens=8, temperature=2.5, seed=0))


def main() -> None:
    """Ask three questions, sixteen times each."""
    for question in ("What is 48 + 29?", "What is the capital of Australia?", "What is the chemical symbol for gold?"):
        votes = Counter(text.strip() for text in answers.run(question=question)["answer"])
        answer, count = votes.most_common(1)[0]
        print(f"{question} {answer}  ({count} of 16 say so, {len(votes)} answers differ)")


if __name__ == "__main__":
    main()
