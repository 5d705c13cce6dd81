"""How much of the KV pool decoding rows read, and how much they would if each read its own."""

from __future__ import annotations

import numpy as np

from ...kernels.kv_pool import KVPool

__all__ = ["KVReads"]


class KVReads:
    """Count the bytes of keys and values that decode steps read, all layers together.

    windows: as in ModelConfig.  What rows share is counted once a group, as if what a second tile reads were still
    cached.
    """

    def __init__(self, pool: KVPool, windows: tuple[int | None, ...]) -> None:
        layers = len(pool.entries)
        self._slot_bytes = pool.entries[0][:1].nbytes  # of one layer
        self._windows = [window for window in windows if window is not None]
        self._whole = layers - len(self._windows)
        self._read = 0
        self._unshared = 0

    def count(self, lengths: np.ndarray, saved_tokens: int) -> None:
        """Count a step.  lengths: of its decoding rows.  saved_tokens: keys that a layer without window reads less."""
        tokens = self._whole * int(lengths.sum())
        for window in self._windows:
            tokens += int(np.minimum(lengths, window).sum())
        self._unshared += tokens * self._slot_bytes
        self._read += (tokens - self._whole * saved_tokens) * self._slot_bytes

    def statistics(self) -> dict[str, int]:
        return {"kv_bytes_read": self._read, "kv_bytes_unshared": self._unshared}
