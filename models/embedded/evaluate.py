"""Ask the model the held-out questions and print how often each skill is right.

python -m callboard.models.embedded.evaluate [--weights FOLDER] [--json FILE] [--temperature T]
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from . import path
from .documents import Piece
from .suites import Question, programs, questions, right

__all__ = ["answer", "main", "table"]


def tokens_of(tokenizer: Tokenizer, pieces: list[Piece]) -> list[int]:
    """Tokenize a prompt piece by piece, as the runtime does."""
    return [token for piece in pieces for token in tokenizer.encode(piece.text, add_special_tokens=False).ids]


@torch.inference_mode()
def answer(
    model: Any,
    tokenizer: Tokenizer,
    asked: list[Question],
    *,
    batch: int = 256,
    new_tokens: int = 200,
    temperature: float = 0.0,
) -> list[str]:
    """Return what the model says to each question, greedily unless a temperature is given."""
    prompts = [tokens_of(tokenizer, question.prompt) for question in asked]
    # alike lengths together: little padding, and short answers need not wait for long ones
    order = sorted(range(len(asked)), key=lambda i: (len(asked[i].answer) // 40, len(prompts[i])))
    said = [""] * len(asked)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        longest = max(len(prompts[i]) for i in chosen)
        padded = [[0] * (longest - len(prompts[i])) + prompts[i] for i in chosen]
        mask = [[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in chosen]
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        output = model.generate(
            torch.tensor(padded, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            max_new_tokens=new_tokens,
            eos_token_id=[0, 2],
            pad_token_id=0,
            **sampling,
        )
        for i, row in zip(chosen, output[:, longest:].tolist(), strict=True):
            end = next((at for at, token in enumerate(row) if token in (0, 2)), len(row))
            said[i] = tokenizer.decode(row[:end], skip_special_tokens=False)
    return said


def table(asked: list[Question], said: list[str]) -> dict[str, tuple[int, int]]:
    """Return (right, asked) of each skill."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for question, text in zip(asked, said, strict=True):
        counts[question.skill][0] += right(question, text)
        counts[question.skill][1] += 1
    return {skill: (good, total) for skill, (good, total) in counts.items()}


def main() -> None:
    """Evaluate, print the table and samples of what went wrong, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=path())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--failures", type=int, default=3)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded: Any = LlamaForCausalLM.from_pretrained(arguments.weights, dtype=torch.float32)
    model = loaded.to(device).eval()
    tokenizer = Tokenizer.from_file(str(arguments.weights / "tokenizer.json"))
    torch.manual_seed(0)
    started = time.monotonic()
    asked = questions(share=arguments.share)
    said = answer(model, tokenizer, asked, temperature=arguments.temperature)
    figures = table(asked, said)
    if arguments.failures:
        shown: dict[str, int] = defaultdict(int)
        for question, text in zip(asked, said, strict=True):
            if not right(question, text) and shown[question.skill] < arguments.failures:
                shown[question.skill] += 1
                prompt = "".join(piece.text for piece in question.prompt)
                print(f"[{question.skill}] ...{prompt[-150:]!r}")
                print(f"    said {text[:160]!r}\n    want {question.answer[:160]!r}")
        for question, text in zip(programs(), answer(model, tokenizer, programs()), strict=True):
            print(f"[program] ...{question.prompt[-1].text[-60:]!r} -> {text!r}")
    for skill, (good, total) in figures.items():
        print(f"{skill:30s} {good:4d} / {total:4d}  {100 * good / total:6.1f} %")
    good, total = (sum(column) for column in zip(*figures.values(), strict=True))
    print(f"{'all':30s} {good:4d} / {total:4d}  {100 * good / total:6.1f} %  in {time.monotonic() - started:.0f} s")
    if arguments.json:
        record = {
            "temperature": arguments.temperature,
            "skills": {skill: {"right": good, "asked": total} for skill, (good, total) in figures.items()},
        }
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
