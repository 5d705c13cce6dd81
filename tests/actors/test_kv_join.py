"""What a model says behind joined branches is what transformers says with the same attention built by hand."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import torch

import callboard as cb
from callboard import Engine
from callboard.actors.backend import Prompt
from callboard.actors.completion import Completion
from callboard.actors.errors import InvalidRequest
from callboard.actors.joins import pack_joins
from callboard.actors.messages import Delta, Generate
from callboard.actors.sampling import SamplingParams

from .tiny_model import write_tiny_model

pytestmark = pytest.mark.anyio

STEM = "Once there was a fork of many tines. "
SCHEMA = '{"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"]}'
GREEDY = {"temperature": 0.0, "ignore_eos": True}


class Listening(Engine):
    """Remember every prompt that is asked for, and the tokens that came."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.heard: list[tuple[Prompt, list[int], list[float]]] = []

    async def generate(self, prompt: Any, sampling: Any = None, **more: Any) -> AsyncGenerator[Delta, None]:
        tokens: list[int] = []
        logprobs: list[float] = []
        self.heard.append((prompt, tokens, logprobs))
        async for delta in super().generate(prompt, sampling, **more):
            tokens += delta.tokens
            logprobs += [item.logprob for item in delta.logprobs]
            yield delta

    async def complete(self, prompt: Any, sampling: Any = None, **more: Any) -> Completion:
        return Completion.of([delta async for delta in self.generate(prompt, sampling, **more)])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Save a random Llama in float32, and give it as transformers has it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = write_tiny_model(tmp_path_factory.mktemp("llama"), context_length=512, eos=True)
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder, attn_implementation="eager")).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2) if parameter.dim() > 1 else None
    model.save_pretrained(folder)
    return folder, model


@asynccontextmanager
async def listening(folder: Path, **options: Any) -> AsyncIterator[Listening]:
    async with Listening(folder, **{"seed": 1, "max_rows": 8, "kv_slots": 2048, "threads": 1, **options}) as engine:
        yield engine


