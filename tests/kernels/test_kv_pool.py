"""Every slot keeps what was written to it, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from callboard.kernels.kv_pool import KVPool


def build(**changes: int) -> KVPool:
    sizes = {"layers": 2, "slots": 10, "kv_heads": 3, "head_dim": 4} | changes
    return KVPool(**sizes, dtype=torch.float32, device=torch.device("cpu"))


def test_written_tokens_are_read_back_by_slot() -> None:
    pool, slots = build(), torch.tensor([7, 0, 3])
    keys, values = torch.randn(3, 3, 4), torch.randn(3, 3, 4)
    pool.write(1, slots, keys, values)
    assert torch.equal(pool.keys[1][slots], keys)
    assert torch.equal(pool.values[1][slots], values)
    untouched = [1, 2, 4, 5, 6, 8, 9, 10]
    assert not pool.keys[1][untouched].any()
    assert not pool.values[1][untouched].any()
    assert not pool.entries[0].any()


def test_an_entry_is_each_heads_key_and_then_its_value() -> None:
    pool = build()
    keys, values = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    pool.write(0, torch.tensor([5]), keys, values)
    assert torch.equal(pool.entries[0][5].view(3, 2, 4), torch.stack((keys[0], values[0]), 1))


def test_the_dummy_slot_is_one_more_than_was_asked_for() -> None:
    pool = build()
    assert pool.dummy_slot == 10
    assert pool.keys[0].shape == pool.values[0].shape == (11, 3, 4)


def test_size_counts_every_layer() -> None:
    assert build().size_bytes == 2 * 11 * 3 * 2 * 4 * 4


@pytest.mark.parametrize("name", ["layers", "slots", "kv_heads", "head_dim"])
def test_an_empty_pool_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        build(**{name: 0})
