"""The knobs of our Triton attention: what changes its speed and not its results."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["DecodeTile", "ExtendTile", "Tuning"]


@dataclass(frozen=True, slots=True)
class ExtendTile:
    """One shape of the extend kernel: `lines` new tokens times the heads that share a key head, `keys` keys at once.

    programs, smallest_part: where few tiles would leave the device idle, their keys are split over programs too, up to
    about so many, with no fewer keys a part.  few: tiles of more parts are merged by a kernel of their own, which is
    launched for any step; 0: by the last of their programs, one part after the other.
    specialised: by the kernel of extend_hopper.py where that can be had; then `warps` and what `stages` means are its
    own, and `programs` is how many are launched.
    """

    lines: int = 128
    keys: int = 128
    warps: int = 8
    stages: int = 3
    programs: int = 264
    smallest_part: int = 256
    few: int = 0
    specialised: bool = False

    def __post_init__(self) -> None:
        for name in ("lines", "keys", "warps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"ExtendTile: {name} is {value}; it must be a power of two")
        for name in ("stages", "programs", "smallest_part"):
            if getattr(self, name) < 1:
                raise ValueError(f"ExtendTile: {name} is {getattr(self, name)}; it must be at least 1")
        if self.few < 0:
            raise ValueError(f"ExtendTile: few is {self.few}; it must be at least 0")
        if min(self.lines, self.keys) < 16:
            raise ValueError(f"ExtendTile: lines is {self.lines}, keys is {self.keys}; a matrix unit's side is 16")
        if self.specialised and (self.lines != 128 or self.keys > 128 or self.stages < 2 or self.few != 1):
            raise ValueError(
                f"ExtendTile: it has {self.lines} lines, {self.keys} keys, {self.stages} stages, and few is {self.few};"
                " one that is specialised has 128 lines, at most 128 keys, at least 2 stages, and few is 1"
            )

    def fitted(self, heads: int, key_bytes: int) -> ExtendTile:
        """Take at least so many lines, and fewer keys where one has more than the 256 bytes that tiles are made for."""
        keys = max(16, min(self.keys, self.keys * 256 // key_bytes))
        lines = max(self.lines, heads)
        return replace(self, lines=lines, keys=keys, specialised=self.specialised and lines == self.lines)


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """One shape of the decode kernel: `keys` of a row at once, for the heads that share a key head.

    programs: how many programs a step's keys are spread over, all key heads counted; as many as are resident at once,
    since all have as many keys.  smallest_part: no program has fewer keys, but the last.
    """

    keys: int = 64
    warps: int = 2
    stages: int = 3
    programs: int = 528
    smallest_part: int = 64

    def __post_init__(self) -> None:
        for name in ("keys", "warps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"DecodeTile: {name} is {value}; it must be a power of two")
        for name in ("stages", "programs", "smallest_part"):
            if getattr(self, name) < 1:
                raise ValueError(f"DecodeTile: {name} is {getattr(self, name)}; it must be at least 1")
        if self.keys < 16:
            raise ValueError(f"DecodeTile: keys is {self.keys}; a matrix unit's side is 16")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Block shapes, warps, pipeline stages and splits; the defaults are an H200's at head_dim 128.

    decode: of rows that attend alone.  own: of what is a row's own behind what its groups attend to, mostly few keys.
    extend: the tile of a step with prompts.  short: that of a step none of whose extends has more new tokens than fit
    into one of these: a cached prompt's last token, a few words behind branches that were joined; and of any step with
    `few_tokens` new tokens of extends at most.
    """

    decode: DecodeTile = DecodeTile()
    own: DecodeTile = DecodeTile(keys=32, warps=1, programs=1056, smallest_part=32)
    extend: ExtendTile = ExtendTile(programs=132, few=1, specialised=True)
    short: ExtendTile = ExtendTile(lines=64, keys=64, warps=4, stages=5, smallest_part=64, few=3)
    few_tokens: int = 64
