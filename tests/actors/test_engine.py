"""The engine as its users meet it: whole requests, bad input, faults; and after each it still serves."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest

from callboard.actors.backend import Prompt
from callboard.actors.core import ActorDied
from callboard.actors.engine import Engine
from callboard.actors.errors import Aborted, GenerationFailed, InvalidRequest, Overloaded
from callboard.actors.messages import Deltas, Encode, Generate, LiveRequests, Step, Stopped, Tokens
from callboard.actors.sampling import SamplingParams
from callboard.commands.engine_arguments import summary

from ..support.asking import gather, gather_survivors, greedy
from .collector import until
from .tiny_model import write_tiny_model

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), eos=True)


@asynccontextmanager
async def tiny(folder: Path, **options: Any) -> AsyncIterator[Engine]:
    async with Engine(
        folder, **({"load_format": "dummy", "seed": 1, "max_rows": 8, "kv_slots": 2048, "threads": 1} | options)
    ) as e:
        yield e
        await serves(e)


async def serves(engine: Engine) -> None:
    """Whatever happened before, the engine answers, and every slot is accounted for."""
    with anyio.fail_after(30):
        assert len((await engine.complete("Still there?", greedy(3))).tokens) == 3
        scheduler: dict[str, Any] = {}

        async def settled() -> bool:
            scheduler.update((await engine.statistics())["scheduler"])
            return scheduler["running"] == scheduler["waiting"] == 0 and scheduler["slots_private"] == 0

        while not await settled():
            await anyio.lowlevel.checkpoint()
    assert scheduler["slots_free"] + scheduler["slots_tree"] == scheduler["slots"]
    assert (await engine.statistics())["requests"]["live"] == 0


async def drain(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


PROMPTS = [f"Prompt number {number} of a batch, {'long ' * (number % 5)}" for number in range(24)]


async def test_text_is_the_tokens_and_every_delta_is_there(folder: Path) -> None:
    async with tiny(folder) as engine:
        done = await engine.complete("The capital of France", greedy(20))
        assert len(done.tokens) == done.finish.completion_tokens == 20
        assert done.finish.reason == "length"
        assert done.text == await engine.decode(done.tokens)
        deltas = [delta async for delta in engine.generate("The capital of France", greedy(20))]
        assert "".join(delta.text for delta in deltas) == done.text
        assert [delta.finish is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]


async def test_a_batch_gives_what_each_gives_alone(folder: Path) -> None:
    async with tiny(folder) as engine:
        alone = [await engine.complete(prompt, greedy(12)) for prompt in PROMPTS]
        await engine.flush()
        together = await gather(engine, PROMPTS, greedy(12))
        assert [done.tokens for done in together] == [done.tokens for done in alone]


async def test_seeded_sampling_does_not_depend_on_the_batch(folder: Path) -> None:
    sampling = SamplingParams(max_new_tokens=12, temperature=1.5, top_p=0.9, seed=11)
    async with tiny(folder) as engine:
        alone = [await engine.complete(prompt, sampling) for prompt in PROMPTS[:8]]
        together = await gather(engine, PROMPTS[:8], sampling)
        assert [done.tokens for done in together] == [done.tokens for done in alone]


async def test_a_pool_far_too_small_for_all_retracts_and_still_answers_the_same(folder: Path) -> None:
    async with tiny(folder) as engine:
        wanted = [done.tokens for done in await gather(engine, PROMPTS[:8], greedy(150))]
    async with tiny(folder, kv_slots=400, chunk_tokens=16) as engine:
        for _ in range(2):  # the second time it expects long outputs, the first it has to find out
            got = [done.tokens for done in await gather(engine, PROMPTS[:8], greedy(150))]
            assert got == wanted
        assert (await engine.statistics())["scheduler"]["retractions"] > 0


async def test_a_second_prompt_that_begins_alike_computes_only_its_end(folder: Path) -> None:
    async with tiny(folder) as engine:
        system = "You are a helpful assistant that answers briefly. " * 2
        await engine.complete(system + "One?", greedy(2))
        second = await engine.complete(system + "Two?", greedy(2))
        assert second.finish.cached_tokens > second.finish.prompt_tokens * 0.8


async def test_another_loop_is_refused_and_harms_nobody(folder: Path) -> None:
    async with tiny(folder) as engine:

        async def ask() -> None:
            await engine.complete("Once", greedy(2))

        with pytest.raises(RuntimeError, match="this engine lives in another loop"):
            await anyio.to_thread.run_sync(anyio.run, ask)


async def test_token_ids_in_give_the_same_as_text_in(folder: Path) -> None:
    async with tiny(folder) as engine:
        ids = await engine.encode("The capital of France")
        by_text = await engine.complete("The capital of France", greedy(5))
        assert (await engine.complete(ids, greedy(5))).tokens == by_text.tokens
        assert (await engine.complete(np.frombuffer(ids, np.int32).tolist(), greedy(5))).tokens == by_text.tokens


async def test_a_stop_string_ends_text_and_tokens_before_it(folder: Path) -> None:
    async with tiny(folder) as engine:
        whole = await engine.complete("The capital of France", greedy(30))
        stop = whole.text[8:11]
        done = await engine.complete("The capital of France", greedy(30, stop=(stop,)))
        assert done.text == whole.text[: whole.text.index(stop)]
        assert done.finish.matched == stop
        kept = await engine.decode(done.tokens)
        assert kept + done.finish.tail == done.text


async def test_scores_equal_the_log_probabilities_of_generating_by_hand(folder: Path) -> None:
    async with tiny(folder) as engine:
        prompt = Prompt(tail="I need to use a ")
        scores = await engine.score(prompt, ["calculator", "search engine", "calculators"])
        for settled, score in zip(scores.settled, scores.scores, strict=True):
            ids = np.frombuffer(settled, np.int32).tolist()
            whole = await engine.complete(ids, SamplingParams(max_new_tokens=0, logprob_start=1))
            by_hand = [item.logprob for item in whole.input_logprobs]
            assert len(by_hand) == len(ids) - 1
            assert tuple(ids[scores.prompt_tokens :]) == score.tokens
            assert score.logprobs == pytest.approx(by_hand[scores.prompt_tokens - 1 :], abs=1e-4)


async def test_a_regex_holds_whatever_the_model_would_rather_say(folder: Path) -> None:
    async with tiny(folder) as engine:
        done = await engine.complete("IP: ", SamplingParams(regex=r"\d{1,3}\.\d{1,3}", seed=3))
        whole, _, part = done.text.partition(".")
        assert whole.isdigit()
        assert part.isdigit()


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ("Hello", {"temperature": -1}, "temperature: -1 is outside"),
    ("Hello", {"top_p": 0}, "top_p: 0 is outside"),
    ("Hello", {"stop": ("",)}, "stop: '' is not a string of 1"),
    ("Hello", {"regex": "(a"}, "regex: "),
    ("Hello", {"regex": r"(?=a)b"}, "regex: "),
    ("Hello", {"logit_bias": {99999: 1.0}}, "logit_bias: token 99999 is outside the vocabulary"),
    ("word " * 300, {}, r"prompt: it has \d+ tokens; the context holds 256"),
    ("", {}, "prompt: it has no tokens"),
    ([1, 999999], {}, "prompt: token ids must lie in 0 to"),
    ([1, -1], {}, "prompt: token ids must lie in 0 to"),
    (np.array([1, -1], np.int32).tobytes(), {}, "prompt: token ids must lie in 0 to"),
    (np.array([1, 999999], np.int32).tobytes(), {}, "prompt: token ids must lie in 0 to"),
    (["a", "b"], {}, "prompt: not a sequence of token ids"),
    ([1.5], {}, "prompt: not a sequence of token ids"),
    ([True], {}, "prompt: not a sequence of token ids"),
    (None, {}, "prompt: not a sequence of token ids"),
    ("half \ud83d", {}, "text: it holds half a character"),
]


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"), BAD, ids=[words[:24] + str(i) for i, (_, _, words) in enumerate(BAD)]
)
async def test_bad_input_is_refused_by_name_before_anything_runs(
    folder: Path, prompt: Any, sampling: dict[str, Any], words: str
) -> None:
    async with tiny(folder) as engine:
        before = (await engine.statistics())["scheduler"]["requests"]
        with pytest.raises(InvalidRequest, match=f"^{words}"):
            await engine.complete(prompt, SamplingParams(**sampling))
        assert (await engine.statistics())["scheduler"]["requests"] == before


async def test_more_requests_than_it_admits_are_refused_with_a_hint(folder: Path) -> None:
    async with tiny(folder, max_queued=2) as engine:
        refused: list[Overloaded] = []

        async def one(prompt: str) -> None:
            try:
                await engine.complete(prompt, greedy(20))
            except Overloaded as error:
                refused.append(error)

        async with anyio.create_task_group() as group:
            for prompt in PROMPTS[:6]:
                group.start_soon(one, prompt)
        assert len(refused) == 4
        assert refused[0].retry_after_s > 0


@pytest.mark.parametrize("read", [0, 1, 3])
async def test_a_reader_that_leaves_aborts_its_request(folder: Path, read: int) -> None:
    async with tiny(folder) as engine:
        stream = engine.generate("Go on for ever", greedy(200))
        for _ in range(read):
            await anext(stream)
        await stream.aclose()
        await until(lambda: True)


async def test_a_caller_cancelled_at_any_moment_leaves_nothing_behind(folder: Path) -> None:
    async with tiny(folder) as engine:
        for ticks in range(0, 60, 3):
            async with anyio.create_task_group() as group:
                group.start_soon(engine.complete, "Go on for ever and ever", greedy(200))
                for _ in range(ticks):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()


async def test_a_deadline_that_passes_aborts(folder: Path) -> None:
    async with tiny(folder) as engine:
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.0):
                await engine.complete("Go on", greedy(200))


async def test_an_abort_by_name_raises_at_the_reader(folder: Path) -> None:
    async with tiny(folder) as engine:
        stream = engine.generate("Go on for ever", greedy(200), tag="mine")
        await anext(stream)
        engine.abort("mine")
        engine.abort("unknown")
        with pytest.raises(Aborted, match="by name, 'mine'"):
            await drain(stream)


POISON: dict[str, Any] = {
    "workers": Step(number=0, decode_rows=b"bad"),
    "schedulers": Generate(1 << 40, None, SamplingParams()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("victim", POISON)
async def test_when_core_dies_requests_are_replayed_and_the_text_is_the_same(folder: Path, victim: str) -> None:
    async with tiny(folder) as engine:
        wanted = await gather(engine, PROMPTS, greedy(40))
        await engine.flush()
        scheduler = engine._wires.schedulers[0]
        start = (await engine.statistics())["scheduler"]["output_tokens"]

        async def kill() -> None:
            while (await engine.statistics())["scheduler"]["output_tokens"] < start + 100:
                await anyio.lowlevel.checkpoint()
            getattr(engine._wires, victim)[0].post(POISON[victim])
            await until(lambda: scheduler.statistics().restarts == 1)

        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            got = await gather(engine, PROMPTS, greedy(40))
        assert [done.text for done in got] == [done.text for done in wanted]
        assert (await engine.statistics())["requests"]["replayed"] > 0


async def test_when_the_detokenizer_dies_only_requests_of_the_lost_message_fail(folder: Path) -> None:
    async with tiny(folder) as engine:
        wanted = await gather(engine, PROMPTS[:8], greedy(40))

        async def kill() -> None:
            await until(lambda: engine._wires.detokenizer.statistics().taken > 12)
            engine._wires.detokenizer.post(Tokens(step=0, requests=b"bad"))

        texts, failed = await gather_survivors(engine, PROMPTS[:8], greedy(40), kill)
        assert engine._wires.detokenizer.statistics().restarts == 1
        assert all("lost when the detokenizer restarted" in message for message in failed)
        by_prompt = dict(zip(PROMPTS, (done.text for done in wanted), strict=False))
        assert all(by_prompt[prompt] == text for prompt, text in texts.items())


async def test_an_end_that_dies_with_the_detokenizer_is_told_as_an_error(folder: Path) -> None:
    async with tiny(folder) as engine:
        stream = engine.generate("Go on for ever", greedy(200))
        await anext(stream)
        (request,) = (opened.request for opened in await engine._wires.dispatcher.ask(LiveRequests()))
        engine._wires.schedulers[0].post(Stopped((request,)))  # ended there, and nobody downstream is ever told
        await until(lambda: engine._wires.schedulers[0].statistics().queued == 0)
        engine._wires.detokenizer.post(Tokens(step=0, requests=b"bad"))
        with pytest.raises(GenerationFailed, match="its end was lost when the detokenizer restarted"):
            await drain(stream)


async def test_when_the_dispatcher_dies_its_readers_fail_and_nothing_runs_on(folder: Path) -> None:
    async with tiny(folder) as engine:
        stream = engine.generate("Go on for ever", greedy(200))
        await anext(stream)
        engine._wires.dispatcher.post(Deltas((1,), ()))
        with pytest.raises(GenerationFailed, match="the dispatcher ended"):
            await drain(stream)


async def test_when_the_tokenizer_dies_the_ask_at_hand_fails_and_it_comes_back(folder: Path) -> None:
    async with tiny(folder) as engine:
        with pytest.raises(ActorDied):
            await engine._wires.tokenizer.ask(Encode((None,)))  # type: ignore[arg-type]


def test_unknown_and_wrong_arguments_are_refused_before_anything_starts(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="Engine: .*max_row.*the arguments are model, device"):
        Engine(folder, max_row=3)
    with pytest.raises(InvalidRequest, match="max_rows: 0 is outside 1 to"):
        Engine(folder, max_rows=0)
    with pytest.raises(InvalidRequest, match="policy: "):
        Engine(folder, policy="random")
    with pytest.raises(InvalidRequest, match='model: .* is neither "embedded" nor a folder'):
        Engine("no such model")
    with pytest.raises(InvalidRequest, match="has no config.json"):
        Engine(folder.parent)


async def test_outside_its_block_it_says_so(folder: Path) -> None:
    engine = Engine(folder, load_format="dummy")
    assert engine.health() == {"live": False, "ready": False, "reason": "the engine is not running"}
    with pytest.raises(RuntimeError, match="async with"):
        _ = engine.supervisor
    with pytest.raises(RuntimeError, match="async with"):
        await engine.complete("Hello")


async def test_it_is_ready_inside_its_block_and_tells_its_limits(folder: Path) -> None:
    async with tiny(folder) as engine:
        assert engine.health() == {"live": True, "ready": True, "reason": ""}
        info = engine.model_info()
        assert (info["architecture"], info["context_length"], info["kv_slots"]) == ("LlamaForCausalLM", 256, 2048)


async def test_a_cache_of_float8_answers_alike(folder: Path) -> None:
    texts: list[str] = []
    for kv_dtype in (None, "float8"):
        async with tiny(folder, kv_dtype=kv_dtype) as engine:
            texts.append((await engine.complete("Hello, how are you?", greedy(6))).text)
            wanted = ("float8_e4m3fn", "measured") if kv_dtype else ("float32", "")
            assert (engine.limits.kv_dtype, engine.limits.kv_scales) == wanted
            told = dict(summary(engine))["room"]
            assert ("in float8_e4m3fn by measured scales" in told) == (kv_dtype is not None)
    assert texts[0] == texts[1]


def test_it_works_off_the_main_thread_and_leaves_no_thread_behind(folder: Path) -> None:
    texts: list[str] = []

    async def main() -> None:
        async with tiny(folder) as engine:
            texts.append((await engine.complete("Hello", greedy(5))).text)

    before = set(threading.enumerate())
    thread = threading.Thread(target=anyio.run, args=(main,))
    thread.start()
    thread.join(60)
    assert len(texts) == 1
    for other in set(threading.enumerate()) - before:
        other.join(10)  # a pool's idle thread has been told to end
        assert not other.is_alive(), other


async def test_two_engines_live_side_by_side(folder: Path) -> None:
    async with tiny(folder) as one, tiny(folder) as two:
        a, b = await one.complete("Hello", greedy(5)), await two.complete("Hello", greedy(5))
        assert a.tokens == b.tokens
