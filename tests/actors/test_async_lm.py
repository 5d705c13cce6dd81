"""Next-token log-probabilities: equal to transformers', however they are batched, shared, cached or interrupted."""

from __future__ import annotations

import asyncio
import inspect
import random
import runpy
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import callboard
from callboard.actors.async_lm import AsyncLM
from callboard.actors.engine import Engine
from callboard.actors.errors import GenerationFailed, InvalidRequest, Overloaded
from callboard.actors.messages import Deltas, Step
from callboard.actors.sampling import SamplingParams

from .collector import until
from .tiny_model import write_tiny_model
from .vocabularies import TEXT, metaspace

pytestmark = pytest.mark.anyio

POISONED = 77  # a token whose embedding is not a number


class Model:
    """A tiny random Llama on disk, and transformers' opinion of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = write_tiny_model(folder, context_length=128, eos=True)
        config = LlamaConfig.from_pretrained(self.folder, initializer_range=0.4)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self._model = LlamaForCausalLM(config).eval()
        self.vocabulary: int = config.vocab_size
        self._model.save_pretrained(self.folder)

    @torch.inference_mode()
    def row(self, ids: Sequence[int]) -> Tensor:
        return self._model(torch.tensor([list(ids)])).logits[0, -1].log_softmax(-1)

    def rows(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        return torch.stack([self.row(ids) for ids in prompts])

    def prompts(self, count: int, seed: int = 0) -> list[list[int]]:
        """Prompts of 1 to 60 tokens, many of which begin alike."""
        rng = random.Random(seed)
        stems = [[rng.randrange(self.vocabulary) for _ in range(40)] for _ in range(3)]
        return [
            rng.choice(stems)[: rng.randint(0, 40)]
            + [rng.randrange(self.vocabulary) for _ in range(rng.randint(1, 20))]
            for _ in range(count)
        ]

    @asynccontextmanager
    async def lm(self, *, cache_size: int = 0, **options: Any) -> AsyncIterator[AsyncLM]:
        """Open an AsyncLM; when the test is done with it, it still answers and holds nothing."""
        defaults = {"seed": 1, "max_rows": 8, "kv_slots": 1024, "threads": 1}
        async with AsyncLM.from_name(self.folder, cache_size=cache_size, **(defaults | options)) as lm:
            yield lm
            with anyio.fail_after(30):
                close(await lm.next_token_logprobs([1, 2, 3]), self.row([1, 2, 3]))
                await left_nothing(lm)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("llama"))


def close(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


async def left_nothing(lm: AsyncLM) -> None:
    """Wait until the engine is at rest; nothing is queued, held or promised."""
    while True:
        counts = await lm.engine.statistics()
        scheduler = counts["scheduler"]
        if not counts["requests"]["live"] and scheduler["rows_free"] == scheduler["rows"]:
            break
        await anyio.lowlevel.checkpoint()
    assert scheduler["slots_locked"] == scheduler["slots_private"] == scheduler["waiting"] == 0
    assert not lm._queries
    assert lm._room.value == 2 * lm.engine.limits.max_rows


async def admitted(lm: AsyncLM) -> int:
    return (await lm.engine.statistics())["requests"].get("admitted", 0)


async def gather(lm: AsyncLM, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Ask for each prompt in a task of its own."""
    rows: dict[int, Tensor] = {}

    async def ask(index: int) -> None:
        rows[index] = await lm.next_token_logprobs(prompts[index])

    async with anyio.create_task_group() as group:
        for index in range(len(prompts)):
            group.start_soon(ask, index)
    return torch.stack([rows[index] for index in range(len(prompts))])


# --- what it answers ---


@pytest.mark.parametrize(
    "options",
    [{}, {"cache_size": 100}, {"chunk_tokens": 16}, {"kv_slots": 130}, {"max_rows": 1}, {"in_flight": 1}],
    ids=str,
)
async def test_rows_equal_transformers_cold_and_cached(model: Model, options: dict[str, Any]) -> None:
    prompts = model.prompts(40)
    wanted = model.rows(prompts)
    async with model.lm(**options) as lm:
        close(await gather(lm, prompts), wanted)
        close(await lm.batch_next_token_logprobs(prompts), wanted)
        lm.clear_cache()
        close(await lm.batch_next_token_logprobs(prompts[::-1]), wanted.flip(0))
        lm.clear_kv_cache()
        close(await lm.batch_next_token_logprobs(prompts), wanted)


