"""A tiny random Llama with a byte-level tokenizer, in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from callboard.actors.grammar import GrammarCache
from callboard.actors.worker.build import build_runner

from .driver import EOS, VOCABULARY, Driver, options

logging.disable_progress_bar()


def write_tokenizer(folder: Path) -> None:
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(symbols)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|turn|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=list(EOS),
        bos_token_id=None,
        initializer_range=0.4,  # so that the random model has opinions
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def peer(tiny: Path) -> Any:
    """The same model by transformers."""
    return LlamaForCausalLM.from_pretrained(tiny).eval()


@pytest.fixture(scope="session")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny / "tokenizer.json"))


@pytest.fixture
def driver(tiny: Path) -> Iterator[Driver]:
    with torch.inference_mode():
        # the hand-written steps of most tests bring no forced tokens
        runner, _ = build_runner(options(tiny, fast_forward=False), GrammarCache(tiny))
        yield Driver(runner)


@pytest.fixture
def ahead(tiny: Path) -> Iterator[Driver]:
    """A driver whose runner tells what grammars force."""
    with torch.inference_mode():
        runner, _ = build_runner(options(tiny), GrammarCache(tiny))
        yield Driver(runner)