def by_hand(model: Any, tokens: list[int], pieces: list[tuple[int, int, set[int]]]) -> torch.Tensor:
    """Compute log-probabilities behind every token, [T, V].

    pieces: of each run of columns how many it has, its first position, and which earlier runs it sees.
    """
    count = sum(piece[0] for piece in pieces)
    assert count == len(tokens)
    owner = [index for index, piece in enumerate(pieces) for _ in range(piece[0])]
    positions = [piece[1] + step for piece in pieces for step in range(piece[0])]
    seen = torch.zeros(count, count, dtype=torch.bool)
    for query in range(count):
        for key in range(query + 1):
            seen[query, key] = owner[key] == owner[query] or owner[key] in pieces[owner[query]][2]
    mask = torch.zeros(1, 1, count, count).masked_fill_(~seen, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        logits = model(
            input_ids=torch.tensor([tokens]), position_ids=torch.tensor([positions]), attention_mask=mask
        ).logits
    return logits[0].log_softmax(-1)


def assert_said(logprobs: torch.Tensor, first: int, tokens: list[int], told: list[float]) -> None:
    """Assert that greedy tokens, from column `first` on, are what the model says, as likely as it says."""
    expected = logprobs[first - 1 : first - 1 + len(tokens)]
    assert expected.argmax(-1).tolist() == tokens
    found = expected[torch.arange(len(tokens)), tokens]
    torch.testing.assert_close(found, torch.tensor(told), atol=2e-4, rtol=1e-4)


def assert_said_behind_one_join(model: Any, joined: Prompt, answer: list[int], told: list[float]) -> None:
    """Assert that of an answer behind branches at their stem's end."""
    tokens, (start, count, *parts) = ids(joined.tokens), ids(joined.joins)
    sizes = parts[::2]
    pieces = [(start, 0, set[int]()), *((size, start, {0}) for size in sizes)]
    behind = len(tokens) + len(answer) - start - sum(sizes)
    pieces.append((behind, start + max(sizes), set(range(count + 1))))
    assert_said(by_hand(model, tokens + answer, pieces), len(tokens), answer, told)


def ids(data: bytes) -> list[int]:
    return np.frombuffer(data, np.int32).tolist()


@pytest.mark.parametrize("offsets", [None, [0, 40, 7]])
@pytest.mark.parametrize("tail", ["So they all agreed: ", ""])
async def test_a_program_says_behind_a_join_what_the_attention_built_by_hand_says(
    llama: tuple[Path, Any], offsets: list[int] | None, tail: str
) -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += STEM
        forks = s.fork(3, position_ids_offset=offsets)
        forks += lambda index: f"Part {index}: " + cb.gen("part", max_tokens=4 + index, return_logprob=True)
        await forks.ajoin("concate_and_append")
        s += tail + cb.gen("answer", max_tokens=6, return_logprob=True)
        s += " And " + cb.gen("more", max_tokens=3, return_logprob=True)

    folder, model = llama
    async with listening(folder) as engine:
        state = await program.arun(backend=engine, **GREEDY)
        stem = ids(await engine.encode(STEM))
        parts = [f"Part {index}: " + state["part"][index] for index in range(3)]
        assert state.text() == STEM + "".join(parts) + tail + state["answer"] + " And " + state["more"]
        asked = [one for one in engine.heard if one[1]]
        statistics = (await engine.statistics())["scheduler"]
    columns = len(stem)
    heads = [ids(one[0].tokens)[columns:] for one in sorted(asked[:3], key=lambda one: len(one[1]))]
    said = sorted((one[1:] for one in asked[:3]), key=lambda one: len(one[0]))
    branches = [head + tokens for head, (tokens, _) in zip(heads, said, strict=True)]
    starts = [columns + offset for offset in offsets or (0, 0, 0)]
    for head, branch, start, (tokens, told) in zip(heads, branches, starts, said, strict=True):
        found = by_hand(model, stem + branch, [(columns, 0, set()), (len(branch), start, {0})])
        assert_said(found, columns + len(head), tokens, told)
    furthest = max(start + len(branch) for start, branch in zip(starts, branches, strict=True))
    (joined, answer, told), (further, more, told_more) = asked[3:]
    first, last = len(ids(joined.tokens)), len(ids(further.tokens))
    joint = sum(map(len, branches)) + columns
    tokens = ids(further.tokens) + more
    if not tail:  # the last token of the last branch is read once more, where it sees all
        branches[-1] = branches[-1][:-1]
        joint -= 1
        furthest = max(start + len(branch) for start, branch in zip(starts, branches, strict=True))
    pieces = [(columns, 0, set[int]())]
    pieces += [(len(branch), start, {0}) for start, branch in zip(starts, branches, strict=True)]
    pieces += [(len(tokens) - joint, furthest, {0, 1, 2, 3})]
    found = by_hand(model, tokens, pieces)
    assert_said(found, first, answer, told)
    assert_said(found, last, more, told_more)
    assert state.get_meta_info("answer")["cached_tokens"] == joint, "all of the branches is there, last tokens too"
    behind = first - joint, last - (first + len(answer) - 1)
    most = columns + sum(map(len, heads)) + sum(behind) + 3
    assert statistics["computed_tokens"] <= most, "nothing is computed again, but for last tokens that come too late"


async def test_however_branches_end_what_is_said_behind_their_join_is_right(llama: tuple[Path, Any]) -> None:
    """At their limit, by a stop inside of their text or a grammar, forced or not, behind a healed prompt."""
    ends: list[dict[str, Any]] = [
        {"max_tokens": 5}, {"max_tokens": 24, "stop": []}, {"max_tokens": 12, "regex": "(ab|cd)efgh(ij|kl)mn"},
        {"max_tokens": 6, "regex": "xyzabcdefgh"}, {"max_tokens": 30, "json_schema": SCHEMA},
        {"max_tokens": 4, "heal": True},
    ]  # fmt: skip

    @cb.function
    async def program(s: Any) -> None:
        s += STEM
        forks = s.fork(len(ends))
        forks += lambda index: f"Part {index}: http:" + cb.gen("part", **ends[index])
        await forks.ajoin("concate_and_append")
        s += "So: " + cb.gen("answer", max_tokens=6, return_logprob=True)

    folder, model = llama
    for in_flight in (1, 2):
        async with listening(folder, in_flight=in_flight) as engine:
            if not ends[1]["stop"]:
                text = (await program.arun(backend=engine, **GREEDY))["part"][1]
                ends[1]["stop"] = [text[9:11]]
                engine.heard.clear()
                await engine.flush()
            state = await program.arun(backend=engine, **GREEDY)
            assert ends[1]["stop"][0] not in state["part"][1]
            heard = engine.heard[-1]
        assert_said_behind_one_join(model, *heard)


async def test_text_that_is_computed_behind_a_join_while_its_program_waits_is_right(llama: tuple[Path, Any]) -> None:
    rules = "These are the rules, and whoever goes on must follow every one of them. "

    @cb.function
    async def program(s: Any) -> None:
        s += STEM
        forks = s.fork(3)
        forks += lambda index: f"Part {index}: " + cb.gen("part", max_tokens=4 + index)
        await forks.ajoin("concate_and_append")
        s += rules
        wanted = len(await engine.encode(rules, beginning=False)) // 4
        with anyio.fail_after(60):
            while (await engine.statistics())["scheduler"]["eager_tokens"] < wanted:
                await anyio.lowlevel.checkpoint()
        s += cb.gen("answer", max_tokens=6, return_logprob=True)

    folder, model = llama
    async with listening(folder) as engine:
        state = await program.arun(backend=engine, **GREEDY)
    answer = state.get_meta_info("answer")
    assert answer["cached_tokens"] == answer["prompt_tokens"] - 1
    assert_said_behind_one_join(model, *engine.heard[-1])


async def test_joins_in_branches_and_behind_joins_are_what_they_are_by_hand(llama: tuple[Path, Any]) -> None:
    folder, model = llama
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 250, 30).tolist()
    #  0 1 2 3 | 4 5 (6 7 | 8 9 10) 11 | 12 13 14 | 15 16 | (17 18 | 19) | 20 ...
    forks = [(4, 2, 8, 0, 3, 5), (6, 2, 2, 0, 3, 1), (17, 2, 2, 0, 1, 0)]
    prompt = Prompt(tokens=np.array(tokens, np.int32).tobytes(), joins=pack_joins(forks))
    async with listening(folder) as engine:
        done = await engine.complete(prompt, SamplingParams(max_new_tokens=5, return_logprob=True, **GREEDY))
        again = await engine.complete(prompt, SamplingParams(max_new_tokens=5, return_logprob=True, **GREEDY))
        await engine.flush()
        anew = await engine.complete(prompt, SamplingParams(max_new_tokens=5, return_logprob=True, **GREEDY))
    assert done.tokens == again.tokens == anew.tokens
    assert (done.finish.cached_tokens, again.finish.cached_tokens) == (0, 29)
    pieces = [
        (4, 0, set[int]()), (2, 4, {0}), (2, 6, {0, 1}), (3, 7, {0, 1}), (1, 10, {0, 1, 2, 3}), (3, 9, {0}),
        (2, 12, {0, 1, 2, 3, 4, 5}), (2, 14, set(range(7))), (1, 14, set(range(7))), (15, 16, set(range(9))),
    ]  # fmt: skip
    found = by_hand(model, tokens + list(done.tokens), pieces)
    assert_said(found, 30, list(done.tokens), [item.logprob for item in done.logprobs])