async def test_a_sequence_grown_token_by_token_computes_only_what_is_new(model: Model) -> None:
    ids = model.prompts(1, seed=3)[0][:2]
    async with model.lm() as lm:
        for token in range(30, 60):
            ids.append(token)
            close(await lm.next_token_logprobs(ids), model.row(ids))
        assert (await lm.engine.statistics())["scheduler"]["computed_tokens"] == len(ids)


async def test_generations_and_rows_share_a_step(model: Model) -> None:
    prompts = model.prompts(12, seed=4)
    sampling = SamplingParams(max_new_tokens=20, temperature=0, ignore_eos=True)
    async with model.lm() as lm:
        alone = await lm.engine.complete(prompts[0], sampling)
        await lm.engine.flush()
        together: list[tuple[int, ...]] = []

        async def generate() -> None:
            together.append((await lm.engine.complete(prompts[0], sampling)).tokens)

        async with anyio.create_task_group() as group:
            group.start_soon(generate)
            close(await gather(lm, prompts), model.rows(prompts))
        assert together == [alone.tokens]


async def test_a_prompt_that_fills_the_context_has_a_next_token(model: Model) -> None:
    ids = [token % model.vocabulary for token in range(128)]
    async with model.lm() as lm:
        close(await lm.next_token_logprobs(ids), model.row(ids))


async def test_ids_may_be_an_array_or_a_tensor(model: Model) -> None:
    async with model.lm() as lm:
        for ids in (np.array([4, 5], np.int64), torch.tensor([4, 5]), (4, 5)):
            close(await lm.next_token_logprobs(ids), model.row([4, 5]))  # type: ignore[arg-type]


async def test_an_empty_batch_has_no_rows(model: Model) -> None:
    async with model.lm() as lm:
        assert (await lm.batch_next_token_logprobs([])).shape == (0, model.vocabulary)


# --- batches, duplicates, the cache ---


async def test_what_waits_is_computed_together(model: Model) -> None:
    prompts = [[token] for token in range(60)]
    async with model.lm(max_rows=64) as lm:
        await gather(lm, prompts)
        assert (await lm.engine.statistics())["scheduler"]["steps"] <= 6


async def test_the_same_ids_asked_for_at_once_are_computed_once(model: Model) -> None:
    async with model.lm() as lm:
        close(await gather(lm, [[9, 8, 7]] * 50), model.rows([[9, 8, 7]] * 50))
        assert await admitted(lm) == 1
        close(await lm.batch_next_token_logprobs([[1], [2], [1], [1]]), model.rows([[1], [2], [1], [1]]))
        assert await admitted(lm) == 3


async def test_every_caller_owns_its_row(model: Model) -> None:
    async with model.lm(cache_size=4) as lm:
        rows: list[Tensor] = []

        async def ask() -> None:
            rows.append((await lm.next_token_logprobs([3, 4])).fill_(0.0))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            group.start_soon(ask)
        close(await lm.next_token_logprobs([3, 4]), model.row([3, 4]))
        assert len(rows) == 2


async def test_the_cache_keeps_the_latest_used_by_count(model: Model) -> None:
    async with model.lm(cache_size=2) as lm:
        for ids in ([1], [2], [1], [3], [1]):  # [3] drives out [2]
            close(await lm.next_token_logprobs(ids), model.row(ids))
        assert await admitted(lm) == 3
        await lm.next_token_logprobs([2])
        assert await admitted(lm) == 4
        lm.clear_cache()
        close(await lm.next_token_logprobs([1]), model.row([1]))
        assert await admitted(lm) == 5


async def test_without_a_cache_nothing_is_kept(model: Model) -> None:
    async with model.lm() as lm:
        await lm.next_token_logprobs([1])
        await lm.next_token_logprobs([1])
        assert await admitted(lm) == 2


async def test_the_kv_cache_is_cleared_before_what_is_asked_next(model: Model) -> None:
    ids = list(range(20))
    async with model.lm() as lm:
        for _ in range(2):
            await lm.next_token_logprobs(ids)
            lm.clear_kv_cache()
        assert (await lm.engine.statistics())["scheduler"]["computed_tokens"] == 40


