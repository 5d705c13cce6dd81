"""Time what rows may wish for beside a temperature: penalties, masks, a bias, log-probabilities.

    python bench/kernels/wishes.py        (the last part of sampling.py, which keeps its figures)

Beside ours stands what torch takes for the same: a float32 copy of the logits, each wish by operations of its own, the
sampler behind; launched by the host.  All rows wish; the limit is reading the logits, and a bit a token where there are
masks or penalties, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from graphs import COPY_RATE, copies_for, eager_us, time_us
from torch import Tensor

from callboard.kernels.masks import apply_bitmask
from callboard.kernels.random import key_of
from callboard.kernels.sampler.adjustments import Adjustments, Edits, History, lay_edits
from callboard.kernels.sampler.logprobs import log_probabilities
from callboard.kernels.sampler.parameters import DeviceSampling
from callboard.kernels.sampler.sampler import Sampler, Tuning
from callboard.kernels.sampling import add_bias, penalize, subtracted, top
from callboard.kernels.sampling import log_probabilities as torch_log_probabilities

SHAPES = ((256, 128_256), (256, 151_936), (1, 128_256))
KINDS = {  # what rows wish for, top-p
    "nothing, redrawn": ("", 1.0),
    "penalties": ("p", 1.0),
    "mask": ("m", 1.0),
    "bias of 300": ("b", 1.0),
    "bias of 300 side by side": ("s", 1.0),
    "penalties, mask, bias": ("pmb", 1.0),
    "penalties, top-p 0.9": ("p", 0.9),
}
WIDTHS = (0, 5, 20)
HAD, BIASED = 500, 300  # tokens a row has had, and tokens it has a bias on


class Case:
    """Rows that all wish for the same."""

    def __init__(self, wishes: str, top_p: float, rows: int, vocabulary: int, device: torch.device) -> None:
        self.wishes, self.cuts, self.vocabulary, self.device = wishes, top_p < 1.0, vocabulary, device
        numbers = np.random.default_rng(0)
        self.tokens, self.best = torch.zeros(rows, dtype=torch.int32, device=device), torch.zeros(rows, device=device)
        self.last_tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.parameters = DeviceSampling.empty(rows, device)
        self.parameters.temperature_R.fill_(1.0)
        self.parameters.top_p_R.fill_(top_p)
        self.parameters.keys_R.copy_(torch.tensor([key_of(seed) for seed in range(rows)]))
        had = numbers.integers(0, vocabulary, (rows, HAD))
        seen = np.zeros((rows, -(-vocabulary // 32) * 32), bool)
        np.put_along_axis(seen, had, values=True, axis=1)
        self.history = History.empty(rows, vocabulary, device)
        self.history.counts_LV.zero_().scatter_(1, torch.from_numpy(had).to(device), 1)
        self.history.seen_LW.copy_(torch.from_numpy(np.packbits(seen, axis=1, bitorder="little").view(np.int32)))
        self.history.strengths_L3.copy_(torch.tensor((0.5, 0.2, 1.1)))
        words = numbers.integers(-(2**31), 2**31, (rows, -(-vocabulary // 32))).astype(np.int32)
        self.masks = torch.from_numpy(words).to(device)
        first = numbers.integers(0, 1000, (rows, 1)) + np.arange(BIASED)
        spread = np.sort(numbers.integers(0, vocabulary, (rows, BIASED)), axis=1)
        self.biased, self.bias = first if "s" in wishes else spread, numbers.normal(size=(rows, BIASED))
        self.size_bytes = 2 * rows * vocabulary + rows * vocabulary // 8 * (("p" in wishes) + ("m" in wishes))

    def adjustments(self, sampler: Sampler) -> Adjustments:
        every = torch.arange(len(self.tokens), dtype=torch.int32, device=self.device)
        none = torch.full_like(every, -1)
        edits = lay_edits(list(zip(self.biased, self.bias, strict=True)), sampler.blocks, sampler.block)
        words = torch.from_numpy(edits).to(self.device)
        return Adjustments(
            places_A=every,
            rows_A=every,
            positions_A=every + 100,
            histories_A=every if "p" in self.wishes else none,
            masks_A=every if "m" in self.wishes else none,
            edits_A=every if {"b", "s"} & {*self.wishes} else none,
            history=self.history,
            masks_MW=self.masks,
            edits=Edits.read(words, len(every), sampler.blocks),
        )

    def ours(self, logits: Tensor, sampler: Sampler, adjustments: Adjustments) -> Tensor:
        sampler.redraw(logits, adjustments, self.parameters, self.tokens, self.best, self.last_tokens, cuts=self.cuts)
        return self.tokens

    def torchs(self, sampler: Sampler, adjustments: Adjustments) -> Callable[[Tensor], Tensor]:
        """Make what torch does, with everything that is known before at hand."""
        counts, lines = self.history.counts_LV.clone(), adjustments.rows_A.long()
        frequency, presence, repetition = (0.5, 0.2, 1.1)
        taken = (
            subtracted(counts, *torch.tensor((frequency, presence), device=self.device)) if "p" in self.wishes else None
        )
        divisors = torch.where(counts > 0, repetition, 1.0) if "p" in self.wishes else None
        rows_B = lines.repeat_interleave(BIASED)
        tokens_B = torch.from_numpy(self.biased.ravel()).to(self.device)
        bias_B = torch.from_numpy(self.bias.ravel().astype(np.float32)).to(self.device)

        def run(logits: Tensor) -> Tensor:
            logits = logits.to(torch.float32, copy=True)
            if taken is not None and divisors is not None:
                penalize(logits, taken[lines], divisors[lines])
            if "m" in self.wishes:
                apply_bitmask(logits, self.masks)
            if {"b", "s"} & {*self.wishes}:
                add_bias(logits, rows_B, tokens_B, bias_B)
            sampler.sample(
                logits, lines, adjustments.positions_A, self.parameters, self.tokens, self.best, self.last_tokens,
                cuts=self.cuts,
            )  # fmt: skip
            return self.tokens

        return run


def parity(device: torch.device) -> None:
    """Compare with torch before anything is timed; a draw at a bound may fall to either side."""
    for kind, (wishes, top_p) in KINDS.items():
        case, sampler = Case(wishes, top_p, 64, 128_256, device), Sampler(64, 128_256, device)
        adjustments, logits = case.adjustments(sampler), logits_of(64, 128_256, device)[0]
        theirs = case.torchs(sampler, adjustments)(logits).clone()
        agreed = (case.ours(logits, sampler, adjustments) == theirs).double().mean().item()
        print(f"parity  {kind:26} {agreed:6.1%}")
        assert agreed >= 0.9, "not what torch gives"
    logits = logits_of(64, 128_256, device)[0]
    tokens, words = torch.arange(64, device=device) * 1000, torch.empty(64 * 41, dtype=torch.int32, device=device)
    log_probabilities(logits, torch.arange(64, device=device), tokens, 20, words)
    wanted = logits.double().log_softmax(-1)
    chosen = wanted.gather(1, tokens.unsqueeze(1)).squeeze(1).float()
    torch.testing.assert_close(words[:64].view(torch.float32), chosen, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(
        words[64 * 21 :].view(torch.float32).view(64, 20), wanted.topk(20).values.float(), atol=2e-5, rtol=1e-5
    )
    print("parity  log-probabilities          within 2e-5")


def logits_of(rows: int, vocabulary: int, device: torch.device) -> list[Tensor]:
    """Make as many sets as the cache cannot hold."""
    copies = copies_for(2 * rows * vocabulary, most=16)
    return [torch.randn((rows, vocabulary), device=device).mul_(2.5).bfloat16() for _ in range(copies)]


def measure(device: torch.device) -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    print(f"\n{'kind':26} {'vocabulary':>10} {'rows':>4} {'us':>8} {'torch':>9} {'limit':>7} {'of limit':>8}")

    def tell(kind: str, rows: int, vocabulary: int, ours: float, torchs: float, size_bytes: int) -> None:
        limit = size_bytes / COPY_RATE * 1e6
        print(f"{kind:26} {vocabulary:10} {rows:4} {ours:8.1f} {torchs:9.1f} {limit:7.1f} {limit / ours:8.1%}")
        figures.append(
            {"kind": kind, "vocabulary": vocabulary, "rows": rows, "us": ours, "torch_us": torchs, "limit_us": limit}
        )

    for rows, vocabulary in SHAPES:
        sets, sampler = logits_of(rows, vocabulary, device), Sampler(rows, vocabulary, device)
        for kind, (wishes, top_p) in KINDS.items():
            case = Case(wishes, top_p, rows, vocabulary, device)
            tell(kind, rows, vocabulary, *times_of(case, sampler, sets), case.size_bytes)
        for width in WIDTHS:
            kind = f"log-probabilities, top {width}"
            tell(kind, rows, vocabulary, *told_times(sets, width), 2 * rows * vocabulary)
    return figures


def times_of(case: Case, sampler: Sampler, sets: list[Tensor]) -> tuple[float, float]:
    """Time a case, ours and torch's, in microseconds."""
    adjustments = case.adjustments(sampler)
    theirs = case.torchs(sampler, adjustments)
    return time_us(calls(case, sampler, sets)), eager_us(lambda: theirs(sets[0]))


