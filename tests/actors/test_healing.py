"""A healed prompt's end is written again by the model, and nobody sees it twice; text is tokens, always."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import callboard as cb
from callboard.actors.backend import Prompt
from callboard.actors.engine import Completion, Engine
from callboard.actors.healing import Healer
from callboard.actors.sampling import SamplingParams

from .tiny_model import write_tiny_model
from .vocabularies import TEXT, metaspace

pytestmark = pytest.mark.anyio

TABLE = {number: text.encode() for number, text in enumerate(["a", "b", "ab", "abc", ":", "://", "é", "è!", "x"])}
TABLE[20], TABLE[21] = "é".encode()[:1], "é".encode()[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), eos=True)


@asynccontextmanager
async def tiny(folder: Path) -> AsyncIterator[Engine]:
    async with Engine(folder, load_format="dummy", seed=1, max_rows=8, kv_slots=2048, threads=1) as engine:
        with anyio.fail_after(60):
            yield engine


@pytest.mark.parametrize(
    ("ids", "limit", "wanted"),
    [
        ([8, 4], 9, (1, ":")),  # "://" may stand there
        ([8, 0, 1], 9, (2, "ab")),  # "abc": the longest end that a token begins with
        ([8, 2], 9, (1, "ab")),
        ([8, 3], 9, (0, "")),  # nothing goes on behind "abc"
        ([8, 8], 9, (0, "")),
        ([8, 0, 1], 1, (0, "")),  # "b" is sound, and "a" may not be taken
        ([0, 1], 9, (0, "")),  # the first token stays, and "b" is sound
        ([8, 50, 0], 9, (1, "a")),
        ([8, 0, 50], 9, (0, "")),  # a special token is never taken back
        ([8, 6], 9, (0, "")),  # "é" is whole: that "è" begins with the same byte is nothing to it
        ([8, 20, 21], 9, (0, "")),
        ([8, 20], 9, (0, "")),  # half a character cannot be said
        ([4], 9, (0, "")),
        ([], 9, (0, "")),
    ],
)
def test_what_a_longer_token_might_have_swallowed_is_taken_back(
    ids: list[int], limit: int, wanted: tuple[int, str]
) -> None:
    assert Healer(TABLE).take_back(ids, limit) == wanted


async def whole(engine: Engine, prompt: Any, done: Completion) -> str:
    """Decode the sequence the program would go on with."""
    ids = await engine._texts.read(prompt, engine.limits.vocabulary)
    taken = 0 if done.finish.healed is None else done.finish.healed.taken
    kept = np.asarray(done.tokens[: done.finish.kept_tokens], np.int32).tobytes()
    return await engine.decode(ids[: len(ids) - 4 * taken] + kept) + done.finish.tail


async def test_the_likeliest_token_over_the_end_is_within_reach(folder: Path) -> None:
    async with tiny(folder) as engine:
        france = np.frombuffer(await engine.encode(" France"), np.int32).tolist()
        assert len(france) == 1
        bias = {france[0]: 100.0}  # this model has one wish, to write " France"
        prompt, wish = "The capital of Fr", SamplingParams(max_new_tokens=1, temperature=0, logit_bias=bias)
        assert (await engine.complete(prompt, wish)).text == " France"
        healed = await engine.complete(
            prompt, SamplingParams(max_new_tokens=1, temperature=0, logit_bias=bias, heal=True)
        )
        assert healed.text.startswith("ance")
        assert healed.tokens[0] == france[0]
        assert healed.finish.healed is not None
        assert (healed.finish.healed.inside, healed.finish.healed.text) == (0, " Fr")


async def test_text_and_tokens_agree_whatever_is_cut(folder: Path) -> None:
    chance = random.Random(4)
    text = " ".join(TEXT)
    async with tiny(folder) as engine:
        for trial in range(60):
            start = chance.randrange(len(text) - 40)
            prompt = text[start : start + chance.randint(2, 40)]
            stop = (chance.choice("aeinort .\n"),) if trial % 3 == 0 else ()
            regex = r"[a-z ]{3,12}" if trial % 4 == 1 else None
            sampling = SamplingParams(
                max_new_tokens=chance.choice([1, 2, 8]), temperature=1.5, seed=trial, stop=stop, regex=regex, heal=True
            )
            done = await engine.complete(prompt, sampling)
            assert await whole(engine, prompt, done) == prompt + done.text
            assert not any(one in done.text for one in stop)
            if regex is not None and done.finish.reason == "stop" and not stop:
                assert 3 <= len(done.text) <= 12
            if done.finish.healed is not None and done.finish.healed.taken and not done.finish.tail:
                own = list(done.tokens[done.finish.healed.inside :])
                assert await engine.decode(own) == done.finish.healed.text + done.text


async def test_tokens_the_model_wrote_are_never_taken_back(folder: Path) -> None:
    async with tiny(folder) as engine:
        said = await engine.encode("The capital of Fr")
        sampling = SamplingParams(max_new_tokens=3, temperature=0, heal=True)
        assert (await engine.complete(Prompt(tokens=said), sampling)).finish.healed is None
        assert (await engine.complete(Prompt(tokens=said, fresh=len(said) // 4), sampling)).finish.healed is not None


async def test_a_program_s_variables_have_their_tokens_and_its_text_is_its_tokens(folder: Path) -> None:
    @cb.function
    async def program(s, beginning):
        s += beginning + cb.gen("one", max_tokens=6, heal=True)
        s += " The capital of J" + cb.gen("two", max_tokens=6, stop="e", heal=True)
        s += cb.gen("three", max_tokens=4, heal=True) + "sto" + cb.select("four", ["p", "ps", "ry"])
        s += cb.gen("five", max_tokens=4)

    async with tiny(folder) as engine:
        for seed, beginning in enumerate(["Москв", "naïve caf", "x + 1", "东", "Stop he", "😀"]):
            state = await program.arun(beginning, backend=engine, temperature=1.2, seed=seed)
            transcript = state._stream.transcript
            assert await engine.decode(transcript.tokens) + transcript.tail == await state.atext()
            for name in ("one", "three", "five"):
                meta = await state.aget_meta_info(name)
                assert await engine.decode(meta["output_ids"]) == meta.get("healed", "") + state[name]
            chosen = await engine.decode((await state.aget_meta_info("four"))["output_ids"])
            assert chosen.endswith(state["four"])
        assert "healed" not in await state.aget_meta_info("three")  # nothing stands between it and "two"


async def test_what_says_itself_how_the_text_begins_does_not_go_with_it(folder: Path) -> None:
    for other in ({"json_schema": "{}"}, {"ebnf": 'start: "a"'}):
        with pytest.raises(cb.InvalidRequest, match="heal: .* says itself how the text begins"):
            cb.gen("x", heal=True, **other)
    with pytest.raises(cb.InvalidRequest, match="heal: 'yes' is neither True nor False"):
        cb.gen("x", heal="yes")  # pyright: ignore[reportArgumentType]

    @cb.function
    async def program(s):
        s += "?" + cb.gen("x", heal=True)

    backend = cb.OpenAI("gpt-4o", api_key="none", base_url="http://127.0.0.1:1")
    with pytest.raises(cb.InvalidRequest, match="heal: OpenAI chat model gpt-4o has no such setting"):
        await program.arun(backend=backend)


async def test_a_tokenizer_that_spaces_every_text_gives_the_text_that_its_tokens_say(tmp_path: Path) -> None:
    metaspace(380).save(str(write_tiny_model(tmp_path, eos=False) / "tokenizer.json"))

    @cb.function
    async def program(s):
        s += "Stop" + cb.gen("one", max_tokens=5)
        s += "ping cars" + cb.gen("two", max_tokens=5, stop="e")
        s += " The capital" + cb.select("three", [" of", "s"]) + cb.gen("four", max_tokens=3)

    async with tiny(tmp_path) as engine:
        for seed in range(6):
            state = await program.arun(backend=engine, temperature=1.2, seed=seed)
            transcript = state._stream.transcript
            assert await engine.decode(transcript.tokens) + transcript.tail == await state.atext()
