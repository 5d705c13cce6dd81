"""How one of several texts is chosen, by the log-probabilities of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..actors.errors import InvalidRequest
from ..actors.messages import Score

__all__ = [
    "ChoicesMethod",
    "Decision",
    "choices_method_named",
    "greedy_token_selection",
    "mean_logprobs",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
]


class Decision(msgspec.Struct, frozen=True):
    """Which text was chosen, and what the method has to tell beside the scores, as metadata."""

    index: int
    meta: dict[str, Any] = {}


class ChoicesMethod(msgspec.Struct, frozen=True):
    """A way to choose among scored texts; make one of your own with a `decide` that tells the Decision.

    unconditional: whether it needs the log-probabilities of each text's tokens without the prompt.  Called with
    scores, it gives the index of the chosen one.
    """

    name: str
    decide: Callable[[Sequence[Score]], Decision]
    unconditional: bool = False

    def __call__(self, scores: Sequence[Score]) -> int:
        return self.decide(scores).index


def mean_logprobs(scores: Sequence[Score]) -> list[float]:
    """Give each text's log-probability (natural log), divided by how many tokens it has."""
    return [_mean(score.logprobs) for score in scores]


def choices_method_named(method: Any) -> ChoicesMethod:
    """Give a method as it is, by its name, or for None the usual one; raises InvalidRequest, naming those there are."""
    if isinstance(method, ChoicesMethod):
        return method
    if method is None:
        return token_length_normalized
    for known in (token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized):
        if method == known.name:
            return known
    raise InvalidRequest(
        "choices_method",
        f"{method!r:.80} is unknown; there are token_length_normalized, greedy_token_selection and "
        "unconditional_likelihood_normalized, and a ChoicesMethod of your own",
    )


def _by_mean(scores: Sequence[Score]) -> Decision:
    return Decision(_highest(mean_logprobs(scores)))


def _token_by_token(scores: Sequence[Score]) -> Decision:
    """Go through the tokens and keep those that are likeliest so far; a text that is over stands with its mean."""
    longest = max(len(score.logprobs) for score in scores)
    matrix = [[*score.logprobs, *[_mean(score.logprobs)] * (longest - len(score.logprobs))] for score in scores]
    remaining = list(range(len(scores)))
    for column in range(longest):
        best = max(matrix[index][column] for index in remaining)
        remaining = [index for index in remaining if matrix[index][column] == best]
        if len(remaining) == 1:
            break
    return Decision(remaining[0], {"greedy_logprob_matrix": matrix})


def _by_gain(scores: Sequence[Score]) -> Decision:
    """Compare how much likelier the prompt makes each text, as a mean a token."""
    gains = [
        _mean([given - alone for given, alone in zip(score.logprobs, score.unconditional, strict=True)])
        for score in scores
    ]
    return Decision(
        _highest(gains),
        {
            "unconditional_token_logprobs": [_triples(score.tokens, score.unconditional) for score in scores],
            "normalized_unconditional_prompt_logprobs": gains,
        },
    )


def _triples(tokens: Sequence[int], logprobs: Sequence[float]) -> list[tuple[float, int, None]]:
    # The third is the token's text, which only a tokenizer knows.
    return [(logprob, token, None) for token, logprob in zip(tokens, logprobs, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _highest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


token_length_normalized = ChoicesMethod("token_length_normalized", _by_mean)
"""Choose the text with the highest mean log-probability a token; the first wins a tie."""

greedy_token_selection = ChoicesMethod("greedy_token_selection", _token_by_token)
"""Choose token by token: the texts whose first token is the likeliest, of these those whose second is, and so on.

A text that is over stands with its own mean; the first wins a tie.  No text is preferred because it is long, or because
its end is easily guessed.
"""

unconditional_likelihood_normalized = ChoicesMethod("unconditional_likelihood_normalized", _by_gain, unconditional=True)
"""Choose the text that the prompt makes most likelier: the highest mean of log-probability with it less that without.

A text's first token has none without a prompt; it counts as 0.  The first wins a tie.
"""
