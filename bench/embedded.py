"""Measure the embedded engine beside transformers' `generate`: same weights, prompts, dtype, threads, one run.

programs: two-turn chats in the language, greedy, that end where the model ends them.  transformers gets all of them
    turn by turn, each turn as one left-padded batch with its KV cache on; tokens behind a row's end do not count.
decode: a fixed number of tokens behind chat prompts of different lengths, ends ignored: one batch, so many requests.

Each side runs in a process of its own (two thread pools in one process slow each other down on a machine of few cores),
in turns, and the best round of each counts.  limit: the weights as float32 read once a step at the measured read rate
(at 1 row), which no implementation on this CPU can beat without smaller weights.

    python bench/embedded.py [--rounds N] [--tokens N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

import callboard as cb
from callboard.actors.engine import Engine
from callboard.actors.sampling import SamplingParams
from callboard.models import embedded

RESULTS = Path(__file__).parent / "results"
TARGETS = {1: 2.0, 32: 4.0}
PLACES = ("France", "Japan", "Peru", "Kenya", "Italy", "Norway", "Cuba", "Chile")


def prompts(rows: int) -> list[str]:
    """Give chat prompts of 15 to 60 tokens, all different."""
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    return [
        (system if row % 2 else "")
        + f"<|im_start|>user\nWhat is the capital of {PLACES[row % 8]}? And what is {row} + {3 * row}?"
        + " Please answer both." * (row % 4)
        + "<|im_end|>\n<|im_start|>assistant\n"
        for row in range(rows)
    ]


class Peer:
    """transformers on the shipped weights."""

    def __init__(self) -> None:
        folder = embedded.path()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.ends = set(self.model.generation_config.eos_token_id)

    def seconds(self, rows: int, tokens: int) -> float:
        inputs = self.tokenizer(prompts(rows), return_tensors="pt", padding=True, return_token_type_ids=False)
        begun = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                **inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, use_cache=True
            )
        took = time.perf_counter() - begun
        assert out.shape[1] == inputs["input_ids"].shape[1] + tokens
        return took

    def run_programs(self, rows: int) -> tuple[float, int]:
        """Run the chats turn by turn; give seconds and output tokens, the end tokens included."""
        begun = time.perf_counter()
        talks = [[{"role": "user", "content": first}] for first, _ in chats(rows)]
        tokens = 0
        for turn in range(2):
            inputs = self.tokenizer.apply_chat_template(
                talks, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
            )
            inputs.pop("token_type_ids", None)
            with torch.inference_mode():
                out = self.model.generate(**inputs, max_new_tokens=96, do_sample=False, use_cache=True)
            for talk, row, (_, second) in zip(talks, out[:, inputs["input_ids"].shape[1] :], chats(rows), strict=True):
                end = next((at for at, token in enumerate(row.tolist()) if token in self.ends), len(row) - 1)
                tokens += end + 1
                talk.append({"role": "assistant", "content": self.tokenizer.decode(row[:end])})
                if turn == 0:
                    talk.append({"role": "user", "content": second})
        return time.perf_counter() - begun, tokens


async def forget(engine: Engine) -> None:
    """Empty the prefix cache; what the round before still holds is let go within a step or two."""
    while (await engine.flush()).held:  # noqa: ASYNC110 - an engine tells nobody when its cache is free
        await asyncio.sleep(0.001)


async def ours(engine: Engine, rows: int, tokens: int) -> float:
    """Run all prompts at once; the prefix cache is emptied first."""
    await forget(engine)
    sampling = SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True)
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(engine.complete(prompt, sampling)) for prompt in prompts(rows)]
    took = time.perf_counter() - begun
    assert all(task.result().finish.completion_tokens == tokens for task in tasks)
    return took


def limit() -> float:
    """Give the tokens a second at 1 row that reading the weights alone would allow, at the measured read rate."""
    weights = sum(path.stat().st_size for path in embedded.path().glob("*.safetensors")) * 2  # bfloat16 to float32
    block = torch.randn(weights // 4)
    block.sum()
    begun = time.perf_counter()
    for _ in range(20):
        block.sum()
    return 20 / (time.perf_counter() - begun)


TURNS = (
    ("What is the capital of {place}?", "And what is {number} + {number}?"),
    ("List 3 countries and their capitals.", "Please give me another list of 3 countries and their capitals."),
    ("Write a paragraph about regular exercise.", "Thank you!"),
    ("What is {number} times 7?", "Name the planets in order."),
)


def chats(rows: int) -> list[tuple[str, str]]:
    """Give each program's two questions."""
    return [
        (first.format(place=PLACES[row % 8], number=row % 12), second.format(place=PLACES[row % 8], number=row % 12))
        for row, (first, second) in enumerate(TURNS[row % len(TURNS)] for row in range(rows))
    ]


