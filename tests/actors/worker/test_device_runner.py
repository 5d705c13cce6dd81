"""The GPU's runner gives what the CPU's gives: the same tokens, steps laid out and rows sampled its way.

Without a GPU its kernels run in Triton's interpreter and nothing is captured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from callboard.actors.grammar import GrammarCache
from callboard.actors.messages import Step
from callboard.actors.sampling import SamplingParams

from ...kernels.triton_device import DEVICE, GPU
from .driver import EOS, Driver, floats, read
from .test_forced_rows import FRUIT, generate
from .test_grammar_rows import PROMPT


@pytest.fixture
def device_driver(tiny: Path) -> Iterator[Driver]:
    with torch.inference_mode():
        yield make_device_driver(tiny, captured=False)


def make_device_driver(tiny: Path, *, captured: bool, kv_dtype: torch.dtype = torch.float32) -> Driver:
    """Make a driver of the GPU's runner.  captured: by our attention, and on a GPU decode steps in CUDA graphs."""
    from callboard.actors.worker.device_draw import DeviceDraw
    from callboard.actors.worker.device_runner import DeviceRunner
    from callboard.actors.worker.rows import Rows
    from callboard.kernels.attention.reference import ReferenceAttention
    from callboard.kernels.attention.triton_attention import TritonAttention
    from callboard.kernels.kv_pool import KVPool
    from callboard.models.loader import load

    from ...kernels.attention.triton_cases import SMALL

    model = load(tiny, device=DEVICE, dtype=torch.float32, kv_dtype=kv_dtype)
    config = model.config
    shape = config.heads, config.kv_heads, config.head_dim
    pool = KVPool(
        layers=config.layers,
        slots=512,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=kv_dtype,
        device=DEVICE,
    )
    rows = Rows(8, 256, config.vocabulary, DEVICE, staged=True)
    attention = (
        TritonAttention(*shape, max_rows=8, device=DEVICE, dtype=torch.float32, tuning=None if GPU else SMALL)
        if captured
        else ReferenceAttention(*shape)
    )
    draw = DeviceDraw(rows)
    capture = captured and GPU
    return Driver(DeviceRunner(model, pool, attention, rows, GrammarCache(tiny), draw=draw, capture=capture))


GREEDY = SamplingParams(temperature=0.0, max_new_tokens=8)
WARM = SamplingParams(temperature=0.8, max_new_tokens=8)


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        WARM,
        SamplingParams(temperature=1.0, min_p=0.1, max_new_tokens=8),
        SamplingParams(temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.2, max_new_tokens=8),
        SamplingParams(temperature=0.0, logit_bias={7: 100.0}, max_new_tokens=8),
        SamplingParams(temperature=0.0, min_new_tokens=4, max_new_tokens=8),
    ],
    ids=str,
)
def test_a_request_gets_the_tokens_it_gets_on_a_cpu(
    driver: Driver, device_driver: Driver, sampling: SamplingParams
) -> None:
    prompt = [5, 9, 200, 31, 7]
    wanted = driver.generate(prompt, sampling, 8, seed=3)
    assert device_driver.generate(prompt, sampling, 8, seed=3) == wanted


def test_steps_that_mix_prompts_and_decodes_agree_with_the_cpu(driver: Driver, device_driver: Driver) -> None:
    told = []
    for each in (driver, device_driver):
        seen = [read(each.step(each.extend(0, [1, 2, 3], GREEDY), each.extend(3, [4, 5, 6, 7], WARM, seed=9)).tokens)]
        seen.append(read(each.step(each.extend(5, [8, 9], GREEDY), decode=(0, 3)).tokens))
        shared = each.slots[0][:3]
        seen.append(
            read(each.step(each.extend(1, [11, 12], GREEDY, start=3, prefix_slots=shared), decode=(3, 5)).tokens)
        )
        seen += [read(each.step(decode=(0, 1, 3, 5)).tokens) for _ in range(3)]
        seen.append(read(each.step(decode=(0, 3), retire=(1, 5)).tokens))
        told.append(seen)
    assert told[0] == told[1]


def test_forced_tokens_found_while_the_next_step_runs_agree_with_the_cpu(driver: Driver, device_driver: Driver) -> None:
    sampling = SamplingParams(temperature=1.0, regex=FRUIT, frequency_penalty=0.5, max_new_tokens=60)
    wanted = generate(driver, sampling, late=False)
    runner, tokens = device_driver.runner, list[int]()
    running = runner.forward(device_driver.make(device_driver.extend(0, PROMPT, sampling)))
    runner.sample(running)
    while tokens[-1:] != wanted[-1:] or len(tokens) < len(wanted):
        ahead = runner.forward(device_driver.make(decode=(0,)))
        done = runner.collect(running)
        runner.sample(ahead)
        running = ahead
        tokens += read(done.tokens)
        if done.forced:
            rest = read(done.forced[0].tokens)
            tokens += rest
            assert not runner.collect(running).forced
            start = len(PROMPT) + len(tokens) - len(rest)
            running = runner.forward(device_driver.make(device_driver.extend(0, rest, start=start)))
            runner.sample(running)
        assert len(tokens) <= len(wanted)
    assert tokens == wanted
    assert device_driver.number < driver.number


