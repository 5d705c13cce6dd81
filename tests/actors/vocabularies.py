"""Small tokenizers, trained on the spot."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

__all__ = ["TEXT", "byte_level", "metaspace"]

TEXT = [
    "The capital of France is Paris. The capital of Japan is Tokyo.",
    "Stop here, STOP there; a stop sign stops cars.\n\nEnd of line\n",
    "naïve café, größer, 東京 and Москва, 😀😃 emoji, 한국어",
    "0123456789 + 12 = 24; def f(x): return x",
]


def byte_level(size: int = 400) -> Tokenizer:
    """Train a byte-level BPE with two special tokens, as GPT-2, Llama 3 and Qwen have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return tokenizer


def metaspace(size: int = 500) -> Tokenizer:
    """Train a BPE with byte fallback and a leading-space mark, as Llama 2 and Mistral have."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer
