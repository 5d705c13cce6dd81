"""The knobs of attention over shared prefixes, and what its planning takes a device to be."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["DeviceRates", "TreeTile", "TreeTuning"]


@dataclass(frozen=True, slots=True)
class TreeTile:
    """One shape of the kernel: `lines` queries times the heads that share a key head attend to `keys` keys at once.

    programs: how many are launched, a few or one for each multiprocessor; they go round the items.  products: what the
    device then does in a nanosecond, in operations of matrix products, as planning sees it.
    specialised: by the kernel of tree_hopper.py where that can be had; then `warps` and what `stages` means are its
    own.
    """

    lines: int
    keys: int
    warps: int
    stages: int
    programs: int
    products: float
    specialised: bool = False

    def __post_init__(self) -> None:
        for name in ("lines", "keys", "warps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"TreeTile: {name} is {value}; it must be a power of two")
        if min(self.lines, self.keys) < 16:
            raise ValueError(f"TreeTile: lines is {self.lines}, keys is {self.keys}; a matrix unit's side is 16")
        if self.products <= 0:
            raise ValueError(f"TreeTile: products is {self.products}; it must be above 0")
        if min(self.stages, self.programs) < 1:
            raise ValueError(f"TreeTile: stages is {self.stages}, programs is {self.programs}; they must be at least 1")
        if self.specialised and (self.lines != 128 or self.keys > 128 or self.stages < 2):
            raise ValueError(
                f"TreeTile: it has {self.lines} lines, {self.keys} keys, {self.stages} stages; one that is specialised"
                " has 128 lines, at most 128 keys, and at least 2 stages"
            )


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What a device does in a nanosecond, as planning sees it; the defaults are an H200's.

    copy: bytes from memory.  cached: bytes, when programs side by side read the same.  launch_ns: what one more kernel
    in a layer costs.  item_ns: what an item takes beside its keys.  part_ns: what merging one more part takes a row.
    """

    copy: float = 4000.0
    cached: float = 7000.0
    launch_ns: float = 3000.0
    item_ns: float = 3000.0
    part_ns: float = 400.0


@dataclass(frozen=True, slots=True)
class TreeTuning:
    """How rows that share a prefix attend to it together.

    tiles: the shapes to choose among, one a step, by what its groups would cost.  smallest_part: a prefix is cut into
    parts of no fewer keys.
    """

    tiles: tuple[TreeTile, ...] = (
        TreeTile(lines=16, keys=64, warps=4, stages=3, programs=528, products=120e3),
        TreeTile(lines=64, keys=64, warps=4, stages=3, programs=264, products=300e3),
        TreeTile(lines=128, keys=128, warps=8, stages=3, programs=132, products=520e3, specialised=True),
    )
    smallest_part: int = 128
    rates: DeviceRates = DeviceRates()

    def __post_init__(self) -> None:
        if not self.tiles:
            raise ValueError("TreeTuning: tiles is (); it must have at least one")
        if self.smallest_part < 1:
            raise ValueError(f"TreeTuning: smallest_part is {self.smallest_part}; it must be at least 1")

    def narrowed(self, key_bytes: int) -> TreeTuning:
        """Take fewer keys at once where one has more than the 256 bytes that tiles are made for: memory is shared."""
        fitting = (max(16, min(tile.keys, tile.keys * 256 // key_bytes)) for tile in self.tiles)
        return replace(
            self, tiles=tuple(replace(tile, keys=keys) for tile, keys in zip(self.tiles, fitting, strict=True))
        )