async def test_no_more_is_under_way_than_two_steps_take(model: Model) -> None:
    async with model.lm(max_rows=2) as lm:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, (await lm.engine.statistics())["requests"]["live"])

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            prompts = model.prompts(40, seed=6)
            close(await gather(lm, prompts), model.rows(prompts))
            group.cancel_scope.cancel()
        assert 1 <= most <= 4


# --- callers that leave ---


@pytest.mark.parametrize("leaver", [0, 1], ids=["who asked first", "who asked second"])
async def test_a_caller_that_leaves_does_not_disturb_the_other(model: Model, leaver: int) -> None:
    async with model.lm() as lm:
        for ticks in range(25):
            ids = [5, 6, ticks]
            rows: list[Tensor] = []
            scopes = [anyio.CancelScope(), anyio.CancelScope()]

            async def ask(scope: anyio.CancelScope, ids: list[int], rows: list[Tensor]) -> None:
                with scope:
                    rows.append(await lm.next_token_logprobs(ids))

            async with anyio.create_task_group() as group:
                for scope in scopes:
                    group.start_soon(ask, scope, ids, rows)
                for _ in range(ticks):
                    await anyio.lowlevel.checkpoint()
                scopes[leaver].cancel()
            close(rows[0], model.row(ids))


@pytest.mark.parametrize("leaver", [0, 1], ids=["who asked first", "who asked second"])
async def test_a_request_outlives_the_caller_that_leaves(model: Model, leaver: int) -> None:
    async with model.lm() as lm:
        callers = [asyncio.ensure_future(lm.next_token_logprobs([4, 2])) for _ in range(2)]
        await until(lambda: any(query.request is not None for query in lm._queries.values()))
        callers[leaver].cancel()
        close(await callers[1 - leaver], model.row([4, 2]))
        assert await admitted(lm) == 1


async def test_a_native_cancel_of_the_first_caller_leaves_the_second_its_answer(model: Model) -> None:
    async with model.lm() as lm:
        for ticks in range(25):
            first = asyncio.ensure_future(lm.next_token_logprobs([8, ticks]))
            second = asyncio.ensure_future(lm.next_token_logprobs([8, ticks]))
            for _ in range(ticks):
                await anyio.lowlevel.checkpoint()
            first.cancel()
            close(await second, model.row([8, ticks]))
            await asyncio.wait([first])


async def test_when_the_last_caller_leaves_the_request_is_aborted(model: Model) -> None:
    async with model.lm() as lm:
        for ticks in range(40):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(lm.next_token_logprobs, list(range(100)))
                for _ in range(ticks):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            await left_nothing(lm)
            await lm.engine.flush()
        assert (await lm.engine.statistics())["requests"]["ended_abort"] > 0


async def test_a_caller_that_leaves_while_it_waits_for_room_gives_its_place_up(model: Model) -> None:
    async with model.lm(max_rows=1) as lm:
        async with anyio.create_task_group() as group:
            for token in range(50):
                group.start_soon(lm.next_token_logprobs, [token])
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        await left_nothing(lm)


async def test_a_batch_that_is_cancelled_leaves_nothing(model: Model) -> None:
    async with model.lm() as lm:
        with anyio.move_on_after(0):
            await lm.batch_next_token_logprobs(model.prompts(40))
        await left_nothing(lm)


# --- what is refused, and what goes wrong ---


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "there are none"),
        ([-1], "must lie in 0 to"),
        ([1, 10_000], "must lie in 0 to"),
        ([1.5], "not a flat list of integers"),
        ([True], "not a flat list of integers"),
        ("text", "not a flat list of integers"),
        ([[1, 2]], "not a flat list of integers"),
        ([[1], [2, 3]], "not a list of token ids"),
        ([1] * 129, "129 given; the context holds 128"),
    ],
)
async def test_bad_ids_are_refused_before_anything_runs(model: Model, ids: Any, message: str) -> None:
    async with model.lm() as lm:
        with pytest.raises(InvalidRequest, match=f"token_ids: .*{message}"):
            await lm.next_token_logprobs(ids)
        with pytest.raises(InvalidRequest, match=message):
            await lm.batch_next_token_logprobs([[1], ids])
        with pytest.raises(InvalidRequest, match=message):
            await lm.sample(ids, 1, [])
        assert await admitted(lm) == 0


@pytest.mark.parametrize("size", [-1, 1.5, True, None])
async def test_a_bad_cache_size_is_refused(model: Model, size: Any) -> None:
    with pytest.raises(InvalidRequest, match="cache_size"):
        async with AsyncLM.from_name(model.folder, cache_size=size, threads=1):
            pass