def told_times(sets: list[Tensor], width: int) -> tuple[float, float]:
    """Time log-probabilities, ours and torch's, in microseconds."""
    rows, device = len(sets[0]), sets[0].device
    places, tokens = torch.arange(rows, device=device), torch.zeros(rows, dtype=torch.int64, device=device)
    words = torch.empty(rows * (1 + 2 * width), dtype=torch.int32, device=device)
    ours = time_us([lambda x=x: log_probabilities(x, places, tokens, width, words) for x in sets])
    return ours, eager_us(lambda: top(torch_log_probabilities(sets[0].float(), tokens)[0], width))


def calls(case: Case, sampler: Sampler, sets: list[Tensor]) -> list[Callable[[], object]]:
    adjustments = case.adjustments(sampler)
    return [lambda logits=logits: case.ours(logits, sampler, adjustments) for logits in sets]


def sweep(device: torch.device) -> None:
    """Try blocks, and warps a block."""
    sets = logits_of(256, 128_256, device)
    for kind in ("penalties", "mask", "penalties, mask, bias"):
        case = Case(*KINDS[kind], 256, 128_256, device)
        tunings = [replace(Tuning(), adjust_warps=warps, block=block) for block in (1024, 2048) for warps in (1, 2, 4)]
        samplers = [(Sampler(256, 128_256, device, tuning), tuning) for tuning in tunings]
        times = [(time_us(calls(case, sampler, sets), replays=7), tuning) for sampler, tuning in samplers]
        print(f"\n{kind}, 256 rows of 128256")
        for time, tuning in sorted(times, key=lambda entry: entry[0]):
            print(f"  {time:7.1f} us  block {tuning.block}, {tuning.adjust_warps} warps")


def main(device: torch.device) -> None:
    torch.manual_seed(0)
    parity(device)
    measure(device)
    sweep(device)


if __name__ == "__main__":
    with torch.inference_mode():
        main(torch.device("cuda"))
