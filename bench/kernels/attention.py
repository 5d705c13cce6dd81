"""Time our paged attention beside the bytes it must read (decode) or the products it must do (extend).

    python bench/kernels/attention.py [--only decode|extend] [--sweep]

Everything in bfloat16, head_dim 128, 8 key heads, page size 1, tables shuffled, inside CUDA graphs, one layer after the
other so that no layer's keys are cached.  Each result is first held against float32.  --sweep tries the knobs.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from functools import partial

import torch
from graphs import COPY_RATE, copies_for, time_us, write
from torch import Tensor

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.triton_attention import Extend, TritonAttention
from callboard.kernels.attention.tuning import DecodeTile, ExtendTile, Tuning
from callboard.kernels.kv_pool import KVPool

KV_HEADS, HEAD_DIM = 8, 128
MATMUL_RATE = 799e12  # bfloat16 products a second that an H200 does, as measured on large matrices
HEADS = (32, 16)
DECODES = [(128, 2048), (256, 1024), (256, 550), (64, 1200), (8, 4096), (1, 500), (1, 8192)]
EXTENDS = [(1, 8192, 8192), (8, 2048, 2048), (8, 1024, 1024), (16, 512, 512), (1, 512, 8704), (8, 512, 7680)]
EXTENDS += [(8, 32, 8192), (1, 8, 16440), (16, 8, 1024), (4, 16, 8192), (1, 32, 8192), (1, 64, 4096)]  # few new tokens
WAYS: tuple[Extend, ...] = ("triton", "flash", "cudnn")
TOLERANCE = 2e-2


@dataclass(frozen=True)
class Case:
    """Rows that have `keys` keys each, the last `queries` of them new."""

    heads: int
    rows: int
    queries: int
    keys: int
    pool: KVPool
    batch: AttentionBatch
    q_THD: Tensor

    @property
    def size_bytes(self) -> int:
        return self.rows * self.keys * KV_HEADS * 2 * HEAD_DIM * 2

    @property
    def operations(self) -> float:
        seen = self.queries * self.keys - self.queries * (self.queries - 1) / 2
        return 4.0 * self.rows * seen * self.heads * HEAD_DIM

    @property
    def limit_us(self) -> float:
        return 1e6 * max(self.size_bytes / COPY_RATE, self.operations / MATMUL_RATE)

    def attention(self, tuning: Tuning | None = None, extend: Extend = "triton") -> TritonAttention:
        return TritonAttention(
            self.heads,
            KV_HEADS,
            HEAD_DIM,
            max_rows=self.rows,
            device=self.q_THD.device,
            dtype=self.q_THD.dtype,
            tuning=tuning,
            extend=extend,
        )

    def time_us(self, attention: TritonAttention) -> float:
        plan, layers = attention.plan(self.batch), range(len(self.pool.entries))
        return time_us([lambda layer=layer: attention.attend(self.q_THD, layer, self.pool, plan) for layer in layers])

    def error(self, attention: TritonAttention) -> float:
        """Give the largest error of some queries of the first, a middle and the last row, by float32."""
        out_THD = attention.attend(self.q_THD, 1, self.pool, attention.plan(self.batch))
        worst = 0.0
        for row in {0, self.rows // 2, self.rows - 1}:
            slots = self.batch.table_RL[row].long()
            group = self.heads // KV_HEADS
            k, v = (part[1][slots].float().repeat_interleave(group, 1) for part in (self.pool.keys, self.pool.values))
            for query in {0, 1 % self.queries, self.queries // 2, self.queries - 1}:
                seen, token = self.keys - self.queries + query + 1, row * self.queries + query
                scores = torch.einsum("hd,lhd->hl", self.q_THD[token].float(), k[:seen]) * HEAD_DIM**-0.5
                wanted = torch.einsum("hl,lhd->hd", torch.softmax(scores, 1), v[:seen])
                error = (out_THD[token].float() - wanted).abs().max()
                worst = max(worst, float(error) if error.isfinite() else float("inf"))
        return worst


def draw(heads: int, rows: int, queries: int, keys: int, device: torch.device) -> Case:
    tokens, slots = rows * queries, rows * keys
    layers = copies_for(slots * KV_HEADS * 2 * HEAD_DIM * 2, most=32)
    pool = KVPool(layers=layers, slots=slots, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=torch.bfloat16, device=device)
    for entries in pool.entries:
        entries.normal_()
    table_RL = torch.randperm(slots, device=device).to(torch.int32).view(rows, keys)
    starts_R1 = torch.arange(0, tokens + 1, queries, dtype=torch.int32)
    wide = torch.randn(tokens, (heads + 2 * KV_HEADS) * HEAD_DIM, dtype=torch.bfloat16, device=device)
    batch = AttentionBatch(
        starts_R1,
        [queries] * rows,
        [keys] * rows,
        table_RL,
        table_RL[:, -queries:].reshape(-1).long(),
        torch.zeros(tokens, dtype=torch.int64, device=device),
        rows_R=torch.arange(rows, dtype=torch.int32, device=device),
        lengths_R=torch.full((rows,), keys, dtype=torch.int32, device=device),
        starts_R1=starts_R1.to(device),
        extends=0 if queries == 1 else rows,
    )
    return Case(heads, rows, queries, keys, pool, batch, wide[:, : heads * HEAD_DIM].unflatten(1, (heads, HEAD_DIM)))


def decode(device: torch.device) -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    print(f"{'decode':<18}{'heads':>7}{'us':>9}{'TB/s':>7}{'of limit':>9}{'plan us':>9}{'error':>9}")
    for (rows, keys), heads in itertools.product(DECODES, HEADS):
        case = draw(heads, rows, 1, keys, device)
        attention = case.attention()
        error, us = case.error(attention), case.time_us(attention)
        plan_us = time_us([partial(attention.plan, case.batch)] * 8)
        print(
            f"{f'{rows} x {keys}':<18}{f'{heads}/{KV_HEADS}':>7}{us:>9.2f}{case.size_bytes / us / 1e6:>7.2f}"
            f"{case.limit_us / us:>9.0%}{plan_us:>9.2f}{error:>9.1e}{warn(error)}"
        )
        figures.append(
            {
                "kernel": "decode",
                "rows": rows,
                "keys": keys,
                "heads": heads,
                "us": us,
                "plan_us": plan_us,
                "limit_us": case.limit_us,
                "error": error,
            }
        )
    return figures


def extend(device: torch.device) -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    print(f"\n{'extend':<18}{'heads':>7}{'way':>8}{'us':>10}{'TFLOP/s':>9}{'of limit':>9}{'error':>9}")
    for (rows, queries, keys), heads in itertools.product(EXTENDS, HEADS):
        case = draw(heads, rows, queries, keys, device)
        for way in WAYS:
            name = f"{rows} x {queries}" + (f" on {keys - queries}" if keys > queries else "")
            line = f"{name:<18}{f'{heads}/{KV_HEADS}':>7}{way:>8}"
            figure = {"kernel": "extend", "way": way, "rows": rows, "queries": queries, "keys": keys, "heads": heads}
            try:
                attention = case.attention(extend=way)
                error, us = case.error(attention), case.time_us(attention)
            except RuntimeError as problem:  # a library that refuses: the others' figures still count
                print(f"{line}  {str(problem).splitlines()[0][:80]}")
                figures.append({**figure, "refused": str(problem).splitlines()[0]})
                continue
            rate = case.operations / us / 1e6
            print(f"{line}{us:>10.1f}{rate:>9.0f}{case.limit_us / us:>9.0%}{error:>9.1e}{warn(error)}")
            figures.append({**figure, "us": us, "limit_us": case.limit_us, "error": error})
    return figures


def sweep_decode(device: torch.device) -> list[dict[str, object]]:
    shapes = ((32, 1, 3), (32, 2, 3), (32, 2, 4), (64, 2, 2), (64, 2, 3), (64, 4, 3), (64, 4, 4), (128, 4, 2))
    spreads = ((528, 64), (656, 64), (792, 64), (1056, 64), (1320, 64), (656, 128), (2112, 128))
    found: list[dict[str, object]] = []
    for rows, keys in ((256, 550), (64, 1200), (1, 500), (1, 8192), (625, 75)):
        case = draw(32, rows, 1, keys, device)
        tried: list[dict[str, object]] = []
        for (block, warps, stages), (programs, part) in itertools.product(shapes, spreads):
            tile = DecodeTile(keys=block, warps=warps, stages=stages, programs=programs, smallest_part=part)
            tuning = Tuning(decode=tile)
            us = case.time_us(case.attention(tuning))
            knobs = {"block": block, "warps": warps, "stages": stages, "programs": programs, "part": part}
            tried.append({"kernel": "decode", "rows": rows, "keys": keys, "us": us, **knobs})
        found += report(f"decode {rows} x {keys}", tried)
    return found


def sweep_extend(device: torch.device) -> list[dict[str, object]]:
    shapes = (
        (128, 128, 8, 3),
        (128, 128, 8, 2),
        (128, 64, 8, 3),
        (128, 64, 8, 4),
        (64, 64, 4, 3),
        (64, 128, 4, 3),
        (128, 64, 4, 3),
    )
    found: list[dict[str, object]] = []
    for rows, queries, keys in ((1, 8192, 8192), (16, 512, 512)):
        case = draw(32, rows, queries, keys, device)
        tried: list[dict[str, object]] = []
        for tile, block, warps, stages in shapes:
            tuning = Tuning(extend=ExtendTile(tile, block, warps, stages))
            us = case.time_us(case.attention(tuning))
            knobs = {"tile": tile, "block": block, "warps": warps, "stages": stages}
            tried.append({"kernel": "extend", "rows": rows, "queries": queries, "keys": keys, "us": us, **knobs})
        found += report(f"extend {rows} x {queries}", tried)
    return found


def report(name: str, tried: list[dict[str, object]]) -> list[dict[str, object]]:
    """Print the best few; give all, best first."""
    tried.sort(key=lambda row: float(str(row["us"])))
    knobs = [key for key in tried[0] if key not in {"kernel", "rows", "queries", "keys", "us"}]
    print(f"\n{name}, 32/8 heads, best of {len(tried)} tried: us, {', '.join(knobs)}")
    for row in tried[:7]:
        print(f"{float(str(row['us'])):>9.2f}  " + " ".join(f"{row[knob]!s:>6}" for knob in knobs))
    return tried


def warn(error: float) -> str:
    return "" if error <= TOLERANCE else "  WRONG"


def main(device: torch.device, *, only: str, swept: bool) -> None:
    figures: list[dict[str, object]] = []
    tuned: list[dict[str, object]] = []
    if only in {"", "decode"}:
        figures += decode(device)
        tuned += sweep_decode(device) if swept else []
    if only in {"", "extend"}:
        figures += extend(device)
        tuned += sweep_extend(device) if swept else []
    write("attention", figures + tuned)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", choices=("", "decode", "extend"))
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    with torch.inference_mode():
        main(torch.device("cuda"), only=arguments.only, swept=arguments.sweep)
