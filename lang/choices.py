"""How one of several texts is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from ..actors.messages import Score

__all__ = ["mean_logprobs", "token_length_normalized"]


def mean_logprobs(scores: Sequence[Score]) -> list[float]:
    """Give each text's log-probability (natural log), divided by how many tokens it has."""
    return [sum(score.logprobs) / len(score.logprobs) if score.logprobs else 0.0 for score in scores]


def token_length_normalized(scores: Sequence[Score]) -> int:
    """Choose the text with the highest mean log-probability a token; the first wins a tie."""
    means = mean_logprobs(scores)
    return max(range(len(means)), key=means.__getitem__)
