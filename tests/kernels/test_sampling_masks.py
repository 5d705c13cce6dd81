"""Masks keep out exactly the tokens whose bits are not set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callboard.kernels.masks import apply_bitmask, ban


@pytest.mark.parametrize(("vocabulary", "words"), [(64, 2), (70, 3), (70, 2), (40, 3)])
def test_a_bitmask_allows_its_bits(vocabulary: int, words: int) -> None:
    generator = np.random.default_rng(0)
    masks = torch.from_numpy(generator.integers(-(2**31), 2**31, (3, words), dtype=np.int64).astype(np.int32))
    logits = torch.zeros(3, vocabulary)
    apply_bitmask(logits, masks)
    for row in range(3):
        for token in range(vocabulary):
            word = int(masks[row, token // 32]) if token < 32 * words else 0
            assert (logits[row, token] == 0) == bool(word >> (token % 32) & 1)


def test_bans_hit_their_tokens_alone() -> None:
    logits = torch.zeros(2, 4)
    ban(logits, torch.tensor([0, 1, 1]), torch.tensor([3, 0, 0]))
    assert logits.isinf().tolist() == [[False, False, False, True], [True, False, False, False]]
