"""Time attention over shared prefixes: rows of a group together, each row alone, and the bytes that must be read.

    python bench/kernels/tree.py [--extends | --sweep few|many|specialised] [--seconds 22]

bfloat16, head_dim 128, 8 key heads, page size 1, tables shuffled, inside CUDA graphs, one layer after the other so that
no layer's keys are cached.  Each result is first held against float32.  --sweep tries the kernel's shapes on groups of
few or of many rows, or those of the kernel with specialised warps on the latter, for so many seconds (compiled kernels
are kept: a second run gets further).
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import numpy as np
import torch
import tree_extends
from graphs import COPY_RATE, copies_for, time_us, write
from torch import Tensor

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.row_groups import Groups, PackedGroups, RowGroups
from callboard.kernels.attention.tree_tuning import TreeTile, TreeTuning
from callboard.kernels.attention.triton_attention import TritonAttention
from callboard.kernels.kv_pool import KVPool

KV_HEADS, HEAD_DIM = 8, 128
MATMUL_RATE = 799e12  # bfloat16 products a second that an H200 does, as measured on large matrices
TOLERANCE = 2e-2
# groups, rows of each, keys they share, keys of each row's own
SHAPES = (
    (4, 64, 8192, 160),
    (32, 32, 2048, 96),
    (1, 256, 4096, 128),
    (64, 4, 4096, 256),
    (16, 2, 4096, 256),
    (1, 8, 32768, 200),
    (256, 1, 1024, 64),
)
KNOBS = ("lines", "keys", "warps", "stages", "programs", "specialised")
FLASHINFER_US = {  # row by row and cascade, measured on the same kind of device
    (4, 64, 32): (1060, 440),
    (4, 64, 16): (1120, 310),
    (32, 32, 32): (1190, 1120),
    (1, 256, 32): (510, 370),
    (64, 4, 32): (620, 1490),
    (256, 1, 32): (290, 1460),
}
MANY = (
    (128, 128, 8, 3, 132),
    (128, 64, 8, 3, 132),
    (128, 64, 8, 5, 132),
    (64, 64, 4, 3, 264),
    (256, 64, 8, 3, 132),
    (64, 128, 4, 3, 132),
    (64, 64, 4, 5, 132),
    (256, 64, 16, 3, 132),
    (256, 32, 8, 3, 132),
    (128, 32, 8, 5, 132),
)
SPECIALISED = ((128, 3), (128, 2), (64, 6), (64, 4), (64, 3))  # keys, stages
FEW = (
    (16, 64, 4, 3, 528),
    (16, 64, 4, 5, 396),
    (16, 64, 2, 3, 660),
    (16, 128, 4, 3, 264),
    (16, 32, 2, 5, 792),
    (32, 64, 4, 3, 528),
    (64, 64, 4, 3, 264),
    (16, 32, 1, 3, 1056),
)


@dataclass(frozen=True)
class Case:
    """Groups of rows on a prefix each, every row with keys of its own behind it."""

    heads: int
    shape: tuple[int, int, int, int]
    pool: KVPool
    batch: AttentionBatch
    groups: RowGroups
    q_RHD: Tensor

    @property
    def rows(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def limit_us(self) -> float:
        """Every key once at the copy rate, or every product at the matrix rate."""
        groups, _, prefix, own = self.shape
        slot_bytes = KV_HEADS * 2 * HEAD_DIM * 2
        read_us = 1e6 * (groups * prefix + self.rows * own) * slot_bytes / COPY_RATE
        return max(read_us, 1e6 * 4 * self.heads * HEAD_DIM * self.rows * (prefix + own) / MATMUL_RATE)

    def attention(self, tree: TreeTuning | None = None) -> TritonAttention:
        return TritonAttention(
            self.heads,
            KV_HEADS,
            HEAD_DIM,
            max_rows=self.rows,
            device=self.q_RHD.device,
            dtype=self.q_RHD.dtype,
            tree=tree or TreeTuning(),
        )

    def grouped(self, packed: PackedGroups) -> AttentionBatch:
        words_W = torch.from_numpy(packed.words_W).to(self.q_RHD.device)
        return replace(self.batch, groups=Groups(words_W, packed.kind))

    def time_us(self, attention: TritonAttention, batch: AttentionBatch) -> float:
        plan, layers = attention.plan(batch), range(len(self.pool.entries))
        calls = [partial(attention.attend, self.q_RHD, layer, self.pool, plan) for layer in layers]
        return time_us(calls)

    def error(self, attention: TritonAttention, batch: AttentionBatch) -> float:
        """Give the largest error of the first, a middle and the last row, by float32."""
        out_RHD = attention.attend(self.q_RHD, 1, self.pool, attention.plan(batch))
        worst = 0.0
        for row in {0, self.rows // 2, self.rows - 1}:
            slots = self.batch.table_RL[row].long()
            group = self.heads // KV_HEADS
            k, v = (part[1][slots].float().repeat_interleave(group, 1) for part in (self.pool.keys, self.pool.values))
            scores = torch.einsum("hd,lhd->hl", self.q_RHD[row].float(), k) * HEAD_DIM**-0.5
            wanted = torch.einsum("hl,lhd->hd", torch.softmax(scores, 1), v)
            error = (out_RHD[row].float() - wanted).abs().max()
            worst = max(worst, float(error) if error.isfinite() else float("inf"))
        return worst


def draw(heads: int, shape: tuple[int, int, int, int], device: torch.device) -> Case:
    groups, members, prefix, own = shape
    rows, keys = groups * members, prefix + own
    slots = groups * prefix + rows * own
    layers = copies_for(slots * KV_HEADS * 2 * HEAD_DIM * 2, most=16)
    pool = KVPool(layers=layers, slots=slots, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=torch.bfloat16, device=device)
    for entries in pool.entries:
        entries.normal_()
    order = torch.randperm(slots, device=device).to(torch.int32)
    shared = order[: groups * prefix].view(groups, 1, prefix).expand(groups, members, prefix).reshape(rows, prefix)
    table_RL = torch.cat((shared, order[groups * prefix :].view(rows, own)), 1)
    wide = torch.randn(rows, (heads + 2 * KV_HEADS) * HEAD_DIM, dtype=torch.bfloat16, device=device)
    batch = AttentionBatch(
        torch.arange(rows + 1, dtype=torch.int32),
        [1] * rows,
        [keys] * rows,
        table_RL,
        table_RL[:, -1].long(),
        torch.zeros(rows, dtype=torch.int64, device=device),
        rows_R=torch.arange(rows, dtype=torch.int32, device=device),
        lengths_R=torch.full((rows,), keys, dtype=torch.int32, device=device),
    )
    whole = groups if members > 1 else 0
    told = RowGroups(
        np.arange(0, whole * members, members, dtype=np.int32),
        np.zeros(whole, np.int32),
        np.full(whole, prefix, np.int32),
        np.full(whole, members, np.int32),
        np.arange(whole * members, dtype=np.int32),
    )
    return Case(heads, shape, pool, batch, told, wide[:, : heads * HEAD_DIM].unflatten(1, (heads, HEAD_DIM)))


def table(device: torch.device) -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    print(f"{'groups x rows':<22}{'heads':>6}{'together':>10}{'alone':>9}{'limit':>8}{'of it':>7}", end="")
    print(f"{'lines':>7}{'items':>7}{'pack us':>9}{'error':>9}   flashinfer: alone, cascade")
    for shape, heads in itertools.product(SHAPES, (32, 16)):
        case = draw(heads, shape, device)
        attention = case.attention()
        packed = attention.pack(case.groups, case.rows)
        begun = perf_counter()
        for _ in range(20):
            attention.pack(case.groups, case.rows)
        pack_us = (perf_counter() - begun) / 20 * 1e6
        alone_us = case.time_us(attention, case.batch)
        error, together_us, lines, items = case.error(attention, case.batch), alone_us, 0, 0
        if packed is not None:
            batch = case.grouped(packed)
            error = max(error, case.error(attention, batch))
            together_us, items = case.time_us(attention, batch), int(packed.words_W[0])
            lines = TreeTuning().tiles[packed.kind].lines
        groups, members, prefix, own = shape
        peer = FLASHINFER_US.get((groups, members, heads), ())
        print(
            f"{f'{groups} x {members}, {prefix} + {own}':<22}{heads:>3}/{KV_HEADS}{together_us:>10.1f}{alone_us:>9.1f}"
            f"{case.limit_us:>8.1f}{case.limit_us / together_us:>7.0%}{lines:>7}{items:>7}{pack_us:>9.0f}{error:>9.1e}"
            f"{'' if error <= TOLERANCE else '  WRONG'}   {', '.join(str(us) for us in peer)}"
        )
        figure: dict[str, object] = {"groups": groups, "rows": members, "prefix": prefix, "own": own, "heads": heads}
        figures.append(
            {
                **figure,
                "together_us": together_us,
                "alone_us": alone_us,
                "limit_us": case.limit_us,
                "flashinfer_us": list(peer),
                "lines": lines,
                "items": items,
                "pack_us": pack_us,
                "error": error,
            }
        )
    return figures


def sweep(which: str, seconds: float, device: torch.device) -> list[dict[str, object]]:
    """Try shapes of the kernel, each with one, two and four times the programs (which compile nothing)."""
    shape, shapes = (SHAPES[3], FEW) if which == "few" else (SHAPES[0], MANY)
    tiles = [TreeTile(*each, products=400e3) for each in shapes]
    if which == "specialised":
        plain = tiles[0]
        tiles = [plain] + [replace(plain, keys=keys, stages=stages, specialised=True) for keys, stages in SPECIALISED]
    case, begun = draw(32, shape, device), perf_counter()
    tried: list[dict[str, object]] = []
    for number, shaped in enumerate(tiles):
        if perf_counter() - begun > seconds:
            print(f"not tried: {tiles[number:]}")
            break
        for times in (1,) if which == "specialised" else (1, 2, 4):
            tile = replace(shaped, programs=times * shaped.programs)
            knobs = {name: getattr(tile, name) for name in KNOBS}
            attention = case.attention(TreeTuning((tile,)))
            packed = attention.pack(case.groups, case.rows)
            if packed is None:
                print(f"does not pay: {knobs}")
                continue
            try:
                batch = case.grouped(packed)
                error, us = case.error(attention, batch), case.time_us(attention, batch)
            except RuntimeError as problem:  # more shared memory than there is: the others' figures still count
                print(f"{knobs}: {str(problem).splitlines()[0][:80]}")
                break
            tried.append({**knobs, "items": int(packed.words_W[0]), "error": error, "us": us})
    tried.sort(key=lambda row: float(str(row["us"])))
    print(f"{which} rows a group, {shape}, 32/8 heads, limit {case.limit_us:.1f} us; best first")
    print("       us" + "".join(f"{name:>12}" for name in (*KNOBS, "items")))
    for row in tried[:16]:
        line = "".join(f"{row[name]!s:>12}" for name in (*KNOBS, "items"))
        print(f"{float(str(row['us'])):>9.1f}{line}{'' if float(str(row['error'])) <= TOLERANCE else '  WRONG'}")
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", default="", choices=("", "few", "many", "specialised"))
    parser.add_argument("--extends", action="store_true", help="rows with several new tokens instead")
    parser.add_argument("--seconds", type=float, default=22.0)
    arguments = parser.parse_args()
    device = torch.device("cuda")
    with torch.inference_mode():
        if arguments.extends:
            write("tree_extends", tree_extends.table(device))
        elif arguments.sweep:
            write(f"tree_{arguments.sweep}", sweep(arguments.sweep, arguments.seconds, device))
        else:
            write("tree", table(device))


if __name__ == "__main__":
    main()