async def test_it_needs_a_running_engine(model: Model) -> None:
    with pytest.raises(RuntimeError, match="async with Engine"):
        AsyncLM(Engine(model.folder))


async def test_a_refusal_reaches_everybody_who_waits(model: Model) -> None:
    async with model.lm(max_queued=1, max_rows=1) as lm:
        stream = lm.engine.generate([1], SamplingParams(max_new_tokens=100, ignore_eos=True))
        await anext(stream)
        refused = 0

        async def ask() -> None:
            nonlocal refused
            with pytest.raises(Overloaded):
                await lm.next_token_logprobs([1, 2])
            refused += 1

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
        assert refused == 3
        await stream.aclose()


async def test_a_batch_raises_its_first_error_as_it_is(model: Model) -> None:
    async with model.lm(max_queued=1, max_rows=8) as lm:
        with pytest.raises(Overloaded):
            await lm.batch_next_token_logprobs([[1], [2], [3]])


async def test_a_row_that_is_no_numbers_fails_alone(tmp_path: Path) -> None:
    model = Model(tmp_path / "llama")
    with torch.no_grad():
        model._model.get_input_embeddings().weight[POISONED] = float("nan")
    model._model.save_pretrained(model.folder)
    async with model.lm() as lm:
        good = [[1, 2, token] for token in range(5)]

        async def bad() -> None:
            with pytest.raises(GenerationFailed, match="not numbers"):
                await lm.next_token_logprobs([POISONED, 1, 2])

        async with anyio.create_task_group() as group:
            group.start_soon(bad)
            close(await gather(lm, good), model.rows(good))


async def test_when_core_dies_everybody_still_gets_the_right_row(model: Model) -> None:
    prompts = model.prompts(60, seed=8)
    wanted = model.rows(prompts)
    async with model.lm(max_rows=4) as lm:
        engine = lm.engine

        async def kill() -> None:
            while (await engine.statistics())["requests"].get("ended_length", 0) < 10:
                await anyio.lowlevel.checkpoint()
            engine._wires.workers[0].post(Step(number=0, decode_rows=b"bad"))
            await until(lambda: engine._wires.schedulers[0].statistics().restarts == 1)

        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            close(await gather(lm, prompts), wanted)
            close(await gather(lm, prompts), wanted)


async def test_when_the_dispatcher_dies_its_callers_are_told(model: Model) -> None:
    async with model.lm() as lm:
        told = 0

        async def ask(token: int) -> None:
            nonlocal told
            with pytest.raises(GenerationFailed, match="the dispatcher ended"):
                await lm.next_token_logprobs([token] * 100)
            told += 1

        async with anyio.create_task_group() as group:
            for token in range(3):
                group.start_soon(ask, token)
                group.start_soon(ask, token)
            await until(lambda: all(query.request is not None for query in lm._queries.values()) and lm._queries)
            lm.engine._wires.dispatcher.post(Deltas((1,), ()))
        assert told == 6


# --- sampling ---


async def test_greedy_sampling_follows_the_rows(model: Model) -> None:
    async with model.lm() as lm:
        for prompt in model.prompts(4, seed=9):
            ids = list(prompt)
            for _ in range(10):
                ids.append(int((await lm.next_token_logprobs(ids)).argmax()))
            assert await lm.sample(prompt, 10, [], temperature=0) == ids[len(prompt) :]


async def test_an_end_token_ends_a_sample_and_is_left_out(model: Model) -> None:
    async with model.lm() as lm:
        whole = await lm.sample([5, 6], 12, [], temperature=0)
        end = whole[6]
        assert await lm.sample([5, 6], 12, [end], temperature=0) == whole[: whole.index(end)]
        assert await lm.sample([5, 6], 0, [end]) == []


async def test_a_seed_repeats_a_sample_and_equal_prompts_in_a_batch_differ(model: Model) -> None:
    async with model.lm() as lm:
        one, two = await lm.batch_sample([[5, 6], [5, 6]], 20, [], seed=3)
        assert one != two
        assert len(one) == len(two) == 20
        assert await lm.sample([5, 6], 20, [], seed=3) == one
        assert await lm.sample([5, 6], 20, [], seed=4) == two


