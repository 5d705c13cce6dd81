"""A worker told to cache in float8 does, by scales that it names, and gives what it gave."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from callboard.actors.sampling import SamplingParams
from callboard.actors.worker.build import build_runner
from callboard.actors.worker.device import verify_float8
from callboard.kernels.kv_pool import FLOAT8

from ...kernels.triton_device import GPU
from ...models.enlarged import KEYS, PREFIX, VALUES, enlarge
from .driver import Driver, floats, options
from .test_device_runner import make_device_driver

PROMPT = [5, 9, 200, 31, 7, 88, 143, 19, 60, 2, 250, 77]
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a GPU")]
# Of log-probabilities, on average: what float8 costs this model, and what keys that are cut off cost.
NEAR, FAR = 0.5, 1.0


@pytest.fixture
def large(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model, with keys and values out of float8's range."""
    folder = tmp_path / "large"
    shutil.copytree(tiny, folder)
    enlarge(folder, KEYS[:2], VALUES[:2])
    return folder


def scores(driver: Driver) -> list[float]:
    """Log-probabilities of the prompt's own tokens, from the sixth on, in two chunks, and of what decodes behind it."""
    asked = SamplingParams(temperature=0.0, logprob_start=5, return_logprob=True, logit_bias={PROMPT[0]: 100.0})
    driver.step(driver.extend(0, PROMPT[:6], asked, sample=False))
    done = driver.step(driver.extend(0, PROMPT[6:], start=6, targets=PROMPT[7:], targets_start=6))
    told = floats(done.input_logprobs[0].logprobs) + floats(done.logprobs)
    for _ in range(3):
        told += floats(driver.step(decode=(0,)).logprobs)
    driver.step(retire=(0,))
    return told


def distance(left: list[float], right: list[float]) -> float:
    assert len(left) == len(right) == 9
    return sum(abs(one - other) for one, other in zip(left, right, strict=True)) / len(left)


@torch.inference_mode()
def built(folder: Path, **changes: Any) -> tuple[list[float], Any]:
    runner, description = build_runner(options(folder, kv_slots=512, **changes), None)
    return scores(Driver(runner)), description


@pytest.mark.parametrize(
    "changes",
    [
        {},
        *(
            pytest.param({"device": "cuda", "dtype": "float32"} | more, marks=ON_GPU, id=f"cuda {more}")
            for more in (
                {},
                {"attention": "triton"},
                {"attention": "reference"},
                {"deterministic": True},
                {"dtype": "bfloat16"},
            )
        ),
    ],
)
def test_it_gives_what_it_gave(large: Path, changes: dict[str, Any]) -> None:
    wanted, plain = built(large, **changes)
    given, description = built(large, kv_dtype="float8", **changes)
    assert distance(given, wanted) < NEAR
    assert (plain.kv_dtype, plain.kv_scales) == (plain.dtype, "")
    assert (description.kv_dtype, description.kv_scales) == ("float8_e4m3fn", "measured")
    assert description.kv_bytes * (2 if plain.dtype == "bfloat16" else 4) == plain.kv_bytes


def test_without_scales_it_would_not(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, _ = built(large)
    monkeypatch.setattr("callboard.models.decoder.fold_", lambda *_: None)
    given, _ = built(large, kv_dtype="float8")
    assert distance(given, wanted) > FAR


def test_the_gpus_runner_reads_what_the_cpus_reads(large: Path) -> None:
    with torch.inference_mode():
        wanted, _ = built(large, kv_dtype="float8")
        given = scores(make_device_driver(large, captured=True, kv_dtype=FLOAT8))
    # What is on the edge between two steps of float8 may be rounded either way.
    assert distance(given, wanted) < 0.05


@pytest.mark.parametrize("told", [False, True])
def test_the_log_says_who_told_the_scales(tiny: Path, tmp_path: Path, told: bool, caplog: Any) -> None:
    folder = tmp_path / "told"
    shutil.copytree(tiny, folder)
    if told:
        scales = {
            PREFIX.format(layer) + name: torch.tensor(0.1) for layer in range(2) for name in ("k_scale", "v_scale")
        }
        save_file(load_file(folder / "model.safetensors") | scales, folder / "model.safetensors")
    with caplog.at_level(logging.INFO, "callboard.actors.worker"):
        _, description = build_runner(options(folder, kv_dtype="float8"), None)
    assert description.kv_scales == ("checkpoint" if told else "measured")
    wanted = "the checkpoint tells (k_scale, v_scale)" if told else "1,024 random tokens have shown"
    assert f"cached in float8, scaled by what {wanted}" in caplog.text


def test_as_much_memory_holds_more_tokens(tiny: Path) -> None:
    rooms = [build_runner(options(tiny, kv_bytes=1 << 16, kv_dtype=each), None)[1] for each in (None, "float8")]
    assert rooms[1].kv_slots == 4 * rooms[0].kv_slots
    assert rooms[1].kv_bytes == rooms[0].kv_bytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_dtype": "int8"}, "kv_dtype is 'int8'; it must be 'float8' or None"),
        ({"kv_dtype": "float8", "attention": "flashinfer"}, "'flashinfer'; with kv_dtype 'float8' it must be another"),
    ],
)
def test_what_cannot_be_is_refused(tiny: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(tiny, **changes).verify()


def test_a_gpu_without_float8_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an A100")
    with pytest.raises(ValueError, match=r"an A100 has compute capability 8\.0, and float8 needs 8\.9: leave kv_dtype"):
        verify_float8(torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    verify_float8(torch.device("cuda", 0))