def test_log_probabilities_of_prompts_and_outputs_agree_with_the_cpu(driver: Driver, device_driver: Driver) -> None:
    sampling = SamplingParams(temperature=0.0, max_new_tokens=4, return_logprob=True, top_logprobs_num=3)
    told = []
    for each in (driver, device_driver):
        done = each.step(each.extend(0, [1, 2, 3, 4], sampling, targets=[2, 3, 4], targets_start=0))
        after = each.step(decode=(0,))
        told.append((done, after))
    (wanted, wanted_after), (given, given_after) = told
    assert read(given.tokens) == read(wanted.tokens)
    for one, other in ((given, wanted), (given_after, wanted_after)):
        assert floats(one.logprobs) == pytest.approx(floats(other.logprobs), abs=1e-4)
        assert read(one.top_tokens) == read(other.top_tokens)
    assert floats(given.input_logprobs[0].logprobs) == pytest.approx(
        floats(wanted.input_logprobs[0].logprobs), abs=1e-4
    )


class Draws:
    """Tell how often rows are drawn, and whether with cuts."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self.told: list[tuple[str, bool]] = []

    def __call__(self, *given: Any, cuts: bool, **others: Any) -> Any:
        self.told.append(("all", cuts))
        return self._draw(*given, cuts=cuts, **others)

    def redraw(self, logits: Any, adjustments: Any, *given: Any, cuts: bool) -> None:
        self.told.append((f"adjusted {adjustments.places_A.tolist()}", cuts))
        self._draw.redraw(logits, adjustments, *given, cuts=cuts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draw, name)


def test_a_decode_step_draws_once_and_only_what_is_adjusted_twice(device_driver: Driver) -> None:
    runner: Any = device_driver.runner
    draws = runner._draw = runner.graphs._draw = Draws(runner._draw)
    cut = SamplingParams(temperature=1.0, min_p=0.2, max_new_tokens=8)
    short = SamplingParams(temperature=0.0, min_new_tokens=3, max_new_tokens=8)
    penalized = SamplingParams(temperature=0.5, min_p=0.1, presence_penalty=1.0, top_logprobs_num=2, max_new_tokens=8)
    device_driver.step(
        *(device_driver.extend(row, [row, 9], wish) for row, wish in enumerate((WARM, cut, short, penalized)))
    )

    def told(*rows: int) -> list[tuple[str, bool]]:
        draws.told.clear()
        device_driver.step(decode=rows)
        return draws.told.copy()

    assert told(0) == [("all", False)]
    assert told(0, 1) == [("all", True)]
    assert told(0, 2) == [("all", False), ("adjusted [1]", False)]
    assert told(2, 3) == [("all", False), ("adjusted [0, 1]", True)]
    assert told(2, 1, 3) == [("all", True), ("adjusted [2]", True)], "row 2 is long enough"
    assert told(2) == [("all", False)]


EVERY_KIND = [
    WARM,
    SamplingParams(temperature=0.0, frequency_penalty=0.8, repetition_penalty=1.4),
    SamplingParams(temperature=1.1, logit_bias={7: 3.0, 256: 30.0, 90: -100.0}, min_new_tokens=4),
    SamplingParams(temperature=0.9, regex="[a-f]{2,5}-[0-9]+", presence_penalty=0.5, return_logprob=True),
    SamplingParams(temperature=0.7, repetition_penalty=0.8, return_logprob=True, top_logprobs_num=3),
    SamplingParams(temperature=1.0, return_logprob=True, top_logprobs_num=2),
    SamplingParams(temperature=0.8, min_p=0.1, presence_penalty=-0.5),
    SamplingParams(temperature=1.2, min_p=0.05),
]


def test_wishes_of_every_kind_beside_each_other_are_granted_as_on_a_cpu(driver: Driver, device_driver: Driver) -> None:
    """All eight, then some with others where they were: lines of penalties, biases and masks change hands."""
    told = []
    for each in (driver, device_driver):
        prompts = [[row, 5, 9, row + 40] for row in range(8)]
        extends = [
            each.extend(row, prompts[row], wish, seed=row, context=prompts[row])
            for row, wish in enumerate(EVERY_KIND)
        ]  # fmt: skip
        seen = [each.step(*extends[:5]), each.step(*extends[5:], decode=(0, 2, 4))]
        seen += [each.step(decode=(0, 1, 2, 3, 4, 5, 6, 7)) for _ in range(3)]
        output = [3, 3, 8]
        again = [
            each.extend(row, [6, 7, *output], EVERY_KIND[kind], seed=kind, output=output, context=[6, 7])
            for row, kind in ((1, 6), (3, 2), (4, 1))
        ]
        seen.append(each.step(*again, decode=(7, 5, 2), retire=(1, 3, 4)))
        seen += [each.step(decode=(4, 1, 5, 3, 7)), each.step(decode=(1, 4))]
        told.append(seen)
    for wanted, given in zip(*told, strict=True):
        assert read(given.tokens) == read(wanted.tokens)
        assert floats(given.logprobs) == pytest.approx(floats(wanted.logprobs), abs=1e-4)
        assert read(given.top_tokens) == read(wanted.top_tokens)
        assert floats(given.top_logprobs) == pytest.approx(floats(wanted.top_logprobs), abs=1e-4)
        assert not given.failures


def test_a_grammar_holds_on_the_device(device_driver: Driver, tokenizer: Tokenizer) -> None:
    sampling = SamplingParams(temperature=0.0, max_new_tokens=8, regex="[ab]{6}")
    tokens = device_driver.generate([5, 6, 7], sampling, 7)
    assert re.fullmatch("[ab]{6}", tokenizer.decode(tokens[:6]))
    assert tokens[6] in EOS


def test_padding_reaches_nobodys_slots(device_driver: Driver) -> None:
    """Three rows run as four: the fourth writes to the slot that nobody owns."""
    prompts = {0: [1, 2, 3], 1: [4, 5], 2: [6, 7, 8, 9]}
    device_driver.step(*(device_driver.extend(row, prompt, GREEDY) for row, prompt in prompts.items()))
    pool = device_driver.runner._pool
    for _ in range(4):
        device_driver.step(decode=(0, 1, 2))
    owned = [slot for slots in device_driver.slots.values() for slot in slots]
    free = torch.ones(pool.slots, dtype=torch.bool)
    free[owned] = False
    assert not pool.entries[0][:-1].cpu()[free].any()
    device_driver.step(decode=(0, 1))
    assert pool.entries[0][owned].cpu().any(-1).all()


@pytest.mark.parametrize(
    "sampling", [GREEDY, WARM, SamplingParams(temperature=0.7, top_k=20, max_new_tokens=8)], ids=str
)
def test_logits_that_are_not_numbers_end_their_own_row_and_no_other(
    device_driver: Driver, sampling: SamplingParams
) -> None:
    """Row 1's keys are spoilt behind the driver's back; its neighbours run on beside it as if alone."""
    prompts = {0: [1, 2, 3], 1: [4, 5], 2: [6, 7, 8, 9]}
    alone = {row: device_driver.generate(prompt, sampling, 4, seed=row) for row, prompt in prompts.items()}
    begun = device_driver.step(*(device_driver.extend(row, prompt, sampling) for row, prompt in prompts.items()))
    tokens = {row: [token] for row, token in zip(prompts, read(begun.tokens), strict=True)}
    pool = device_driver.runner._pool
    for entries in pool.entries:
        entries[device_driver.slots[1][0]] = float("nan")
    done = device_driver.step(decode=(0, 1, 2))
    assert [failure.row for failure in done.failures] == [1]
    assert "not numbers" in done.failures[0].message
    assert read(done.tokens)[1] == -1
    for row, token in zip((0, 1, 2), read(done.tokens), strict=True):
        tokens[row].append(token)
    mixed = device_driver.step(device_driver.extend(3, [9, 8, 7], sampling, seed=5), decode=(0, 2), retire=(1,))
    assert not mixed.failures
    for row, token in zip((3, 0, 2), read(mixed.tokens), strict=True):
        tokens.setdefault(row, []).append(token)
    last = device_driver.step(decode=(0, 2))
    for row, token in zip((0, 2), read(last.tokens), strict=True):
        tokens[row].append(token)
    assert tokens[0] == alone[0]
    assert tokens[2] == alone[2]


def test_a_prompt_that_gives_no_numbers_ends_its_own_row_and_no_other(device_driver: Driver) -> None:
    shared = device_driver.take(7, 2)
    for entries in device_driver.runner._pool.entries:
        entries[shared] = float("nan")
    wanted = device_driver.generate([1, 2, 3], WARM, 1, seed=4)
    spoilt = device_driver.extend(1, [5], GREEDY, start=2, prefix_slots=shared)
    done = device_driver.step(spoilt, device_driver.extend(2, [1, 2, 3], WARM, seed=4))
    assert [failure.row for failure in done.failures] == [1]
    assert read(done.tokens) == [-1, wanted[0]]


def test_a_row_that_was_retracted_goes_on_with_the_tokens_it_would_have_had(device_driver: Driver) -> None:
    prompt = [5, 9, 200, 31, 7]
    whole = device_driver.generate(prompt, WARM, 8, seed=3)
    replayed = device_driver.extend(2, prompt + whole[:4], WARM, seed=3, output=whole[:4])
    tokens = read(device_driver.step(replayed).tokens)
    while len(tokens) < 4:
        tokens += read(device_driver.step(decode=(2,)).tokens)
    assert tokens == whole[4:]


MANY_WISHES = SamplingParams(
    temperature=0.9,
    min_p=0.01,
    frequency_penalty=0.3,
    logit_bias={7: 2.0, 11: -1.0},
    min_new_tokens=3,
    max_new_tokens=9,
)


TOLD_WISHES = SamplingParams(
    temperature=0.9, presence_penalty=0.5, repetition_penalty=1.2, top_logprobs_num=3, max_new_tokens=9
)
WISHES = {
    "warm": WARM,
    "cut": SamplingParams(temperature=0.9, min_p=0.05, max_new_tokens=9),
    "many": MANY_WISHES,
    "told": TOLD_WISHES,
}


def script(driver: Driver, wishes: SamplingParams) -> Iterator[Step]:
    """Prompts alone, prompts beside rows that decode, rows that decode, one that leaves."""
    yield driver.make(driver.extend(0, [1, 2, 3], GREEDY), driver.extend(3, [4, 5, 6, 7], wishes, seed=9))
    yield driver.make(driver.extend(5, [8, 9], GREEDY), decode=(0, 3))
    for _ in range(3):
        yield driver.make(decode=(0, 3, 5))
    yield driver.make(driver.extend(1, [11, 12, 13], wishes, seed=2), decode=(3, 5), retire=(0,))
    for _ in range(2):
        yield driver.make(decode=(1, 3))
    yield driver.make(decode=(1,), retire=(3, 5))


def launch_all(driver: Driver, wishes: SamplingParams) -> list[list[int]]:
    """Launch every step of the script before the first is collected; give the tokens of each."""
    launched = []
    for step in script(driver, wishes):
        running = driver.runner.forward(step)
        driver.runner.sample(running)
        launched.append(running)
    tokens = [read(driver.runner.collect(running).tokens) for running in launched]
    driver.step(retire=(1,))
    return tokens


@pytest.mark.parametrize("wishes", WISHES.values(), ids=WISHES)
def test_steps_can_all_be_launched_before_the_first_is_collected(
    driver: Driver, device_driver: Driver, wishes: SamplingParams
) -> None:
    wanted = [read(driver.runner.run(step).tokens) for step in script(driver, wishes)]
    assert launch_all(device_driver, wishes) == wanted


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="no GPU")
def test_rows_with_cuts_have_graphs_of_their_own(tiny: Path) -> None:
    cut = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, max_new_tokens=8)
    with torch.inference_mode():
        captured, launched = (make_device_driver(tiny, captured=graphs) for graphs in (True, False))
        for _ in range(2):
            for sampling in (WARM, cut):
                wanted = launched.generate([5, 9, 200], sampling, 8, seed=3)
                assert captured.generate([5, 9, 200], sampling, 8, seed=3) == wanted
        assert captured.runner.graphs.captured == ((1, -1, False, False), (1, -1, True, False))


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="no GPU")
@pytest.mark.parametrize("wishes", WISHES.values(), ids=WISHES)
def test_nothing_on_the_way_of_a_step_waits_for_the_gpu(tiny: Path, driver: Driver, wishes: SamplingParams) -> None:
    """Torch raises at whatever would wait.  Before that, every kernel is compiled and every graph captured."""
    wanted = [read(driver.runner.run(step).tokens) for step in script(driver, wishes)]
    with torch.inference_mode():
        captured = make_device_driver(tiny, captured=True)
        for _ in range(3):  # a step with prompts is captured when its like has been met before
            assert launch_all(captured, wishes) == wanted
        launched = []
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in script(captured, wishes):
                running = captured.runner.forward(step)
                captured.runner.sample(running)
                launched.append(running)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        assert [read(captured.runner.collect(running).tokens) for running in launched] == wanted
        assert captured.runner.statistics()["graphs"] == 3, "of one, two and three rows"