async def test_samples_are_drawn_from_the_rows(model: Model) -> None:
    async with model.lm(max_rows=64) as lm:
        chances = (await lm.next_token_logprobs([5, 6])).div(2.0).softmax(-1)
        drawn = await lm.batch_sample([[5, 6]] * 1000, 1, [], temperature=2.0, seed=0)
        counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=model.vocabulary)
        assert (counts / 1000 - chances).abs().max() < 0.05


# --- threads and loops ---


def test_it_serves_threads_that_have_no_loop(model: Model) -> None:
    prompts = model.prompts(6)
    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(AsyncLM.from_name(model.folder, threads=1)) as lm:
            close(lm.next_token_logprobs_sync(prompts[0]), model.row(prompts[0]))
            close(lm.batch_next_token_logprobs_sync(prompts), model.rows(prompts))
            with pytest.raises(InvalidRequest, match="there are none"):
                lm.next_token_logprobs_sync([])
        with pytest.raises(RuntimeError, match="not running any more"):
            lm.next_token_logprobs_sync([1])


async def test_many_threads_share_its_batches(model: Model) -> None:
    prompts = model.prompts(24, seed=2)
    async with model.lm() as lm:
        rows: dict[int, Tensor] = {}

        def work(index: int) -> None:
            rows[index] = lm.next_token_logprobs_sync(prompts[index])

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
        close(torch.stack([rows[index] for index in range(len(prompts))]), model.rows(prompts))


async def test_inside_the_loop_the_sync_forms_say_what_to_do(model: Model) -> None:
    async with model.lm() as lm:
        with pytest.raises(RuntimeError, match=r"await lm.next_token_logprobs\("):
            lm.next_token_logprobs_sync([1])
        with pytest.raises(RuntimeError, match=r"await lm.batch_next_token_logprobs\("):
            lm.batch_next_token_logprobs_sync([[1]])


async def test_another_loop_is_told_to_use_the_sync_forms(model: Model) -> None:
    async with model.lm() as lm:

        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="_sync"):
                asyncio.run(lm.next_token_logprobs([1]))

        await anyio.to_thread.run_sync(elsewhere)


# --- the vocabulary ---


async def test_the_bytes_of_tokens_make_up_their_text(model: Model) -> None:
    async with model.lm() as lm:
        assert len(lm.byte_vocab) == len(lm.str_vocab) == model.vocabulary
        for text in TEXT:
            ids = lm.encode(text)
            assert b"".join(lm.byte_vocab[token] for token in ids).decode() == text == lm.decode(ids)
        assert lm.str_vocab[lm.encode("e")[0]] == "e"


async def test_byte_fallback_tokens_have_their_bytes(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    metaspace(380).save(str(folder / "tokenizer.json"))
    async with AsyncLM.from_name(folder, load_format="dummy", threads=1) as lm:
        text = "naïve 東京"
        assert b"".join(lm.byte_vocab[token] for token in lm.encode(text)).decode().strip() == text
        assert len(lm.byte_vocab) == lm.engine.limits.vocabulary


async def test_the_example_keeps_its_letter_out(capsys: pytest.CaptureFixture[str]) -> None:
    await runpy.run_path(str(Path(callboard.__file__).parent / "examples" / "smc.py"))["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    for line in lines[:-1]:
        share, text = line.split("  The", 1)
        assert "e" not in text.lower()
        assert 0 < float(share.strip(" %")) <= 100


def test_it_is_public() -> None:
    assert callboard.AsyncLM is AsyncLM


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("next_token_logprobs", ["token_ids"]),
        ("next_token_logprobs_sync", ["token_ids"]),
        ("batch_next_token_logprobs", ["token_ids_list"]),
        ("batch_next_token_logprobs_sync", ["token_ids_list"]),
        ("sample", ["prompt_token_ids", "max_tokens", "eos_token_ids", "temperature", "seed"]),
        ("batch_sample", ["prompt_token_ids_list", "max_tokens", "eos_token_ids", "temperature", "seed"]),
        ("clear_cache", []),
        ("clear_kv_cache", []),
    ],
)
def test_its_methods_take_what_genlm_backend_s_take(method: str, arguments: list[str]) -> None:
    assert list(inspect.signature(getattr(AsyncLM, method)).parameters) == ["self", *arguments]
    for name in ("tokenizer", "byte_vocab", "str_vocab"):
        assert isinstance(getattr(AsyncLM, name), (property, cached_property))
