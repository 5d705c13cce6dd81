"""The shipped weights: small enough, loadable by transformers, and right on a sample of the held-out questions."""

import json
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer

from callboard.models.embedded import path
from callboard.models.embedded.evaluate import answer, table
from callboard.models.embedded.suites import programs, questions


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(path() / "tokenizer.json"))


def test_finding_the_model_imports_no_torch():
    code = "import sys, callboard.models.embedded as e; assert e.path().is_dir(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_files_are_small_and_tell_what_they_are():
    assert (path() / "model.safetensors").stat().st_size < 18_000_000
    assert sum(file.stat().st_size for file in path().iterdir()) < 25_000_000
    config = json.loads((path() / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"]
    assert config["max_position_embeddings"] == 2048
    generation = json.loads((path() / "generation_config.json").read_text())
    assert generation["eos_token_id"] == config["eos_token_id"] == [2, 0]


def test_transformers_loads_it_as_a_model_of_under_ten_million_parameters(model):
    assert type(model).__name__ == "LlamaForCausalLM"
    assert sum(parameter.numel() for parameter in model.parameters()) < 10_000_000


def test_it_answers_held_out_questions_of_every_skill(model, tokenizer):
    asked = questions("a sample for the tests", share=0.03)
    figures = table(asked, answer(model, tokenizer, asked))
    assert len(figures) >= 35
    good, total = (sum(column) for column in zip(*figures.values(), strict=True))
    assert good / total >= 0.95, figures
    assert all(right for right, _ in figures.values()), figures


def test_it_answers_the_founding_programs(model, tokenizer):
    asked = programs()
    said = answer(model, tokenizer, asked)
    for question, text in zip(asked, said, strict=True):
        if question.answer:
            assert text.strip() == question.answer, question.prompt[-1].text
        assert text
        assert len(text) < 600  # it ends its turns


def test_the_figures_that_ship_are_of_every_skill():
    record = json.loads((path() / "held_out.json").read_text())
    assert set(record["skills"]) == {question.skill for question in questions(share=0.01)}
    good, total = (sum(skill[key] for skill in record["skills"].values()) for key in ("right", "asked"))
    assert good / total > 0.98
