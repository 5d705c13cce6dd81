"""Time sampling on a device beside torch's and beside reading the logits once.

    python bench/kernels/sampling.py

Ours runs inside a CUDA graph, over several sets of logits where they would else stay in the cache; torch's is launched
by the host, and at one row that is what its time is.  Logits are bf16 and
normal, of deviation 2.5: flatter than a trained model's, so a top-p of 0.9 keeps thousands of tokens.  Torch samples as
`kernels/sampling.py` does; its time with cuts is mostly a sort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import torch
import wishes
from graphs import COPY_RATE, copies_for, eager_us, time_us, write
from torch import Tensor

from callboard.kernels.random import key_of, uniform_on_device
from callboard.kernels.sampler.parameters import DeviceSampling
from callboard.kernels.sampler.sampler import Sampler, Tuning
from callboard.kernels.sampling import Draw, Sorting, sample

VOCABULARIES = (128_256, 151_936)
ROWS = (1, 64, 256)
KINDS = {  # temperature, top-k, top-p
    "greedy": (0.0, 0, 1.0),
    "temperature": (1.0, 0, 1.0),
    "top-k 50": (1.0, 50, 1.0),
    "top-p 0.9": (1.0, 0, 0.9),
    "top-k 50, top-p 0.9": (1.0, 50, 0.9),
    "top-k 5000, top-p 0.9": (1.0, 5000, 0.9),
}


class Case:
    """One kind of sampling at one size."""

    def __init__(self, kind: str, rows: int, vocabulary: int, device: torch.device) -> None:
        self.temperature, self.top_k, self.top_p = KINDS[kind]
        self.vocabulary, self.device = vocabulary, device
        self.size_bytes = 2 * rows * vocabulary
        self.rows = torch.arange(rows, device=device)
        self.positions = torch.arange(rows, device=device) + 100
        self.parameters = DeviceSampling.empty(rows, device)
        self.parameters.temperature_R.fill_(self.temperature)
        self.parameters.top_k_R.fill_(self.top_k)
        self.parameters.top_p_R.fill_(self.top_p)
        self.parameters.keys_R.copy_(torch.tensor([key_of(seed) for seed in range(rows)]))
        self.tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.best = torch.zeros(rows, device=device)
        self.last_tokens = torch.zeros_like(self.rows)

    @property
    def cuts(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0

    def logits(self) -> list[Tensor]:
        """Make as many sets as the cache cannot hold."""
        shape = (len(self.rows), self.vocabulary)
        copies = copies_for(self.size_bytes, most=16)
        return [torch.randn(shape, device=self.device).mul_(2.5).bfloat16() for _ in range(copies)]

    def ours(self, logits: Tensor, sampler: Sampler) -> Tensor:
        sampler.sample(
            logits,
            self.rows,
            self.positions,
            self.parameters,
            self.tokens,
            self.best,
            self.last_tokens,
            cuts=self.cuts,
        )
        return self.tokens

    def torchs(self, logits: Tensor) -> Tensor:
        if self.temperature == 0.0:
            return logits.argmax(-1)
        p, count = self.parameters, len(self.rows)
        sorting = None
        if self.cuts:
            width = self.top_k or self.vocabulary
            top_k = torch.full((count,), width, device=self.device)
            sorting = Sorting(None, top_k, p.top_p_R.double(), width)
        uniform = uniform_on_device(p.keys_R, self.positions)
        return sample(logits.float(), Draw(None, p.temperature_R, None, sorting), uniform)[0]


def kept_share(case: Case, logits: Tensor, tokens: Tensor) -> float:
    """Tell how many of the tokens are among those that the cuts keep, by a sort in float64."""
    weights = (logits.double() / max(case.temperature, 1e-6)).softmax(-1)
    heaviest, _ = weights.sort(dim=-1, descending=True)
    before = heaviest.cumsum(-1) - heaviest
    kept = (before <= case.top_p + 1e-6).sum(-1)
    if case.top_k:
        kept = kept.clamp(max=case.top_k)
    least = heaviest.gather(1, kept.unsqueeze(1) - 1)
    return (weights.gather(1, tokens.long().unsqueeze(1)) >= least).double().mean().item()


def parity(device: torch.device) -> None:
    """Compare with torch before anything is timed.

    Without cuts both find the same place in the cumulative weights, up to rounding.  With cuts torch draws in order of
    weight and the device in order of id, so only what is kept can be compared.
    """
    for kind, vocabulary in product(KINDS, VOCABULARIES):
        case = Case(kind, 64, vocabulary, device)
        logits = case.logits()[0]
        tokens = case.ours(logits, Sampler(64, vocabulary, device)).clone()
        if case.cuts:
            agreed = kept_share(case, logits, tokens)
        else:
            agreed = (tokens == case.torchs(logits)).double().mean().item()
        print(f"parity  {kind:24} {vocabulary:7}  {agreed:6.1%}")
        assert agreed >= (1.0 if kind == "greedy" else 0.9), "not what torch gives"


def measure(device: torch.device) -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    print(f"\n{'kind':24} {'vocabulary':>10} {'rows':>4} {'us':>8} {'torch':>9} {'limit':>7} {'of limit':>8}")
    for vocabulary, rows, kind in product(VOCABULARIES, ROWS, KINDS):
        case, sampler = Case(kind, rows, vocabulary, device), Sampler(rows, vocabulary, device)
        sets = case.logits()
        ours = time_us(calls(case, sets, sampler))
        torchs = eager_us(lambda logits=sets[0], case=case: case.torchs(logits))
        limit = case.size_bytes / COPY_RATE * 1e6
        print(f"{kind:24} {vocabulary:10} {rows:4} {ours:8.1f} {torchs:9.1f} {limit:7.1f} {limit / ours:8.1%}")
        figures.append(
            {"kind": kind, "vocabulary": vocabulary, "rows": rows, "us": ours, "torch_us": torchs, "limit_us": limit}
        )
    return figures


def calls(case: Case, sets: list[Tensor], sampler: Sampler) -> list[Callable[[], object]]:
    return [lambda logits=logits: case.ours(logits, sampler) for logits in sets]


TUNINGS = [
    *(
        Tuning(block=block, scan_blocks=blocks, scan_warps=warps)
        for block, blocks, warps in (
            (512, 1, 1),
            (1024, 1, 1),
            (1024, 1, 2),
            (1024, 2, 1),
            (1024, 2, 2),
            (1024, 4, 4),
            (2048, 1, 2),
            (2048, 1, 4),
            (2048, 2, 4),
            (4096, 1, 4),
        )
    ),
    *(replace(Tuning(), choose_warps=warps) for warps in (2, 8)),
]
CUT_TUNINGS = [
    *(
        Tuning(narrow_tile=tile, narrow_tiles=tiles, narrow_warps=warps)
        for tile, tiles, warps in ((1024, 4, 4), (1024, 8, 4), (1024, 16, 4), (2048, 4, 8), (2048, 8, 8), (512, 8, 2))
    ),
    *(replace(Tuning(), weigh_blocks=blocks, weigh_warps=warps) for blocks, warps in ((1, 1), (2, 2), (4, 2), (8, 8))),
]


def sweep(device: torch.device, kind: str, rows: int, tunings: list[Tuning]) -> None:
    vocabulary = VOCABULARIES[0]
    case = Case(kind, rows, vocabulary, device)
    sets = case.logits()
    times = [(time_us(calls(case, sets, Sampler(rows, vocabulary, device, t)), replays=7), t) for t in tunings]
    print(f"\n{kind}, {rows} rows of {vocabulary}")
    for time, tuning in sorted(times, key=lambda entry: entry[0])[:6]:
        print(f"  {time:7.1f} us  {tuning}")


def main(device: torch.device) -> None:
    torch.manual_seed(0)
    parity(device)
    figures = measure(device)
    for rows in (1, 256):
        sweep(device, "temperature", rows, TUNINGS)
        sweep(device, "top-p 0.9", rows, CUT_TUNINGS)
    wishes.parity(device)
    figures += wishes.measure(device)
    wishes.sweep(device)
    write("sampling", figures)


if __name__ == "__main__":
    with torch.inference_mode():
        main(torch.device("cuda"))
