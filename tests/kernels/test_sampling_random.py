"""A random number is a function of seed and position: the published hash, the same bits everywhere, evenly spread."""

from __future__ import annotations

import numpy as np
import torch

from callboard.kernels.random import key_of, uniform, uniform_on_device

WORD = (1 << 64) - 1


def split_mix(state: int) -> int:
    """SplitMix64 as published: advance by the golden gamma, then mix."""
    z = (state + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def test_the_hash_is_split_mix() -> None:
    assert split_mix(0) == 0xE220A8397B1DCDAF  # its published first output for seed 0
    for seed in (0, 1, 12345, (1 << 63) - 1):
        key = key_of(seed)
        for position in (0, 1, 77, 100_000):
            state = (key + position * 0x9E3779B97F4A7C15) & WORD
            number = uniform(np.array([key]), np.array([position]))[0]
            assert number == (split_mix(state) >> 32) / 2**32


def test_host_and_device_give_the_same_bits() -> None:
    keys = np.array([key_of(seed) for seed in range(500)])
    positions = np.arange(500) * 37
    on_device = uniform_on_device(torch.from_numpy(keys), torch.from_numpy(positions))
    assert on_device.dtype == torch.float64
    assert np.array_equal(on_device.numpy(), uniform(keys, positions))


def test_numbers_are_even_along_positions_and_along_seeds() -> None:
    many = 40_000
    along_positions = uniform(np.full(many, key_of(1)), np.arange(many))
    along_seeds = uniform(np.array([key_of(seed) for seed in range(many)]), np.full(many, 9))
    for numbers in (along_positions, along_seeds):
        assert numbers.min() >= 0.0
        assert numbers.max() < 1.0
        counts = np.bincount((numbers * 100).astype(int), minlength=100)
        assert ((counts - many / 100) ** 2 / (many / 100)).sum() < 99 + 4 * (2 * 99) ** 0.5
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02
