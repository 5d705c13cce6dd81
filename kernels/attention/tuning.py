"""The knobs of our Triton attention: what changes its speed and not its results."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tuning"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Block shapes, warps, pipeline stages and splits; the defaults are an H200's at head_dim 128.

    Decode.  decode_keys: keys a program takes at once.  programs: how many programs a step's keys are spread over, all
    key heads counted; as many as are resident at once, since all have as many keys.  smallest_part: no program has
    fewer keys, but the last.

    Extend.  extend_rows: queries times the heads that share a key head, of one tile.  extend_keys: as decode_keys.
    extend_programs, extend_part: where few tiles would leave the device idle, their keys are split over programs too,
    up to about so many, with no fewer keys a part.
    """

    decode_keys: int = 64
    decode_warps: int = 2
    decode_stages: int = 3
    programs: int = 528
    smallest_part: int = 64
    extend_rows: int = 128
    extend_keys: int = 128
    extend_warps: int = 8
    extend_stages: int = 3
    extend_programs: int = 264
    extend_part: int = 256

    def __post_init__(self) -> None:
        for name in ("decode_keys", "decode_warps", "extend_rows", "extend_keys", "extend_warps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"Tuning: {name} is {value}; it must be a power of two")
        for name in (
            "decode_stages",
            "programs",
            "smallest_part",
            "extend_stages",
            "extend_programs",
            "extend_part",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"Tuning: {name} is {getattr(self, name)}; it must be at least 1")
        if min(self.decode_keys, self.extend_keys, self.extend_rows) < 16:
            raise ValueError(
                "Tuning: decode_keys, extend_keys and extend_rows must be at least 16, a matrix unit's side"
            )
