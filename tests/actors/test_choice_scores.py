"""Scores of choices are the model's own, computed once each, whatever they share and whatever is cached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from callboard.actors.backend import Prompt, Scores
from callboard.actors.choice_scores import branches
from callboard.actors.engine import Engine
from callboard.actors.errors import InvalidRequest
from callboard.actors.sampling import SamplingParams

from .tiny_model import write_tiny_model

pytestmark = pytest.mark.anyio


class Reference:
    """A tiny random Llama on disk, and every choice scored by a forward pass of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = write_tiny_model(folder)
        config = LlamaConfig.from_pretrained(self.folder, initializer_range=0.4)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self._model = LlamaForCausalLM(config).eval()
        self._model.save_pretrained(self.folder)

    @torch.inference_mode()
    def logprobs(self, ids: Sequence[int], start: int) -> list[float]:
        if len(ids) <= start:
            return []
        rows = self._model(torch.tensor([list(ids)])).logits[0].log_softmax(-1)
        return [float(rows[place - 1, ids[place]]) for place in range(start, len(ids))]

    @asynccontextmanager
    async def engine(self, **options: Any) -> AsyncIterator[Engine]:
        defaults = {"seed": 1, "max_rows": 8, "kv_slots": 2048, "threads": 1}
        async with Engine(self.folder, **(defaults | options)) as engine:
            yield engine


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("llama"))


async def tokens_of(engine: Engine, prompt: Prompt, choice: str) -> list[int]:
    settled = await engine.encode(prompt.tail + choice, beginning=not prompt.tokens)
    return np.frombuffer(prompt.tokens + settled, np.int32).tolist()


async def check(engine: Engine, reference: Reference, prompt: Prompt, choices: Sequence[str]) -> Scores:
    """Hold every score against a forward pass over the whole text."""
    scores = await engine.score(prompt, choices, unconditional=True)
    for choice, score in zip(choices, scores.scores, strict=True):
        ids = await tokens_of(engine, prompt, choice)
        assert score.tokens == tuple(ids[scores.prompt_tokens :])
        assert score.logprobs == pytest.approx(reference.logprobs(ids, scores.prompt_tokens), abs=1e-4)
        assert score.unconditional[:1] == (0.0,)
        assert score.unconditional[1:] == pytest.approx(reference.logprobs(score.tokens, 1), abs=1e-4)
    return scores


CHOICES = {
    "apart": ["yes", "no", "maybe"],
    "alike": ["the capital of France", "the capital of Japan", "the capital", "the cars"],
    "merging": ["s", "is", " is Paris.", "stop"],
    "twice": ["no", "no", "none", "no"],
    "one": ["only"],
    "characters": ["größer", "grün", "東京", "東", "😀😃"],
}
PROMPTS = {
    "text": Prompt(tail="The capital of Japan i"),
    "a character": Prompt(tail="S"),
    "long": Prompt(tail="Москва 0123456789 " * 6),
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES.keys())
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
async def test_every_score_equals_a_forward_pass_cached_or_not(
    reference: Reference, prompt: Prompt, choices: list[str]
) -> None:
    async with reference.engine() as engine:
        cold = await check(engine, reference, prompt, choices)
        warm = await check(engine, reference, prompt, choices)
        assert warm.prompt_tokens == cold.prompt_tokens
        await engine.complete(prompt.tail + choices[0], SamplingParams(max_new_tokens=0))
        await check(engine, reference, prompt, choices)


async def test_choices_behind_a_generation_keep_its_tokens(reference: Reference) -> None:
    async with reference.engine() as engine:
        done = await engine.complete("The capital", SamplingParams(max_new_tokens=9, temperature=0))
        before = await engine.encode("The capital") + np.asarray(done.tokens, np.int32).tobytes()
        for tail in ("", " and", "\n"):
            scores = await check(engine, reference, Prompt(tokens=before, tail=tail), CHOICES["alike"])
            assert scores.prompt_tokens >= len(before) // 4


async def test_a_choice_that_merges_with_the_prompt_is_scored_from_where_the_tokens_differ(
    reference: Reference,
) -> None:
    async with reference.engine() as engine:
        prompt = Prompt(tail="The capital of Fran")
        alone = len(await engine.encode(prompt.tail)) // 4
        scores = await check(engine, reference, prompt, ["ce", "k"])
        assert scores.prompt_tokens < alone  # "France" is written otherwise than "Fran" + "ce"
        decoded = await engine.decode(scores.scores[0].tokens)
        assert decoded.endswith("ce")
        assert len(decoded) > 2


async def computed(engine: Engine) -> int:
    return (await engine.statistics())["scheduler"]["computed_tokens"]


async def test_the_prompt_is_computed_once_and_so_is_what_choices_share(reference: Reference) -> None:
    async with reference.engine() as engine:
        prompt = Prompt(tail="0123456789 + 12 = 24; " * 4)
        stem = " Москва and 東京 and Москва and 東京 and Москва"
        choices = [stem + end for end in (" a", " b", " c", "")]
        scores = await engine.score(prompt, choices)
        tokens = [score.tokens for score in scores.scores]
        trie = {row[: place + 1] for row in tokens for place in range(len(row))}
        # Each branch but the first computes one more, the token before it, for its logits; the stem by itself none.
        assert await computed(engine) == scores.prompt_tokens + len(trie) + 2


async def test_a_bad_prompt_is_told_as_it_is(reference: Reference) -> None:
    async with reference.engine() as engine:
        with pytest.raises(InvalidRequest, match="the context holds 256"):
            await engine.score(Prompt(tail="Москва " * 200), ["a", "b"])


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=8), st.integers(0, 2))
def test_a_trie_has_every_token_once(rows: list[list[int]], start: int) -> None:
    rows = [[9] * start + row for row in rows]
    laid = branches([np.asarray(row, np.int32).tobytes() for row in rows], start)
    assert sorted(branch.index for branch in laid) == list(range(len(rows)))
    seen: list[int] = []
    nodes: list[tuple[int, ...]] = []
    for branch in laid:
        row = rows[branch.index]
        assert branch.start >= start
        if branch.source >= 0:
            assert branch.source in seen
            assert rows[branch.source][: branch.start] == row[: branch.start]
        else:
            assert branch.start == start
        nodes += [tuple(row[: place + 1]) for place in range(branch.start, len(row))]
        seen.append(branch.index)
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == {tuple(row[: place + 1]) for row in rows for place in range(start, len(row))}
