"""Which beginnings of prompts a replica was sent, by digests of their blocks: what is likely to be in its cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["BLOCK", "SentPrefixes", "block_digests"]

BLOCK = 64
"""How many tokens are known or unknown together: fewer are computed sooner than their placing is worth."""
_MOST = 1 << 16
"""How many blocks are remembered at most, some 140 bytes each: of 4 million tokens."""


def block_digests(prompt: bytes, namespace: str) -> list[int]:
    """Give a digest a whole block of a prompt, int32: of all that stands before its end, and of its namespace.

    64 bits, by a key that each process draws; two that are equal by chance cost a prompt computed twice.
    """
    size = 4 * BLOCK
    digest = hash(namespace)
    found: list[int] = []
    for end in range(size, len(prompt) + 1, size):
        digest = hash((digest, prompt[end - size : end]))
        found.append(digest)
    return found


class SentPrefixes:
    """Remember the prefixes a replica was sent last, of as many tokens as its cache has slots.

    What was not asked for again for longest is forgotten first, and of a prompt its end before its beginning, as
    the cache does.
    """

    def __init__(self, slots: int) -> None:
        self._bound = max(1, min(slots // BLOCK, _MOST))
        self._blocks: OrderedDict[int, None] = OrderedDict()  # the longest idle first

    def __len__(self) -> int:
        return len(self._blocks)

    def known(self, digests: Sequence[int]) -> int:
        """Tell how many of a prompt's tokens it was sent before, from the first on."""
        blocks = self._blocks
        for count, digest in enumerate(digests):
            if digest not in blocks:
                return count * BLOCK
        return len(digests) * BLOCK

    def add(self, digests: Sequence[int]) -> None:
        """Remember a prompt."""
        blocks = self._blocks
        for digest in digests[self._bound - 1 :: -1]:
            blocks[digest] = None
            blocks.move_to_end(digest)
        while len(blocks) > self._bound:
            blocks.popitem(last=False)

    def forget(self) -> None:
        """Remember nothing, as a cache that was emptied."""
        self._blocks.clear()
