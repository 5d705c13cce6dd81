"""What a worker would answer to a step, with tokens drawn at random, for benches without a model."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from callboard.actors.messages import Step, StepDone, Tokens
from callboard.actors.scheduler.settle import settle
from callboard.actors.scheduler.state import State

__all__ = ["said", "settle_at_random"]


def settle_at_random(state: State, step: Step, rng: random.Random) -> Tokens | None:
    """Settle a step and give its news, if there is any."""
    begun = np.array([extend.row for extend in step.extends if extend.sample], np.int32)
    rows = np.concatenate((begun, np.frombuffer(step.decode_rows, np.int32)))
    tokens = np.array([rng.randrange(4000) for _ in rows], np.int32)
    settle(state, StepDone(step.number, rows.tobytes(), tokens.tobytes()))
    return state.news.take(step.number)


def said(news: Tokens) -> Iterator[tuple[int, int]]:
    """Give each token of the news behind its request."""
    requests, tokens = np.frombuffer(news.requests, np.int64), np.frombuffer(news.tokens, np.int32)
    return zip(requests.tolist(), tokens.tolist(), strict=True)
