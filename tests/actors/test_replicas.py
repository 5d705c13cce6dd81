"""Two replicas say what one says; programs stay where their KV is, and each Core fails for itself."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import callboard as cb
from callboard.actors.core import ActorDied
from callboard.actors.engine import Completion, Engine
from callboard.actors.errors import Aborted, GenerationFailed
from callboard.actors.gateway.metrics import Metrics
from callboard.actors.messages import Deltas, DispatcherStatistics, Generate, Step, Tokens
from callboard.actors.sampling import SamplingParams
from callboard.commands.engine_arguments import summary
from callboard.commands.statistics_line import statistics_line

from ..support.asking import gather, gather_survivors, greedy
from ..support.trace_file import read_trace
from .collector import until
from .tiny_model import write_tiny_model

pytestmark = pytest.mark.anyio
PROMPTS = [f"Prompt number {number} of a batch, {'long ' * (number % 5)}" for number in range(12)]
HEADER = "These are the rules of the house, which every question goes on from, and they are rather long. "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), context_length=512)


@asynccontextmanager
async def company(folder: Path, replicas: int = 2, **options: Any) -> AsyncIterator[Engine]:
    given = {"load_format": "dummy", "seed": 1, "max_rows": 8, "kv_slots": 4096, "threads": 2, "replicas": replicas}
    async with Engine(folder, **(given | options)) as engine:
        yield engine
        await at_rest(engine)


async def parts(engine: Engine) -> list[dict[str, Any]]:
    return (await engine.statistics())["replicas"]


async def asked(engine: Engine) -> list[int]:
    """Tell how many requests each replica's scheduler has had."""
    return [one["scheduler"]["requests"] for one in await parts(engine)]


async def at_rest(engine: Engine) -> None:
    """Wait until nothing runs anywhere, and hold every slot and every load to account."""
    with anyio.fail_after(30):
        while True:
            told = await engine.statistics()
            each = [one["scheduler"] for one in told.get("replicas", ())] or [told["scheduler"]]
            if not any(one[held] for one in each for held in ("running", "waiting", "slots_private", "slots_locked")):
                break
            await anyio.lowlevel.checkpoint()
    assert all(one["slots_free"] + one["slots_tree"] == one["slots"] for one in each)
    assert all((one["live"], one["tokens"]) == (0, 0) for one in told.get("replicas", ()))
    assert told["requests"]["live"] == 0


@pytest.mark.parametrize(
    "sampling",
    [greedy(20), SamplingParams(max_new_tokens=20, temperature=1.5, top_p=0.9, seed=11),
     SamplingParams(max_new_tokens=20, temperature=1.0), greedy(30, stop=("e", "ab"))],
    ids=["greedy", "seeded", "by the engine's seed", "stopped"],
)  # fmt: skip
async def test_two_replicas_say_what_one_says(folder: Path, sampling: SamplingParams) -> None:
    async with company(folder, 1) as engine:
        wanted = await gather(engine, PROMPTS, sampling)
    async with company(folder) as engine:
        got = await gather(engine, PROMPTS, sampling)
        assert await asked(engine) == [6, 6]
    assert [(one.text, one.tokens, one.finish.reason) for one in got] == [
        (one.text, one.tokens, one.finish.reason) for one in wanted
    ]


@cb.function
async def team(s: Any, topic: str) -> None:
    s += f"A story about {topic}, in three parts. "
    forks = s.fork(3, position_ids_offset=[0, 5, 0])
    forks += lambda index: f"Part {index}: " + cb.gen("part", max_tokens=4 + index)
    await forks.ajoin("concate_and_append")
    s += "So: " + cb.gen("end", max_tokens=4)
    s += "Then " + cb.select("choice", choices=["yes", "no", "perhaps"])


async def test_a_program_is_on_one_replica_and_its_branches_are_joined_by_their_kv(folder: Path) -> None:
    texts, computed = [], []
    for replicas in (1, 2):
        async with company(folder, replicas) as engine:
            state = await team.arun("tea", backend=engine, temperature=0, ignore_eos=True)
            texts.append(state.text())
            computed.append((await engine.statistics())["scheduler"]["computed_tokens"])
            if replicas > 1:
                assert min(await asked(engine)) == 0, "it is on one of them, with all its branches"
    assert texts[0] == texts[1]
    assert abs(computed[0] - computed[1]) < 8, "as text they would be computed once more, some forty tokens"


