"""Write model folders of true shapes without weights, for engines that draw them: load_format="dummy".

    python bench/shapes.py FOLDER [Llama-3.1-8B ...]

Each gets the config.json of its namesake and a byte-level tokenizer whose vocabulary is as large: every token is text,
so detokenizing costs what it costs, and a text becomes about one token a byte.  No token ends a generation.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

__all__ = ["SHAPES", "write_shape"]


def _llama3(**shape: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": shape.pop("factor"),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "torch_dtype": "bfloat16",
        **shape,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": _llama3(
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        head_dim=128,
        tie_word_embeddings=False,
        factor=8.0,
    ),
    "Llama-3.2-1B": _llama3(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        head_dim=64,
        tie_word_embeddings=True,
        factor=32.0,
    ),
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
    },
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_shape(folder: Path, name: str, **changes: Any) -> Path:
    """Write a model folder of a known shape; changes replace fields of its config.json.  Returns the folder."""
    if name not in SHAPES:
        raise ValueError(f"shape is {name!r}; allowed: {', '.join(SHAPES)}")
    config = SHAPES[name] | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    _tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"), pretty=False)
    return folder


def _tokenizer(size: int) -> Tokenizer:
    """Build a byte-level vocabulary: the bytes, then made-up words, which only a model can write."""
    if size < 256:
        raise ValueError(f"vocab_size is {size}; it must be at least 256, one a byte")
    vocabulary = {text: token for token, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = ("Ġ" + "".join(letters) for letters in product(ascii_lowercase, repeat=4))
    vocabulary |= {word: token for token, word in zip(range(256, size), words, strict=False)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description="Write model folders of true shapes, without weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}; all unless given")
    arguments = parser.parse_args()
    for name in arguments.names or SHAPES:
        print(write_shape(arguments.folder / name, name))


if __name__ == "__main__":
    main()
