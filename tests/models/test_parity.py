"""The same weights give the same logits as in transformers, however a sequence is cut, cached, shared and batched."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from callboard.models.layers import HalfLinear, PlainLinear

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "yarn with every field": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.3,
            "truncate": False,
        }
    },
    "yarn with its own magnitude": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "attention_factor": 1.3,
        }
    },
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one key head": {"num_key_value_heads": 1},
    "a key head each": {"num_key_value_heads": 6},
    "head_dim of its own": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one layer, two heads": {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2},
}


# 12 keys a query: the sequences below are up to ten times as long.
WINDOW = {"use_sliding_window": True, "sliding_window": 12}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama 1": {"num_key_value_heads": 6, "max_position_embeddings": 2048},
    "llama 3": {"tie_word_embeddings": True, **SCALINGS["llama3"]},
    "mistral": {"family": "mistral", "sliding_window": None},
    "mistral with a window": {"family": "mistral", "sliding_window": 12, "head_dim": 10},
    "qwen2": {"family": "qwen2", "sliding_window": 12},
    "qwen2.5 stretched": {"family": "qwen2", "tie_word_embeddings": True, **SCALINGS["yarn"]},
    "qwen2 with windows": {"family": "qwen2", "max_window_layers": 1, **WINDOW},
    "qwen2 with windows here and there": {
        "family": "qwen2",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        **WINDOW,
    },
    "qwen3": {"family": "qwen3", "head_dim": 20, "tie_word_embeddings": True},
    "qwen3 with biases": {"family": "qwen3", "head_dim": 8, "attention_bias": True},
    "qwen3 with windows": {"family": "qwen3", "head_dim": 16, "max_window_layers": 2, **WINDOW},
}


def draw_tokens(generator: random.Random, count: int) -> list[int]:
    return [generator.randrange(97) for _ in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_whole_in_chunks_shared_and_in_mixed_steps(pair: Any, runner: Any, row: Any, family: str) -> None:
    seed = 1 + list(FAMILIES).index(family)
    models = pair(seed, **FAMILIES[family])
    run, generator = runner(models.model, seed), random.Random(seed)
    whole, cut, decoded = (row(draw_tokens(generator, 80)) for _ in range(3))
    run.step([(whole, 80)])
    for chunk in (9, 30, 1):
        run.step([(cut, chunk)])
    shared = [run.share(whole, length, draw_tokens(generator, 20)) for length in (3, 40, 80)]
    run.step([(decoded, 60), (cut, 20), (shared[0], 10), (shared[1], 1)])
    rows = [decoded, cut, *shared]
    for _ in range(8):
        run.step([(each, 1) for each in rows])
    for each in (whole, *rows):
        models.check(each)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_every_rope_scaling_whole_and_in_chunks(pair: Any, runner: Any, row: Any, scaling: str, tied: bool) -> None:
    seed = 100 + 2 * list(SCALINGS).index(scaling) + tied
    models = pair(seed, tie_word_embeddings=tied, **SCALINGS[scaling])
    run, tokens = runner(models.model, seed), draw_tokens(random.Random(seed), 120)
    whole, cut = row(tokens), row(tokens)
    run.step([(whole, 120)])
    for chunk in (50, 1, 37, 32):
        run.step([(cut, chunk)])
    models.check(whole)
    models.check(cut)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_heads_in_one_mixed_step(pair: Any, runner: Any, row: Any, shape: str, tied: bool) -> None:
    seed = 200 + 2 * list(SHAPES).index(shape) + tied
    models = pair(seed, tie_word_embeddings=tied, **SHAPES[shape])
    run, generator = runner(models.model, seed), random.Random(seed)
    new, extended, decoded = (row(draw_tokens(generator, 60)) for _ in range(3))
    run.step([(extended, 20), (decoded, 33)])
    run.step([(decoded, 1), (new, 25), (extended, 17)])
    for each in (new, extended, decoded):
        models.check(each)


def test_rows_decode_together(pair: Any, runner: Any, row: Any) -> None:
    models = pair(301)
    run, generator = runner(models.model, 301), random.Random(301)
    rows = [row(draw_tokens(generator, length + 12)) for length in (1, 5, 40, 41, 2, 17, 90)]
    for each in rows:
        run.step([(each, len(each.tokens) - 12)])
    for _ in range(12):
        run.step([(each, 1) for each in rows])
    for each in rows:
        models.check(each)


def test_rows_of_one_length_decode_together(pair: Any, runner: Any, row: Any) -> None:
    models = pair(302)
    run, generator = runner(models.model, 302), random.Random(302)
    rows = [row(draw_tokens(generator, 30)) for _ in range(5)]
    run.step([(each, 20) for each in rows])
    for _ in range(10):
        run.step([(each, 1) for each in rows])
    for each in rows:
        models.check(each)


def test_a_cached_prefix_of_another_row_is_as_good_as_ones_own(pair: Any, runner: Any, row: Any) -> None:
    models = pair(303)
    run, generator = runner(models.model, 303), random.Random(303)
    first = row(draw_tokens(generator, 50))
    run.step([(first, 50)])
    others = [run.share(first, length, draw_tokens(generator, 30)) for length in (1, 25, 49, 50)]
    run.step([(each, 29) for each in others])
    run.step([(each, 1) for each in others])
    for each in (first, *others):
        models.check(each)


@pytest.mark.parametrize("native", [True, False])
def test_tokens_of_which_nothing_is_wanted_leave_their_keys_and_values(
    pair: Any, runner: Any, row: Any, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    models = pair(304)
    model = models.model
    if not native:
        monkeypatch.setattr(model, "native", None)
    forward = model.forward

    def write(tokens_T: Any, *others: Any) -> Any:
        """Compute the step as if nobody wanted anything; what the runner would read is made up."""
        hidden_NC = forward(tokens_T, *others, tokens_T[:0])
        assert hidden_NC.shape == (0, model.config.hidden)
        return hidden_NC.new_zeros(len(tokens_T), model.config.hidden)

    run, generator = runner(model, 304), random.Random(304)
    each = row(draw_tokens(generator, 60))
    monkeypatch.setattr(model, "forward", write)
    run.step([(each, 50)])
    monkeypatch.setattr(model, "forward", forward)
    run.step([(each, 9)])
    run.step([(each, 1)])
    torch.testing.assert_close(torch.stack(each.logits)[50:], models.wanted(each.tokens)[50:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", range(400, 408))
def test_random_trees_of_prefixes_in_random_steps(pair: Any, runner: Any, row: Any, seed: int) -> None:
    """Rows fork from each other at random lengths; each step extends some, decodes some and leaves some alone."""
    generator = random.Random(seed)
    shape = SHAPES[generator.choice(list(SHAPES))]
    models = pair(seed, **shape, **SCALINGS[generator.choice(list(SCALINGS))])
    run = runner(models.model, seed, slots=2000)
    rows = [row(draw_tokens(generator, generator.randrange(20, 100)))]
    for _ in range(25):
        if len(rows) < 10 and generator.random() < 0.5:
            parent = generator.choice(rows)
            shared = generator.randrange(len(parent.slots) + 1)
            rows.append(run.share(parent, shared, draw_tokens(generator, generator.randrange(1, 120 - shared))))
        work = []
        for each in generator.sample(rows, generator.randrange(1, len(rows) + 1)):
            left = len(each.tokens) - len(each.slots)
            if left:
                work.append((each, 1 if generator.random() < 0.6 else generator.randrange(1, left + 1)))
        if work:
            run.step(work)
    computed = [each for each in rows if each.slots]
    assert computed
    for each in computed:
        models.check(each)


@pytest.mark.parametrize("chunks", [[1] * 60, [60], [20, 30, 10]], ids=["token by token", "whole", "in chunks"])
def test_dynamic_rope_past_the_trained_length_is_as_if_decoded_token_by_token(
    pair: Any, runner: Any, row: Any, chunks: list[int]
) -> None:
    models = pair(
        500,
        max_position_embeddings=24,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
    )
    assert models.model.config.context_length == 72
    tokens = draw_tokens(random.Random(500), 60)
    cache = DynamicCache(config=models.peer.config)
    with torch.inference_mode():
        wanted = [models.peer(torch.tensor([[token]]), past_key_values=cache).logits[0, 0] for token in tokens]
    run, mine = runner(models.model, 500), row(tokens)
    for chunk in chunks:
        run.step([(mine, chunk)])
    torch.testing.assert_close(torch.stack(mine.logits), torch.stack(wanted), rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("biased", [False, True], ids=["without biases", "with biases"])
@pytest.mark.parametrize("saved_as", [torch.bfloat16, torch.float16])
def test_packing_the_weights_of_a_half_checkpoint_loses_nothing(
    pair: Any, runner: Any, row: Any, saved_as: torch.dtype, biased: bool
) -> None:
    shape = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8}
    models = pair(600, saved_as, mlp_bias=biased, attention_bias=biased, initializer_range=0.06, **shape)
    assert isinstance(models.model.head, HalfLinear)
    assert isinstance(models.model.layers[0].down, HalfLinear)
    tokens = draw_tokens(random.Random(600), 40)
    run, mine = runner(models.model, 600), row(tokens)
    run.step([(mine, 39)])
    run.step([(mine, 1)])
    models.check(mine)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_weights_that_float16_cannot_hold_stay_as_they_are(pair: Any) -> None:
    models = pair(601, vocab_size=2048, hidden_size=256, intermediate_size=1024, num_attention_heads=8)
    assert isinstance(models.model.head, PlainLinear)
    assert isinstance(models.model.layers[0].down, PlainLinear)
