"""Healing a prompt's end: the last tokens are taken back, and the model writes their text again, and goes on.

A model that was trained on text as its tokenizer writes it hardly ever sees "http:" followed by "//" where one token is
"://".  Behind a prompt that ends in ":", the likeliest continuation is then out of reach.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from .messages import Delta, Finish, Healed
from .sampling import SamplingParams

__all__ = ["Healer", "Healing"]

Decoder = Callable[[Sequence[Sequence[int]]], Awaitable[list[str]]]
"""From token ids, several times, to their texts."""


class Healer:
    """Tell which of a prompt's last tokens another token might have swallowed."""

    def __init__(self, table: Mapping[int, bytes]) -> None:
        """table: the bytes of each token that stands for text; tokens that are missing are never taken back."""
        self._table = table
        self._sorted = sorted(set(table.values()))
        self._longest = max(map(len, self._sorted), default=0)

    def take_back(self, ids: Sequence[int], limit: int) -> tuple[int, str]:
        """Give how many of the last `limit` tokens to take back, and their text; (0, "") if the end is sound.

        The longest end of the text that some longer token begins with decides: no token that reaches over the end can
        begin before it.  The first token of a prompt stays.
        """
        pieces = self._pieces(ids, min(limit, len(ids) - 1))
        data = b"".join(reversed(pieces))
        reach = next((size for size in range(len(data), 0, -1) if self._continues(data[-size:])), 0)
        size = taken = 0
        while taken < len(pieces) and (size < reach or not _is_text(data[-size:])) and reach:
            size += len(pieces[taken])
            taken += 1
        return (taken, data[-size:].decode()) if size and _is_text(data[-size:]) else (0, "")

    def _pieces(self, ids: Sequence[int], limit: int) -> list[bytes]:
        """Give the bytes of the last tokens, the last first, as far back as a token may reach."""
        pieces: list[bytes] = []
        size = 0
        while len(pieces) < limit and size < self._longest:
            piece = self._table.get(ids[-1 - len(pieces)])
            if piece is None:
                break
            pieces.append(piece)
            size += len(piece)
        return pieces

    def _continues(self, data: bytes) -> bool:
        """Whether some token is longer and begins so."""
        place = bisect_right(self._sorted, data)
        return place < len(self._sorted) and self._sorted[place].startswith(data)


class Healing:
    """One generation whose prompt was healed: it begins with `begin`, which its readers have already."""

    def __init__(self, taken: int, begin: str, decode: Decoder) -> None:
        self.taken = taken
        self._begin = begin
        self._decode = decode
        self._tokens: list[int] = []
        self._text = ""

    def sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Give the parameters of a generation that writes again what was taken back, on top of what it may write."""
        more = sampling.max_new_tokens + self.taken if sampling.max_new_tokens else 0
        return msgspec.structs.replace(sampling, heal=False, begin=self._begin, max_new_tokens=more)

    async def read(self, delta: Delta) -> Delta:
        """Take a delta; at the end, tell what became of the tokens that were taken back."""
        self._tokens += delta.tokens
        self._text += delta.text
        if delta.finish is None or delta.finish.reason in {"abort", "error"}:
            return delta
        return msgspec.structs.replace(delta, finish=await self._finish(delta.finish))

    async def _finish(self, finish: Finish) -> Finish:
        begin, tokens = self._begin, self._tokens
        first = [tokens[:count] for count in range(1, min(len(tokens), len(begin.encode())) + 1)]
        whole, kept, *heads = await self._decode([tokens, tokens[: finish.kept_tokens], *first])
        if len(whole) < len(begin) and not self._text:  # cut before that was written again: the prompt stays as it was
            return msgspec.structs.replace(finish, kept_tokens=0, tail="", healed=Healed(len(tokens)))
        # half a character is no beginning of it
        inside = max((count for count, head in enumerate(heads, 1) if begin.startswith(head)), default=0)
        rest = begin[len(heads[inside - 1]) if inside else 0 :]
        return msgspec.structs.replace(
            finish, tail=(begin + self._text)[len(kept) :], healed=Healed(inside, self.taken, rest)
        )


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
