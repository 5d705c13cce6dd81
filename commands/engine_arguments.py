"""The options of every command that starts an engine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..actors.engine import Engine

__all__ = ["add_engine_arguments", "make_engine", "summary"]

_OPTIONS = (
    "device", "dtype", "kv_dtype", "context_length", "max_rows", "kv_slots", "mem_fraction", "chunk_tokens",
    "attention", "max_queued", "policy", "in_flight", "prefix_cache", "load_format", "served_name", "threads", "seed",
    "chat_template", "deterministic", "share_attention", "fast_forward", "eager", "replicas",
)  # fmt: skip


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the engine's options; one that is not given keeps the engine's own default."""
    group = parser.add_argument_group("engine")
    add = group.add_argument
    add(
        "--model",
        "--model-path",
        default="embedded",
        metavar="PATH",
        help="a folder in the Hugging Face layout; the default, embedded, is the small model that ships",
    )
    add("--device", metavar="NAME", help="auto (default), cpu, cuda, cuda:1")
    add(
        "--replicas",
        "--dp-size",
        "--data-parallel-size",
        type=int,
        metavar="N",
        help="how often the model is there: one each on cuda:0, cuda:1, ..., or all on the CPU (default 1)",
    )
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="by default float32 on a CPU, else the model's own")
    add("--kv-dtype", choices=("float8",), help="of the KV pool: twice the tokens of bfloat16; by default as --dtype")
    add("--context-length", type=int, metavar="TOKENS", help="of a prompt and its output; at most the model's own")
    add(
        "--max-rows",
        type=int,
        metavar="N",
        help="requests computed at once (default 64; on a GPU 256, from 64 GiB on 1024)",
    )
    add("--kv-slots", type=int, metavar="TOKENS", help="tokens the KV pool holds; by default sized from memory")
    add("--chunk-tokens", type=int, metavar="TOKENS", help="prompt tokens computed a step (default 512, on a GPU 8192)")
    add("--mem-fraction", type=float, metavar="SHARE", help="of a GPU's memory that may be taken (default 0.9)")
    add(
        "--attention", choices=("auto", "reference", "triton", "flashinfer"), help="whose kernels attend (default auto)"
    )
    add("--max-queued", type=int, metavar="N", help="requests admitted at once; one more is refused (default 4096)")
    add(
        "--policy",
        choices=("longest-prefix", "first-come"),
        help="which waiting request goes first (default longest-prefix)",
    )
    add("--in-flight", type=int, metavar="STEPS", help="sent ahead of their results (default 2; 1 is no overlap)")
    add(
        "--no-prefix-cache",
        dest="prefix_cache",
        action="store_const",
        const=False,
        help="compute every prompt whole, also where another request has computed its beginning",
    )
    add(
        "--deterministic",
        action="store_const",
        const=True,
        help="the same request gives the same tokens whatever runs beside it; on a GPU only, and slower",
    )
    add(
        "--no-share-attention",
        dest="share_attention",
        action="store_const",
        const=False,
        help="let every row read a prefix for itself, also where others read it in the same step (on a GPU)",
    )
    add(
        "--no-fast-forward",
        dest="fast_forward",
        action="store_const",
        const=False,
        help="say the tokens that a grammar forces one a step",
    )
    add(
        "--no-eager",
        dest="eager",
        action="store_const",
        const=False,
        help="compute nothing of what a program has said while that waits on a tool or a human",
    )
    add("--chat-template", metavar="NAME", help="a template's name or Jinja file; by default the tokenizer's own")
    add("--load-format", choices=("auto", "dummy"), help="dummy fills the weights at random: for measuring")
    add("--served-name", "--served-model-name", metavar="NAME", help="what clients call the model")
    add("--threads", type=int, metavar="N", help="of torch on a CPU")
    add("--seed", type=int, metavar="N", help="makes requests that bring no seed repeatable")


def make_engine(arguments: argparse.Namespace, **more: Any) -> Engine:
    """Make the engine the arguments ask for, and more of Engine's; ValueError names what is wrong."""
    from ..actors.engine import Engine

    given = {name: getattr(arguments, name) for name in _OPTIONS}
    return Engine(arguments.model, **{name: value for name, value in given.items() if value is not None}, **more)


def summary(engine: Engine) -> list[tuple[str, Any]]:
    """Say what a running engine serves, on what, with how much room."""
    limits = engine.limits
    told = {"checkpoint": "the checkpoint's scales", "measured": "measured scales"}
    kept = f" in {limits.kv_dtype} by {told[limits.kv_scales]}" if limits.kv_scales else ""
    several = limits.replicas > 1
    devices = f"{limits.device} to {limits.replicas - 1}" if several and ":" in limits.device else limits.device
    replicas = [("replicas", f"{limits.replicas}, each with what follows")] if several else []
    return [
        ("model", f"{engine.name} ({limits.architecture}, {limits.dtype}, on {devices})"),
        *replicas,
        ("context", f"{limits.context_length:,} tokens"),
        ("room", f"{limits.kv_slots:,} tokens in the KV pool{kept}, {limits.max_rows} requests at once"),
    ]
