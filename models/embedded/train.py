"""Train the embedded model on a corpus that is written as it goes.

    python -m callboard.models.embedded.train --output FOLDER [--steps N] [--minutes M]

Needs FOLDER/tokenizer.json (see `tokenizer.py`). Runs on a GPU in minutes, on a CPU in days.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from .network import Llama, Shape, document_mask
from .packing import Rows, epochs

__all__ = ["rate", "save", "train"]


def rate(progress: float, *, warm: float = 0.01, cool: float = 0.4) -> float:
    """Return the learning rate's share at `progress` in [0, 1]: up, flat, then down to zero by a half cosine."""
    if progress < warm:
        return progress / warm
    if progress < 1 - cool:
        return 1.0
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (progress - 1 + cool) / cool))


def batches(
    source: Iterator[Rows], rows: int, passes: int, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield shuffled batches of `rows` rows, each epoch of the source `passes` times."""
    generator = np.random.default_rng(seed)
    for tokens, targets, weights, numbers in source:
        for _ in range(passes):
            shuffled = generator.permutation(len(tokens))
            for start in range(0, len(shuffled) - rows + 1, rows):
                chosen = shuffled[start : start + rows]
                yield (
                    torch.from_numpy(tokens[chosen].astype(np.int32)),
                    torch.from_numpy(targets[chosen].astype(np.int32)),
                    torch.from_numpy(weights[chosen].astype(np.float32)),
                    torch.from_numpy(numbers[chosen]),
                )


def optimizer_for(model: Llama, arguments: argparse.Namespace, device: torch.device) -> torch.optim.Optimizer:
    """Return AdamW, with decay on matrices only."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": arguments.decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=arguments.rate, betas=(0.9, 0.95), fused=device.type == "cuda")


def save(model: Llama, folder: Path) -> None:
    """Write config.json, generation_config.json and the weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model.shape.config(), indent=2) + "\n")
    generation = {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, save, and return the record of the run."""
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    flex = device.type == "cuda" and arguments.attention == "flex"
    shape = Shape(
        hidden=arguments.hidden, layers=arguments.layers, heads=arguments.hidden // 32, kv_heads=arguments.kv_heads,
        intermediate=arguments.intermediate,
    )  # fmt: skip
    model = Llama(shape).to(device)
    if arguments.start:
        model.load_state_dict({name: value.float() for name, value in load_file(arguments.start).items()})
    optimizer = optimizer_for(model, arguments, device)
    loss_of = torch.compile(model.loss) if arguments.compile else model.loss
    create: Any = None
    if flex:
        create = torch.compile(create_block_mask) if arguments.compile else create_block_mask
    cos, sin = model.angles(arguments.length, device)
    tokenizer_file = arguments.output / "tokenizer.json"
    source = epochs(
        tokenizer_file,
        seed=arguments.seed,
        chunks=arguments.chunks,
        length=arguments.length,
        processes=arguments.processes,
    )
    started = time.monotonic()
    first_step = started
    curve: list[tuple[int, float]] = []
    mean = torch.zeros((), device=device)
    step = 0
    for batch in batches(source, arguments.rows, arguments.passes, arguments.seed):
        elapsed = time.monotonic() - started
        progress = max(step / arguments.steps, elapsed / (60 * arguments.minutes) if arguments.minutes else 0.0)
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = arguments.rate * rate(progress)
        tokens, targets, weights, numbers = (x.to(device, non_blocking=True) for x in batch)
        mask = document_mask(numbers, create)
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(tokens, targets, weights, cos, sin, mask)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean += loss.detach()
        step += 1
        if step == 20:
            first_step = time.monotonic()
        if step % arguments.report == 0:
            value = mean.item() / arguments.report
            mean.zero_()
            curve.append((step, round(value, 5)))
            rate_now = (step - 20) * arguments.rows * arguments.length / max(time.monotonic() - first_step, 1e-9)
            print(
                f"step {step}  loss {value:.4f}  {time.monotonic() - started:.0f} s  {rate_now / 1e6:.2f} M tokens/s",
                flush=True,
            )
    save(model, arguments.output)
    return {
        "shape": shape.record(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": step,
        "tokens": step * arguments.rows * arguments.length,
        "seconds": round(time.monotonic() - started),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "arguments": {key: value for key, value in vars(arguments).items() if key not in ("output", "start")},
        "loss": curve[:: max(1, len(curve) // 30)] + curve[-1:],
    }


def main() -> None:
    """Read the arguments, train, and write training.json beside the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="weights to go on from, a safetensors file")
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--minutes", type=float, default=0.0, help="end earlier, cooling down, after this time")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--chunks", type=int, default=128, help="chunks of an epoch")
    parser.add_argument("--passes", type=int, default=1, help="times an epoch is used")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.05)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--intermediate", type=int, default=896)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=int, default=200)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--attention", choices=("flex", "dense"), default="flex")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    arguments = parser.parse_args()
    record = train(arguments)
    (arguments.output / "training.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