async def test_programs_are_spread_and_none_of_them_is_on_two(folder: Path) -> None:
    async with company(folder) as engine:
        alone = await team.arun("tea", backend=engine, temperature=0, ignore_eos=True)
        each = max(await asked(engine))
        await engine.flush()
        again = await team.arun("tea", backend=engine, temperature=0, ignore_eos=True)
        async with anyio.create_task_group() as group:
            for topic in ("war", "love", "dogs"):
                group.start_soon(lambda topic=topic: team.arun(topic, backend=engine, temperature=0, ignore_eos=True))
        counts = await asked(engine)
        assert sum(counts) == 5 * each
        assert all(count % each == 0 for count in counts), "each is wholly on one"
        assert 0 < counts[0] < 5 * each
        assert again.text() == alone.text()


async def test_a_prompt_finds_the_replica_that_knows_its_beginning(folder: Path) -> None:
    async with company(folder) as engine:
        others = [f"Question {number} of a list that has nothing in common: {'x' * 90}" for number in range(4)]
        for prompt in (HEADER + "First?", *others):
            await engine.complete(prompt, greedy(2))
        before = [one["scheduler"]["cached_tokens"] for one in await parts(engine)]
        done = [await engine.complete(HEADER + question, greedy(2)) for question in ("How?", "Why?", "When?")]
        after = [one["scheduler"]["cached_tokens"] for one in await parts(engine)]
        length = len(await engine.encode(HEADER)) // 4
        assert all(one.finish.cached_tokens >= length - 2 for one in done)
        assert min(b - a for a, b in zip(before, after, strict=True)) == 0, "all of them where the first went"


async def test_tenants_share_no_prefix_and_no_preference(folder: Path) -> None:
    async with company(folder) as engine:
        alice = await engine.complete(HEADER, greedy(1), tenant="alice")
        again = await engine.complete(HEADER, greedy(1), tenant="alice")
        bob = await engine.complete(HEADER, greedy(1), tenant="bob")
        assert (alice.finish.cached_tokens, bob.finish.cached_tokens) == (0, 0)
        assert again.finish.cached_tokens > 0
        assert await asked(engine) == [2, 1]


async def test_many_of_one_beginning_end_up_on_both(folder: Path) -> None:
    async with company(folder) as engine:
        await gather(engine, [HEADER + prompt for prompt in PROMPTS * 3], greedy(12))
        assert min(await asked(engine)) >= 12, "the first replica was not made to do it all"


