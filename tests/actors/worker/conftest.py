"""A tiny random Llama with a byte-level tokenizer, in a folder; and a driver that schedules by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from callboard.actors.grammar import GrammarCache
from callboard.actors.messages import Begin, Extend, Step, StepDone
from callboard.actors.sampling import SamplingParams
from callboard.actors.worker.build import build_runner
from callboard.actors.worker.options import WorkerOptions
from callboard.actors.worker.runner import Runner

VOCABULARY = 320  # 256 bytes, 2 ends, and ids that no token has
EOS = (256, 257)


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
        runner, _ = build_runner(options(tiny), GrammarCache(tiny))
        yield Driver(runner)
        runner.close()


def options(folder: Path, **changes: Any) -> WorkerOptions:
    return WorkerOptions(**{"folder": str(folder), "max_rows": 8, "context_length": 128, **changes})


def packed(values: Any) -> bytes:
    return np.asarray(values, np.int32).tobytes()


class Driver:
    """Give out slots in a shuffled order and send one Step at a time; remembers each row's slots."""

    def __init__(self, runner: Runner, slots: int = 512) -> None:
        self.runner = runner
        self.slots: dict[int, list[int]] = {}
        self.free = np.random.default_rng(0).permutation(slots).tolist()
        self.number = 0

    def take(self, row: int, count: int) -> list[int]:
        taken = [self.free.pop() for _ in range(count)]
        self.slots.setdefault(row, []).extend(taken)
        return taken

    def extend(
        self,
        row: int,
        tokens: list[int],
        sampling: SamplingParams | None = None,
        *,
        start: int = 0,
        sample: bool = True,
        prefix_slots: list[int] | None = None,
        targets: list[int] | None = None,
        targets_start: int = 0,
        seed: int | None = None,
        output: list[int] | None = None,
        context: list[int] | None = None,
    ) -> Extend:
        """Extend a row; with `sampling`, begin it first."""
        begin = None
        if sampling is not None:
            self.slots[row] = list(prefix_slots or [])
            begin = Begin(
                row, row if seed is None else seed, sampling, packed(output or []), packed(context or []), packed(EOS)
            )
        taken = self.take(row, len(tokens))
        return Extend(
            row,
            start,
            packed(tokens),
            packed(taken),
            sample,
            begin,
            packed(prefix_slots or []),
            packed(targets or []),
            targets_start,
        )

    def make(self, *extends: Extend, decode: tuple[int, ...] = (), retire: tuple[int, ...] = ()) -> Step:
        self.number += 1
        slots = [self.take(row, 1)[0] for row in decode]
        return Step(self.number, extends, packed(decode), packed(slots), packed(retire))

    def step(self, *extends: Extend, decode: tuple[int, ...] = (), retire: tuple[int, ...] = ()) -> StepDone:
        return self.runner.run(self.make(*extends, decode=decode, retire=retire))

    def generate(self, prompt: list[int], sampling: SamplingParams, count: int, **begin: Any) -> list[int]:
        """Run one request alone on row 0; its tokens."""
        tokens = read(self.step(self.extend(0, prompt, sampling, **begin)).tokens)
        while len(tokens) < count:
            tokens += read(self.step(decode=(0,)).tokens)
        self.step(retire=(0,))
        return tokens


def read(values: bytes) -> list[int]:
    return np.frombuffer(values, np.int32).tolist()


def floats(values: bytes) -> list[float]:
    return np.frombuffer(values, np.float32).tolist()
