"""Whether a checkpoint holds what its config.json calls for, told from the headers of its files."""

from __future__ import annotations

from collections.abc import Iterable

from .checkpoint import Checkpoint
from .config import ModelConfig
from .kv_scales import scale_names
from .parameters import Parameter

__all__ = ["verify"]


def verify(checkpoint: Checkpoint, config: ModelConfig, parameters: Iterable[Parameter]) -> None:
    """Raise ValueError, naming file and tensor, if a tensor is missing, unknown, misshapen or of another type."""
    wanted = {source.name: source.shape for each in parameters for source in each.sources}
    _compare_names(checkpoint, set(wanted), config)
    for name, shape in checkpoint.shapes(set(wanted)):
        if shape != wanted[name]:
            raise ValueError(
                f"{checkpoint.folder / checkpoint.files[name]}: {name} has the shape {list(shape)}; "
                f"config.json calls for {list(wanted[name])}: one of the two is another model's"
            )


def _compare_names(checkpoint: Checkpoint, wanted: set[str], config: ModelConfig) -> None:
    """Refuse a checkpoint that lacks a tensor, or holds one that the model would not use."""
    held = checkpoint.names()
    missing = sorted(wanted - held)
    if missing:
        raise ValueError(f"{checkpoint.folder} lacks {_list(missing)}, which a {config.architecture} needs")
    # Old checkpoints carry the rope's frequencies, tied ones sometimes their head: both are known from elsewhere.
    # Scales of keys and values are for whoever caches in float8.
    unknown = sorted(
        name
        for name in held - wanted - scale_names(config)
        if not name.endswith("rotary_emb.inv_freq") and name != "lm_head.weight"
    )
    if unknown:
        raise ValueError(f"{checkpoint.folder} holds {_list(unknown)}, which this {config.architecture} does not use")


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more tensors"