POISON: dict[str, Any] = {
    "workers": Step(number=0, decode_rows=b"bad"),
    "schedulers": Generate(1 << 40, None, SamplingParams()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("victim", POISON)
@pytest.mark.parametrize("replica", [0, 1])
async def test_a_core_that_dies_touches_no_request_of_the_other(folder: Path, victim: str, replica: int) -> None:
    async with company(folder) as engine:
        wanted = await gather(engine, PROMPTS, greedy(40))
        await engine.flush()
        start = (await parts(engine))[replica]["scheduler"]["output_tokens"]
        schedulers, before = engine._wires.schedulers, await asked(engine)

        async def kill() -> None:
            while (await parts(engine))[replica]["scheduler"]["output_tokens"] < start + 60:
                await anyio.lowlevel.checkpoint()
            getattr(engine._wires, victim)[replica].post(POISON[victim])
            await until(lambda: schedulers[replica].statistics().restarts == 1)

        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            got = await gather(engine, PROMPTS, greedy(40))
        assert [done.tokens for done in got] == [done.tokens for done in wanted]
        told = await engine.statistics()
        assert schedulers[1 - replica].statistics().restarts == 0
        assert told["requests"]["replayed"] == 6, "those of one replica, once"
        assert told["replicas"][1 - replica]["scheduler"]["requests"] - before[1 - replica] == 6
        assert [one["up"] for one in told["replicas"]] == [True, True]


async def test_while_one_core_starts_again_the_engine_serves_and_tells_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callboard.actors.worker.worker import Worker

    async with company(folder) as engine:
        enter, gate = Worker.__aenter__, anyio.Event()

        async def slowly(self: Worker) -> Worker:
            await gate.wait()
            return await enter(self)

        monkeypatch.setattr(Worker, "__aenter__", slowly)
        engine._wires.workers[0].post(POISON["workers"])
        with anyio.fail_after(30):
            while (await engine._wires.dispatcher.ask(DispatcherStatistics()))["replicas"][0]["up"]:
                await anyio.lowlevel.checkpoint()
            told = await engine.statistics()
            assert "scheduler" not in told["replicas"][0]
            assert told["scheduler"] == told["replicas"][1]["scheduler"]
            assert len(await gather(engine, PROMPTS, greedy(5))) == len(PROMPTS)
            assert engine.health() == {"live": True, "ready": True, "reason": ""}
            told = await engine.statistics()
            assert 'callboard_replica_up{replica="0"} 0.0' in Metrics().text(told).decode()
            gate.set()
            while not (await engine.statistics())["replicas"][0]["up"]:
                await anyio.lowlevel.checkpoint()
        assert await asked(engine) == [0, len(PROMPTS)]


async def test_a_stop_string_ends_a_request_at_the_replica_it_is_at(folder: Path) -> None:
    async with company(folder) as engine:
        texts = [done.text for done in await gather(engine, PROMPTS, greedy(12))]
        before = [one["scheduler"]["output_tokens"] for one in await parts(engine)]
        done: list[Completion] = []

        async def run(prompt: str, text: str) -> None:
            done.append(await engine.complete(prompt, greedy(400, stop=(text[4:8],))))

        async with anyio.create_task_group() as group:
            for prompt, text in zip(PROMPTS, texts, strict=True):
                group.start_soon(run, prompt, text)
        assert all(one.finish.reason == "stop" for one in done)
        await at_rest(engine)
        after = [one["scheduler"]["output_tokens"] for one in await parts(engine)]
        assert all(0 < b - a < 6 * 40 for a, b in zip(before, after, strict=True)), "none of them ran on"


async def test_when_the_detokenizer_dies_those_that_lost_no_word_go_on_on_both(folder: Path) -> None:
    async with company(folder) as engine:
        wanted = {
            prompt: done.text for prompt, done in zip(PROMPTS, await gather(engine, PROMPTS, greedy(40)), strict=True)
        }
        detokenizer = engine._wires.detokenizer
        taken = detokenizer.statistics().taken

        async def kill() -> None:
            await until(lambda: detokenizer.statistics().taken > taken + 30)
            detokenizer.post(Tokens(step=0, requests=b"bad"))

        texts, failed = await gather_survivors(engine, PROMPTS, greedy(40), kill)
        assert detokenizer.statistics().restarts == 1
        assert all("lost when the detokenizer restarted" in message for message in failed)
        assert all(wanted[prompt] == text for prompt, text in texts.items())
        assert len(texts) + len(failed) == len(PROMPTS)


async def test_when_the_dispatcher_dies_nothing_runs_on_anywhere(folder: Path) -> None:
    async with company(folder) as engine:
        failed: list[int] = []

        async def one(index: int) -> None:
            with pytest.raises(GenerationFailed, match="the dispatcher ended"):
                await engine.complete(PROMPTS[index], greedy(400))
            failed.append(index)

        async with anyio.create_task_group() as group:
            for index in range(6):
                group.start_soon(one, index)
            while min(await asked(engine)) < 3:
                await anyio.lowlevel.checkpoint()
            engine._wires.dispatcher.post(Deltas((1,), ()))  # unequal lengths: a crash
        assert len(failed) == 6
        await at_rest(engine)
        assert len((await engine.complete("Still there?", greedy(3))).tokens) == 3


async def test_an_abort_at_any_point_frees_what_the_request_held_where_it_was(folder: Path) -> None:
    async with company(folder, chunk_tokens=16) as engine:
        for turns in (0, 1, 2, 3, 5, 8, 12, 20, 40, 80):
            ended: list[str] = []

            async def read(number: int, ended: list[str] = ended) -> None:
                try:
                    async for _ in engine.generate(HEADER + PROMPTS[number], greedy(200), tag=f"tag {number % 2}"):
                        pass
                except Aborted as error:
                    ended.append(str(error))

            async with anyio.create_task_group() as group:
                for number in range(6):
                    group.start_soon(read, number)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                engine.abort("tag 0")
                if turns == 80:  # all of them run by now
                    await until(lambda ended=ended: len(ended) == 3)
                    assert sum(one["live"] for one in await parts(engine)) == 3
                group.cancel_scope.cancel()
            await at_rest(engine)
        assert min(await asked(engine)) > 0
        assert (await engine.statistics())["scheduler"]["output_tokens"] < 3000, "of 12,000: none of them ran on"
        flushed = await engine.flush()
        assert flushed.held == 0
        assert all(one["scheduler"]["slots_free"] == one["scheduler"]["slots"] for one in await parts(engine))


async def test_a_program_cancelled_at_any_point_leaves_nothing_on_either(folder: Path) -> None:
    async with company(folder, chunk_tokens=32) as engine:
        for turns in range(0, 160, 12):
            async with anyio.create_task_group() as group:
                for topic in ("tea", "war"):
                    group.start_soon(lambda topic=topic: team.arun(topic, backend=engine, temperature=0))
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            await at_rest(engine)
        await engine.complete("So that each is told who is over", greedy(1))
        await engine.flush()


async def test_totals_are_the_parts_together_as_statistics_metrics_and_the_line_tell(folder: Path) -> None:
    async with company(folder) as engine:
        before = await engine.statistics()
        await gather(engine, PROMPTS, greedy(10))
        told = await engine.statistics()
        for name in ("requests", "output_tokens", "slots", "rows", "steps"):
            assert told["scheduler"][name] == sum(one["scheduler"][name] for one in told["replicas"])
        assert told["scheduler"]["output_tokens"] == 120
        assert told["worker"]["steps"] == sum(one["worker"]["steps"] for one in told["replicas"])
        assert told["requests"] == {"live": 0, "admitted": 12, "ended_length": 12}
        page = Metrics().text(told).decode()
        assert "callboard_scheduler_output_tokens_total 120.0" in page
        for replica, one in enumerate(told["replicas"]):
            value = float(one["scheduler"]["output_tokens"])
            assert f'callboard_replica_scheduler_output_tokens_total{{replica="{replica}"}} {value}' in page
        assert "tokens/s 120 out" in statistics_line(before, told, 1.0)


async def test_an_engine_that_was_left_can_be_entered_again(folder: Path) -> None:
    engine = Engine(folder, load_format="dummy", seed=1, max_rows=8, kv_slots=4096, threads=2, replicas=2)
    texts: list[list[str]] = []
    for _ in range(2):
        async with engine:
            texts.append([done.text for done in await gather(engine, PROMPTS, greedy(5))])
            assert await asked(engine) == [6, 6]
            await at_rest(engine)
    assert texts[0] == texts[1]


async def test_one_replica_tells_what_it_always_told(folder: Path) -> None:
    async with company(folder, 1) as engine:
        told = await engine.statistics()
        assert list(told) == ["requests", "scheduler", "worker"]
        assert engine.model_info()["replicas"] == 1
        assert "callboard_replica" not in Metrics().text(told).decode()
        assert [line[0] for line in summary(engine)] == ["model", "context", "room"]


async def test_it_says_how_many_there_are_and_is_ready_with_both(folder: Path) -> None:
    async with company(folder) as engine:
        assert engine.health() == {"live": True, "ready": True, "reason": ""}
        assert engine.model_info()["replicas"] == 2
        assert dict(summary(engine))["replicas"] == "2, each with what follows"
        assert engine.limits.kv_slots == 4096, "of each"
        assert (await engine.statistics())["scheduler"]["slots"] == 8192


async def test_a_timeline_has_a_track_of_steps_a_replica(folder: Path) -> None:
    written = io.BytesIO()
    async with company(folder) as engine:
        with cb.record(written):
            async with anyio.create_task_group() as group:
                for topic in ("tea", "war"):
                    group.start_soon(lambda topic=topic: team.arun(topic, backend=engine, temperature=0))
    tracks = read_trace(written.getvalue())
    assert {name for name in tracks if name.startswith("engine")} == {"engine: steps", "engine: steps of replica 1"}


async def test_choices_and_log_probabilities_are_the_same_on_two(folder: Path) -> None:
    found: list[Any] = []
    for replicas in (1, 2):
        async with company(folder, replicas) as engine, anyio.create_task_group():
            lm = cb.AsyncLM(engine)
            rows = await lm.batch_next_token_logprobs([[5, 6, 7 + number] for number in range(6)])
            chosen = await cb.function(_choose).arun(backend=engine)
            found.append((rows.numpy(), chosen["word"]))
    assert found[0][1] == found[1][1]
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-4)


async def _choose(s: Any) -> None:
    s += HEADER + "Choose: " + cb.select("word", choices=["red", "green", "blue"])


async def test_a_worker_that_cannot_be_had_is_refused_as_it_is_with_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises((ValueError, ActorDied), match="safetensors"):
        async with Engine(tmp_path, replicas=2):
            pass