async def test_a_branch_that_says_nothing_of_its_own_jumps_behind_the_stem(llama: tuple[Path, Any]) -> None:
    folder, model = llama
    tokens = list(range(40, 52))
    prompt = Prompt(tokens=np.array(tokens, np.int32).tobytes(), joins=pack_joins([(12, 0, 30)]))
    async with listening(folder) as engine:
        done = await engine.complete(prompt, SamplingParams(max_new_tokens=4, return_logprob=True, **GREEDY))
    found = by_hand(model, tokens + list(done.tokens), [(12, 0, set()), (4, 42, {0})])
    assert_said(found, 12, list(done.tokens), [item.logprob for item in done.logprobs])


async def test_choices_behind_a_join_are_scored_behind_all_of_it(llama: tuple[Path, Any]) -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += STEM
        forks = s.fork(2)
        forks += lambda index: f"Part {index}."
        await forks.ajoin("concate_and_append")
        s += cb.select("which", ["one", "two"])

    folder, model = llama
    async with listening(folder) as engine:
        state = await program.arun(backend=engine)
        stem, *parts = [ids(await engine.encode(text)) for text in (STEM, "Part 0.", "Part 1.")]
        choices = [ids(await engine.encode(text)) for text in ("one", "two")]
        told = state.get_meta_info("which")["input_token_logprobs"]
    columns = len(stem)
    for choice, given in zip(choices, told, strict=True):
        pieces = [(columns, 0, set[int]()), (len(parts[0]), columns, {0}), (len(parts[1]) - 1, columns, {0})]
        pieces.append((1 + len(choice), columns + len(parts[0]), {0, 1, 2}))
        found = by_hand(model, stem + parts[0] + parts[1] + choice, pieces)
        first = len(found) - len(choice)
        expected = [float(found[first - 1 + index, token]) for index, token in enumerate(choice)]
        assert [item[0] for item in given][-len(choice) :] == pytest.approx(expected, abs=2e-4)