@cb.function
def chat(s, first, second):
    s += cb.user(first)
    s += cb.assistant(cb.gen("first", max_tokens=96, temperature=0))
    s += cb.user(second)
    s += cb.assistant(cb.gen("second", max_tokens=96, temperature=0))


async def run_programs(engine: Engine, rows: int) -> tuple[float, int]:
    """Run the chats as programs; give seconds and output tokens, the end tokens included."""
    await forget(engine)
    before = (await engine.statistics())["scheduler"]["output_tokens"]
    items = [{"first": first, "second": second} for first, second in chats(rows)]
    begun = time.perf_counter()
    await chat.arun_batch(items, backend=engine)
    took = time.perf_counter() - begun
    return took, (await engine.statistics())["scheduler"]["output_tokens"] - before


CASES = (("programs", 1), ("programs", 32), ("decode", 1), ("decode", 8), ("decode", 32))


async def one_ours(rounds: int, tokens: int) -> dict[str, float]:
    """Give the best rate of each case, in tokens a second."""
    best: dict[str, float] = {}
    async with Engine("embedded", seed=0) as engine:
        for what, rows in CASES:
            for _ in range(rounds + 1):  # the first warms up: a best of rounds never keeps it
                if what == "programs":
                    took, made = await run_programs(engine, rows)
                else:
                    took, made = await ours(engine, rows, tokens), rows * tokens
                best[f"{what} {rows}"] = max(best.get(f"{what} {rows}", 0.0), made / took)
    return best


def one_peer(rounds: int, tokens: int) -> dict[str, float]:
    """Do the same for transformers."""
    best: dict[str, float] = {}
    peer = Peer()
    for what, rows in CASES:
        for _ in range(rounds + 1):
            if what == "programs":
                took, made = peer.run_programs(rows)
            else:
                took, made = peer.seconds(rows, tokens), rows * tokens
            best[f"{what} {rows}"] = max(best.get(f"{what} {rows}", 0.0), made / took)
    return best


def run(who: str, rounds: int, tokens: int) -> dict[str, float]:
    """Measure one side in a process of its own."""
    command = [sys.executable, __file__, "--one", who, "--rounds", str(rounds), "--tokens", str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(rounds: int, tokens: int) -> list[dict[str, Any]]:
    """Measure both sides in turns, twice."""
    best: dict[str, dict[str, float]] = {"ours": {}, "peer": {}}
    for _ in range(2):
        for who, rates in best.items():
            for case, rate in run(who, rounds, tokens).items():
                rates[case] = max(rates.get(case, 0.0), rate)
    return [
        {
            "what": what,
            "rows": rows,
            "ours_tok_s": best["ours"][f"{what} {rows}"],
            "transformers_tok_s": best["peer"][f"{what} {rows}"],
            "ratio": best["ours"][f"{what} {rows}"] / best["peer"][f"{what} {rows}"],
            "target_ratio": TARGETS.get(rows) if what == "programs" else None,
            "limit_tok_s": limit() if (what, rows) == ("decode", 1) else None,
        }
        for what, rows in CASES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", choices=("ours", "peer"), help="measure one side in this process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    if arguments.one is not None:
        if arguments.one == "ours":
            print(json.dumps(asyncio.run(one_ours(arguments.rounds, arguments.tokens))))
        else:
            print(json.dumps(one_peer(arguments.rounds, arguments.tokens)))
        return
    found = measure(arguments.rounds, arguments.tokens)
    table = Table(title="embedded engine, float32, output tokens a second")
    for column in ("", "rows", "callboard", "transformers", "ratio", "target", "limit"):
        table.add_column(column, justify="right")
    for row in found:
        table.add_row(
            row["what"],
            str(row["rows"]),
            f"{row['ours_tok_s']:,.0f}",
            f"{row['transformers_tok_s']:,.0f}",
            f"{row['ratio']:.2f}x",
            f"{row['target_ratio']}x" if row["target_ratio"] else "",
            f"{row['limit_tok_s']:,.0f}" if row.get("limit_tok_s") else "",
        )
    Console().print(table)
    RESULTS.mkdir(exist_ok=True)
    record = {
        "bench": "embedded",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "cpu": platform.machine(),
        "results": found,
    }
    (RESULTS / "embedded.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
