"""Choices scored by a service that tells the log-probabilities of what it was given."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec

from ...actors.backend import Scores
from ...actors.errors import InvalidRequest
from ...actors.messages import Score

__all__ = ["ReadToken", "score_read", "verify_continuations"]


class ReadToken(msgspec.Struct, frozen=True):
    """A token the service has read: what tells it from others, its id (-1 if untold), its log-probability."""

    identity: Hashable
    token: int
    logprob: float | None


def verify_continuations(continuations: Sequence[str]) -> None:
    """Raise InvalidRequest if there is nothing to choose from."""
    if not continuations or any(not text for text in continuations):
        raise InvalidRequest("choices", "at least one is needed, and none may be empty")


def score_read(
    continuations: Sequence[str], alone: Sequence[ReadToken], read: Sequence[Sequence[ReadToken]], *, first: int
) -> Scores | None:
    """Score continuations by the tokens that are read behind what all of them and the prompt alone have in common.

    alone, read: the tokens of the prompt, and of prompt + continuation, from position `first` on.  At least one token
    of each is scored; the first of a text never is, for it follows nothing.  None if the common part must begin before
    `first`.  The prompt and a continuation are tokenized as one, so that no choice pays for a token boundary.
    """
    shortest = min(map(len, read))
    common = 0
    while (
        common < min(len(alone), shortest)
        and len({alone[common].identity, *(one[common].identity for one in read)}) == 1
    ):
        common += 1
    common = min(common, shortest - 1)
    common = max(common, 1 - first, 0)
    scored = _agreed([one[common:] for one in read])
    untold = any(token.logprob is None for one in scored for token in one)
    if (first > 1 and common == 0) or (first > 0 and untold):
        return None
    return Scores(
        scores=tuple(
            Score(
                text=text,
                tokens=tuple(token.token for token in tokens if token.logprob is not None),
                logprobs=tuple(token.logprob for token in tokens if token.logprob is not None),
            )
            for text, tokens in zip(continuations, scored, strict=True)
        ),
        settled=(),
        prompt_tokens=first + common,
    )


def _agreed(rows: Sequence[Sequence[ReadToken]]) -> list[list[ReadToken]]:
    """Give what begins alike the same log-probabilities: a service that reads texts apart may round them apart."""
    agreed: list[list[ReadToken]] = []
    trie: dict[tuple[int, Hashable], int] = {}  # a node and the identity behind it, to the node there
    tokens: dict[int, ReadToken] = {}
    for row in rows:
        node, here = 0, list[ReadToken]()
        for token in row:
            node = trie.setdefault((node, token.identity), len(trie) + 1)
            here.append(tokens.setdefault(node, token))
        agreed.append(here)
    return agreed
