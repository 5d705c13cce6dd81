"""Text that a model wrote beyond what one generation needed, and what of it serves the next ones."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Literal

import msgspec

from ..actors.sampling import SamplingParams
from .transcript import Transcript

__all__ = ["Ahead", "Piece", "unlike"]

_TOKEN_BYTES = 4
"""How long a token is taken to be where a service counts none."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What a generation gets: its text, how many tokens were written for it, and how it ended."""

    text: str
    tokens: int
    reason: Literal["stop", "length"]
    matched: str | None = None


class Ahead(msgspec.Struct, frozen=True, gc=False):
    """What one call gave, asked without stop strings and for more than was needed.

    # [0, start)   of the program's text: the prompt
    # text         what the model wrote behind it; the program may by now have said the same, or something else
    start: where in the program's text it begins.  ends: where each of its tokens ends, if that can be told.
    tokens: how many it has, 0 if the service counts none.  whole: the model ended it, and no limit did.
    sampling: how it was drawn.
    """

    start: int
    text: str
    ends: tuple[int, ...] | None
    tokens: int
    whole: bool
    sampling: SamplingParams

    def place(self, transcript: Transcript) -> int | None:
        """Give the place in `text` up to which the program has said the same; None if it said something else."""
        said = transcript.text[self.start :]
        return len(said) if transcript.length >= self.start and self.text.startswith(said) else None

    def count(self, first: int, last: int) -> int:
        """Count the tokens that characters first to last touch: exactly if `ends` are known, else by their share."""
        if last <= first:
            return 0
        if self.ends is not None:
            return bisect_left(self.ends, last) + 1 - bisect_right(self.ends, first)
        if not self.tokens:
            return -(-len(self.text[first:last].encode()) // _TOKEN_BYTES)
        return -(-(last - first) * self.tokens // len(self.text))

    def serve(self, place: int, sampling: SamplingParams, *, guess: bool = False) -> Piece | None:
        """Give what a generation at `place` would be; None if the text does not tell, and it must be asked for.

        guess: it cannot be asked for, so end it with the text, or by estimate where tokens' ends are not known.
        """
        most, stop = sampling.max_new_tokens, _first_stop(self.text, place, sampling.stop)
        if stop is not None:
            begin, matched = stop
            tokens = self.count(place, begin + len(matched))
            if tokens <= most:
                return Piece(self.text[place:begin], tokens, "stop", matched)
        elif self.whole and (tokens := self.count(place, len(self.text))) <= most:
            return Piece(self.text[place:], tokens, "stop")
        left = self.count(place, len(self.text))
        if left < most:  # a limit ended it before this one would have
            return Piece(self.text[place:], left, "length") if guess and stop is None else None
        if self.ends is not None:
            last = self.ends[bisect_right(self.ends, place) + most - 1] if most else place
        elif not place and left == most and stop is None:  # the same limit ended it
            last = len(self.text)
        elif guess:
            share = len(self.text) / self.tokens if self.tokens else float(_TOKEN_BYTES)
            last = min(place + int(most * share), len(self.text))
        else:
            return None
        return Piece(self.text[place:last], most, "length")


def unlike(one: SamplingParams, other: SamplingParams) -> str | None:
    """Name the first field in which two generations differ that one call shall serve; stops and lengths may."""
    return next(
        (
            field
            for field in SamplingParams.__struct_fields__
            if field not in ("stop", "max_new_tokens") and getattr(one, field) != getattr(other, field)
        ),
        None,
    )


def _first_stop(text: str, place: int, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Find the stop string that is complete first, and of those the longest, as a server that reads along does."""
    found = [(begin + len(stop), begin, stop) for stop in stops if (begin := text.find(stop, place)) >= 0]
    if not found:
        return None
    _, begin, stop = min(found)
    return begin, stop
