"""Time a decode step of the model that ships, against transformers on the same random weights.

Both run one forward pass a step in float32 on the same threads: callboard over its paged pool with shuffled slots,
transformers over a DynamicCache.  Sampling is left out on both sides.  Rounds alternate between the two, and the best
step counts: what another process takes away is nobody's merit.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table

from callboard.kernels.attention.interface import AttentionBatch
from callboard.kernels.attention.reference import ReferenceAttention
from callboard.kernels.kv_pool import KVPool
from callboard.models.loader import load
from callboard.models.model import Model

RESULTS = Path(__file__).parent / "results"


def peer_model(folder: Path) -> transformers.PreTrainedModel:
    """Write a checkpoint of the embedded model's shape with random weights; return transformers' model of it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=320,
        intermediate_size=896,
        num_hidden_layers=6,
        num_attention_heads=10,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).eval().bfloat16()
    model.save_pretrained(folder)
    return model.float()


def ours(model: Model, rows: int, keys: int, steps: int) -> Callable[[], float]:
    """Prepare a round of callboard's steps, from `keys` cached tokens a row on; it returns its best step's seconds."""
    config = model.config
    table_RL = torch.randperm(rows * (keys + steps)).view(rows, keys + steps)
    pool = KVPool(
        layers=config.layers,
        slots=rows * (keys + steps),
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for entries in pool.entries:
        entries.normal_()
    attention = ReferenceAttention(config.heads, config.kv_heads, config.head_dim)
    tokens_T = torch.randint(config.vocabulary, (rows,))
    starts_R1 = torch.arange(rows + 1, dtype=torch.int32)

    def round_of_steps() -> float:
        times: list[float] = []
        for position in range(keys, keys + steps):
            started = time.perf_counter()
            slots_T, positions_T = table_RL[:, position].contiguous(), torch.full((rows,), position)
            batch = AttentionBatch(starts_R1, [1] * rows, [position + 1] * rows, table_RL, slots_T, positions_T)
            plan = attention.plan(batch)
            model.logits(model.forward(tokens_T, positions_T, slots_T, pool, attention, plan))
            times.append(time.perf_counter() - started)
        return min(times)

    return round_of_steps


def theirs(model: transformers.PreTrainedModel, rows: int, keys: int, steps: int) -> Callable[[], float]:
    """Prepare a round of transformers' steps likewise."""
    tokens = torch.randint(4096, (rows, 1))

    def round_of_steps() -> float:
        cache = transformers.DynamicCache(config=model.config)
        for layer in range(model.config.num_hidden_layers):
            cache.update(torch.randn(rows, 2, keys, 32), torch.randn(rows, 2, keys, 32), layer)
        times: list[float] = []
        for position in range(keys, keys + steps):
            started = time.perf_counter()
            positions = torch.full((rows, 1), position)
            model(tokens, past_key_values=cache, position_ids=positions, use_cache=True)
            times.append(time.perf_counter() - started)
        return min(times)

    return round_of_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures: list[dict[str, float | int]] = []
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        peer = peer_model(Path(folder))
        model = load(Path(folder), device=torch.device("cpu"), dtype=torch.float32)
        for rows, keys in ((1, 256), (8, 256), (32, 256), (32, 1024)):
            mine = ours(model, rows, keys, arguments.steps)
            other = theirs(peer, rows, keys, arguments.steps)
            pairs = [(mine(), other()) for _ in range(arguments.rounds)]
            best, peer_best = (min(column) * 1e3 for column in zip(*pairs, strict=True))
            figures.append({"rows": rows, "keys": keys, "callboard_ms": best, "transformers_ms": peer_best})
    table = Table("rows", "keys a row", "callboard, ms a step", "transformers, ms a step", "ratio")
    for figure in figures:
        own, peer_ms = figure["callboard_ms"], figure["transformers_ms"]
        table.add_row(str(figure["rows"]), str(figure["keys"]), f"{own:.2f}", f"{peer_ms:.2f}", f"{peer_ms / own:.2f}")
    Console().print(table)
    if arguments.write:
        report = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "figures": figures,
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "decode_step.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