async def test_positions_beyond_the_context_are_refused(llama: tuple[Path, Any]) -> None:
    async with listening(llama[0]) as engine:
        tokens = np.arange(8, dtype=np.int32).tobytes()
        with pytest.raises(InvalidRequest, match="position 512; the context holds 512"):
            await engine.complete(Prompt(tokens=tokens, joins=pack_joins([(4, 0, 504)])))
        near = Prompt(tokens=tokens, joins=pack_joins([(4, 0, 500)]))
        done = await engine.complete(near, SamplingParams(max_new_tokens=50, **GREEDY))
        assert len(done.tokens) == 4
        with pytest.raises(InvalidRequest, match="joins"):
            await engine.complete(Prompt(tokens=tokens, joins=pack_joins([(4, 2, 9, 0, 9, 0)])))


async def test_parallel_encoding_can_be_turned_off(llama: tuple[Path, Any]) -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += STEM
        forks = s.fork(2, position_ids_offset=[0, 9])
        forks += lambda index: f"Part {index}."
        await forks.ajoin("concate_and_append")
        s += cb.gen("answer", max_tokens=2)

    async with listening(llama[0]) as engine:
        cb.global_config.enable_parallel_encoding = False
        try:
            await program.arun(backend=engine, **GREEDY)
        finally:
            cb.global_config.enable_parallel_encoding = True
        assert engine.heard[-1][0].joins == b""
        assert engine.joins
    async with listening(llama[0], prefix_cache=False) as engine:
        assert not engine.joins
        await program.arun(backend=engine, **GREEDY)
        assert engine.heard[-1][0].joins == b""


async def test_a_program_that_is_cancelled_at_any_point_of_a_join_leaves_no_slot_behind(
    llama: tuple[Path, Any],
) -> None:
    @cb.function
    async def program(s: Any) -> None:
        s += STEM
        forks = s.fork(3, position_ids_offset=[0, 5, 0])
        forks += lambda index: f"Part {index}: " + cb.gen("part", max_tokens=2 + index)
        await forks.ajoin("concate_and_append")
        s += cb.gen("answer", max_tokens=3)
        inner = s.fork(2)
        inner += lambda index: f"Or {index}: " + cb.gen("or", max_tokens=2)
        await inner.ajoin("concate_and_append")
        s += "So: " + cb.gen("end", max_tokens=2)

    async def held(engine: Engine) -> dict[str, int]:
        with anyio.fail_after(30):
            while (told := (await engine.statistics())["scheduler"])["slots_locked"] or told["slots_private"]:
                await anyio.lowlevel.checkpoint()
        return told

    finished = turns = 0
    async with listening(llama[0], chunk_tokens=32) as engine:
        while finished < 3:
            done = False
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    nonlocal done
                    await program.arun(backend=engine, **GREEDY)
                    done = True

                group.start_soon(run)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            turns += 1 + turns // 8
            finished += done
            told = await held(engine)
            assert (told["waiting"], told["running"], told["slots_locked"], told["slots_private"]) == (0, 0, 0, 0)
            assert told["slots_free"] + told["slots_tree"] == told["slots"]
            if turns % 3 == 0:
                await engine.flush()
        state = await program.arun(backend=engine, **GREEDY)
        assert state["end"]
        await engine.flush()
        assert (await held(engine))["slots_free"] == told["slots"]


async def test_a_joined_generation_goes_on_with_the_same_tokens_when_core_dies(llama: tuple[Path, Any]) -> None:
    tokens = np.arange(40, 60, dtype=np.int32).tobytes()
    prompt = Prompt(tokens=tokens, joins=pack_joins([(6, 2, 7, 0, 5, 3)]))
    async with listening(llama[0]) as engine:
        right = await engine.complete(prompt, SamplingParams(max_new_tokens=40, **GREEDY))
        found: list[int] = []
        async for delta in engine.generate(prompt, SamplingParams(max_new_tokens=40, **GREEDY)):
            if not found:
                engine._wires.schedulers[0].post(Generate(1 << 40, None, SamplingParams()))  # type: ignore[arg-type]
            found += delta.tokens
        assert found == list(right.tokens)
        assert (await engine.statistics())["requests"]["replayed"] == 1
