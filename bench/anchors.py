"""What others reach on one H200, what its limit is, and what we aim at: the figures that bench/gpu.py stands beside.

vLLM 0.25.1 and SGLang 0.5.17, bf16, random weights, prefix caching and CUDA graphs on, FlashAttention 3, the same
requests.  Limits: prompts at 799 TFLOP/s of bf16 products, decode steps at 4.30 TB/s of copying, both measured there.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ANCHORS", "FORKS", "SHARED", "WORK", "Anchor", "anchor"]

# What is asked for, as `callboard bench offline --workload` reads it.
WORK = {
    "one": "1x128/512",
    "many": "64x1024/256",
    "mixed": "256x100-1024/100-1024",
    "prompts": "32x8192/1",
}

# Prompts that are forked: so many of so many tokens, 64 and 32 ways.
FORKS = {
    "forks of 8,192": "256x4*8192+32/256",
    "forks of 2,048": "1024x32*2048+64/64",
}

# What is measured twice: rows that share a prefix read it together, and each for itself.
SHARED = {
    "thoughts": "5^4*1024/128",  # depth 4, 5 branches, 1,024 root, 128 a node
    "chats": "256x1*4096+128/256",  # one system prompt of 4,096, a question of 128 each
}


@dataclass(frozen=True, slots=True)
class Anchor:
    """One figure.  work: a key of WORK, or what else is measured.  limit: what the hardware allows.  aim: for ours.

    "..., shared" is how many times as fast work of SHARED is when rows read what they share together.
    Tokens a second are output tokens, except of `prompts`, where they are input tokens.  more: whether more is better.
    """

    work: str
    model: str
    unit: str
    vllm: float | None
    sglang: float | None
    limit: float | None
    aim: float
    more: bool = True

    def reached(self, figure: float) -> bool:
        """Tell whether a figure meets the aim."""
        return figure >= self.aim if self.more else figure <= self.aim


_LLAMA, _QWEN, _TOKENS = "Llama-3.1-8B", "Qwen3-0.6B", "tok/s"

ANCHORS = (
    Anchor("one", _LLAMA, _TOKENS, 204, 207, 286, 235),
    Anchor("one", _QWEN, _TOKENS, 608, 626, 3_482, 900),
    Anchor("many", _LLAMA, _TOKENS, 4_776, 4_699, 6_229, 5_200),
    Anchor("many", _QWEN, _TOKENS, 14_574, 14_553, 25_051, 17_500),
    Anchor("mixed", _LLAMA, _TOKENS, 10_414, 10_013, 13_951, 11_500),
    Anchor("mixed", _QWEN, _TOKENS, 24_352, 23_301, 36_027, 28_000),
    Anchor("prompts", _LLAMA, _TOKENS, 38_900, 38_300, 49_600, 42_000),
    Anchor("prompts", _QWEN, _TOKENS, 273_900, 272_800, 438_900, 320_000),
    Anchor("forks of 8,192", _LLAMA, _TOKENS, 4_213, 4_271, 24_750, 17_000),
    Anchor("forks of 8,192", _QWEN, _TOKENS, None, 5_871, 93_400, 40_000),
    Anchor("forks of 2,048", _LLAMA, _TOKENS, 7_134, 6_818, 16_590, 12_500),
    Anchor("forks of 2,048", _QWEN, _TOKENS, 13_657, 13_986, 114_000, 40_000),
    Anchor("join, next token", _LLAMA, "ms", None, None, None, 6.8, more=False),
    Anchor("deterministic costs", _LLAMA, "%", None, 34, 0, 15, more=False),
    Anchor("busy, 1 row", _LLAMA, "%", None, 97.5, 100, 97.5),
    Anchor("busy, 1 row", _QWEN, "%", None, 97.5, 100, 97.5),
    Anchor("busy, 64 rows", _LLAMA, "%", None, 97.5, 100, 97.5),
    Anchor("busy, 64 rows", _QWEN, "%", None, 97.5, 100, 97.5),
    Anchor("start to first token", _LLAMA, "s", 41, 66, None, 12, more=False),
    Anchor("overlap on / off", _QWEN, "x", None, 1.1, None, 1.15),
    Anchor("tree's cost, no hits", _QWEN, "%", None, 0.3, 0, 0.5, more=False),
    Anchor("groups' cost, no sharing", _LLAMA, "%", None, None, 0, 1, more=False),
    Anchor("groups' cost, no sharing", _QWEN, "%", None, None, 0, 1, more=False),
    Anchor("served / in process", _LLAMA, "x", 0.97, None, 1, 0.97),
    Anchor("thoughts, shared", _LLAMA, "x", None, None, None, 3),
    Anchor("thoughts, shared", _QWEN, "x", None, None, None, 3),
    Anchor("chats, shared", _LLAMA, "x", None, None, None, 3),
    Anchor("chats, shared", _QWEN, "x", None, None, None, 3),
    Anchor("host, 256 rows", _LLAMA, "us/step", None, None, None, 1000, more=False),
    Anchor("host, 256 rows", _QWEN, "us/step", None, None, None, 1000, more=False),
)


def anchor(work: str, model: str) -> Anchor | None:
    """Find what stands beside a figure."""
    return next((each for each in ANCHORS if (each.work, each.model) == (work, model)), None)
