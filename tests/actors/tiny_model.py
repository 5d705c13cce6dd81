"""A model folder with a tiny random Llama's shape and a byte-level tokenizer, for engines that need no sense."""

from __future__ import annotations

import json
from pathlib import Path

from .vocabularies import byte_level

__all__ = ["write_tiny_model"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path, *, context_length: int = 256, eos: bool = False, vocabulary: int = 384) -> Path:
    """Write config.json and the tokenizer; weights come from load_format="dummy".

    eos: whether the end token is one the model can sample; without, generations run to their length.  vocabulary: 258
    is bytes and no merges.
    """
    tokenizer = byte_level(vocabulary)
    vocabulary = tokenizer.get_vocab_size()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": vocabulary,
        "max_position_embeddings": context_length,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "eos_token_id": tokenizer.token_to_id("<|im_end|>") if eos else None,
        "bos_token_id": None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
