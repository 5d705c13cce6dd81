"""The GPU's runner gives what the CPU's gives: the same tokens, steps laid out and rows sampled its way.

Without a GPU its kernels run in Triton's interpreter and nothing is captured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from callboard.actors.grammar import GrammarCache
from callboard.actors.sampling import SamplingParams

from ...kernels.triton_device import DEVICE
from .driver import EOS, Driver, floats, read


@pytest.fixture
def device_driver(tiny: Path) -> Iterator[Driver]:
    from callboard.actors.worker.device_draw import DeviceDraw
    from callboard.actors.worker.device_runner import DeviceRunner
    from callboard.actors.worker.rows import Rows
    from callboard.kernels.attention.reference import ReferenceAttention
    from callboard.kernels.kv_pool import KVPool
    from callboard.models.loader import load

    with torch.inference_mode():
        model = load(tiny, device=DEVICE, dtype=torch.float32)
        config = model.config
        pool = KVPool(
            layers=config.layers,
            slots=512,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dtype=torch.float32,
            device=DEVICE,
        )
        rows = Rows(8, 256, config.vocabulary, DEVICE, staged=True)
        attention = ReferenceAttention(config.heads, config.kv_heads, config.head_dim)
        draw = DeviceDraw(rows)
        runner = DeviceRunner(model, pool, attention, rows, GrammarCache(tiny), draw=draw, capture=False)
        yield Driver(runner)


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
    device_driver.step(
        decode=(
            0,
            1,
            2,
        )[:2]
    )
    assert pool.entries[0][owned].cpu().any(-1).all()
