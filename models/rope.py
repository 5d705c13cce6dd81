"""Rotary position embedding: which angle every pair of every position turns by, for each way of stretching a context.

Shape suffixes:  L positions    P = head_dim / 2, the pairs of a head
"""

from __future__ import annotations

import math

import msgspec
import torch
from torch import Tensor

from .fields import Fields

__all__ = ["SCALINGS", "Rope", "read_rope", "rotations"]

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn")


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """How positions turn into angles.

    scaling: "default" turns pair p of position n by n * theta ** (-2p / head_dim); the others stretch it by `factor`.
    trained_length: the context the frequencies were trained for.  context_length: how many positions there are.
    llama3 keeps waves shorter than trained_length / high_frequency_factor and stretches those longer than
    trained_length / low_frequency_factor.  yarn keeps pairs that turn more than beta_fast times within trained_length
    and stretches those that turn less than beta_slow times; `truncate` rounds the bounds between them to whole pairs.
    magnitude: what rotated vectors are multiplied by (yarn).
    """

    scaling: str = "default"
    theta: float = 10_000.0
    context_length: int = 2048
    trained_length: int = 2048
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    magnitude: float = 1.0


def read_rope(config: Fields, positions: int) -> Rope:
    """Read the rope of a config.json whose max_position_embeddings is `positions`.

    It stands in rope_parameters (transformers 5) or in rope_scaling and rope_theta (before).
    """
    fields = config.object("rope_scaling" if config.has("rope_scaling") else "rope_parameters")
    old_name = fields.has("type") and not fields.has("rope_type")
    scaling = fields.choice("type" if old_name else "rope_type", "default", SCALINGS)
    theta = fields.number("rope_theta") if fields.has("rope_theta") else config.number("rope_theta", 10_000.0)
    for where in (config, fields):
        if where.number("partial_rotary_factor", 1.0) != 1.0:
            raise where.refuse("partial_rotary_factor", "only 1 is supported")
    trained = positions
    if scaling in {"llama3", "yarn"}:
        # Where both files say it, the outer one counts, as in transformers.
        place = config if config.has("original_max_position_embeddings") else fields
        trained = place.integer("original_max_position_embeddings", positions)
    match scaling:
        case "linear" | "dynamic":
            factor = fields.number("factor")
            longest = max(positions, int(positions * factor))
            return Rope(scaling=scaling, theta=theta, context_length=longest, trained_length=trained, factor=factor)
        case "llama3":
            return _read_llama3(fields, theta, positions, trained)
        case "yarn":
            return _read_yarn(fields, theta, positions, trained)
        case _:
            return Rope(theta=theta, context_length=positions, trained_length=positions)


def _read_llama3(fields: Fields, theta: float, positions: int, trained: int) -> Rope:
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if high <= low:
        raise fields.refuse("high_freq_factor", f"it must be above low_freq_factor ({low:g})")
    return Rope(
        scaling="llama3",
        theta=theta,
        context_length=positions,
        trained_length=trained,
        factor=fields.number("factor"),
        low_frequency_factor=low,
        high_frequency_factor=high,
    )


def _read_yarn(fields: Fields, theta: float, positions: int, trained: int) -> Rope:
    factor = fields.number("factor", positions / trained)
    if fields.has("attention_factor"):
        magnitude = fields.number("attention_factor")
    elif fields.has("mscale") and fields.has("mscale_all_dim") and fields.content["mscale"]:
        magnitude = _magnitude(factor, fields.number("mscale")) / _magnitude(factor, fields.number("mscale_all_dim"))
    else:
        magnitude = _magnitude(factor, 1.0)
    fast, slow = fields.number("beta_fast", 32.0), fields.number("beta_slow", 1.0)
    if fast < slow:
        raise fields.refuse("beta_fast", f"it must be at least beta_slow ({slow:g})")
    return Rope(
        scaling="yarn",
        theta=theta,
        context_length=max(positions, int(trained * factor)),
        trained_length=trained,
        factor=factor,
        beta_fast=fast,
        beta_slow=slow,
        truncate=fields.flag("truncate", default=True),
        magnitude=magnitude,
    )


def _magnitude(factor: float, scale: float) -> float:
    """Tell by how much longer vectors make up for a stretched context (YaRN, Peng et al. 2023, section 3.4)."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def rotations(rope: Rope, head_dim: int, device: torch.device) -> Tensor:
    """Compute the rotation of every pair at every position as a unit complex number times the magnitude.

    Returns complex64 [L, P].  For "dynamic", a position behind trained_length turns by the frequencies of a sequence
    that ends there, as if each token had been decoded alone: a cached key is the same for every row that shares it and
    however its prompt was cut.
    """
    positions_L1 = torch.arange(rope.context_length, device=device, dtype=torch.float32).unsqueeze(1)
    angles_LP = positions_L1 * _frequencies(rope, head_dim, positions_L1)
    return torch.polar(torch.full_like(angles_LP, rope.magnitude), angles_LP)


def _frequencies(rope: Rope, head_dim: int, positions_L1: Tensor) -> Tensor:
    """Compute the angle a pair turns by from one position to the next: [1, P], or [L, P] for "dynamic"."""
    exponents_P = torch.arange(0, head_dim, 2, device=positions_L1.device, dtype=torch.float32) / head_dim
    default_P = 1.0 / rope.theta**exponents_P
    match rope.scaling:
        case "linear":
            return (default_P / rope.factor).unsqueeze(0)
        case "dynamic":
            lengths_L1 = (positions_L1 + 1).clamp(min=rope.trained_length)
            stretch_L1 = rope.factor * lengths_L1 / rope.trained_length - (rope.factor - 1)
            # After NTK-aware scaling: a longer sequence gets a larger theta.  One pair has nothing to spread.
            power = head_dim / (head_dim - 2) if head_dim > 2 else 1.0
            return 1.0 / (rope.theta * stretch_L1**power) ** exponents_P
        case "llama3":
            return _llama3(rope, default_P).unsqueeze(0)
        case "yarn":
            kept_P = _yarn_kept(rope, head_dim, default_P)
            return (default_P * kept_P + default_P / rope.factor * (1 - kept_P)).unsqueeze(0)
        case _:
            return default_P.unsqueeze(0)


def _llama3(rope: Rope, default_P: Tensor) -> Tensor:
    """Stretch long waves, keep short ones, and blend between (Llama 3.1)."""
    turns_P = rope.trained_length * default_P / (2 * math.pi)
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    kept_P = ((turns_P - low) / (high - low)).clamp(0, 1)
    return default_P * kept_P + default_P / rope.factor * (1 - kept_P)


def _yarn_kept(rope: Rope, head_dim: int, default_P: Tensor) -> Tensor:
    """Tell how much of each pair's frequency is kept: 1 for fast pairs, 0 for slow ones (YaRN, section 3.2)."""

    def pair_turning(times: float) -> float:
        return head_dim * math.log(rope.trained_length / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair_turning(rope.beta_fast), pair_turning(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    pairs_P = torch.arange(len(default_P), device=default_P.device, dtype=torch.float32)
    # A thousandth of a pair where the bounds meet, as in transformers: nothing is divided by zero.
    return 1 - ((pairs_P - first) / (last - first or 0.001)).clamp(0, 1)
