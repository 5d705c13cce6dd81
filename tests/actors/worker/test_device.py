"""A GPU that cannot be used is refused before anything is loaded, with the numbers and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from callboard.actors.worker import device, room
from callboard.actors.worker.device import open_device
from callboard.actors.worker.room import Taken, kv_slots, slots_left
from callboard.models.loader import load

from .driver import options

GIB = 1 << 30
CUDA = torch.device("cuda", 0)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch claim that there is a GPU; none of its memory is ever asked for."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(device, "find_spec", lambda name: name)


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:x"])
def test_a_device_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="it must be 'cpu', 'cuda' or 'cuda:N'"):
        open_device(name)


@pytest.mark.usefixtures("one_gpu")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="device is 'cuda:3'; torch sees 1 CUDA devices here"):
        open_device("cuda:3")


@pytest.mark.usefixtures("one_gpu")
def test_a_gpu_that_another_process_has_to_itself_is_told_with_who_can_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def busy(*_: Any) -> Any:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nSearch for ...")

    monkeypatch.setattr(torch.cuda, "mem_get_info", busy)
    with pytest.raises(ValueError, match=r"cuda:0 cannot be used \(CUDA error: .* unavailable\); `nvidia-smi` shows"):
        open_device("cuda")


@pytest.mark.usefixtures("one_gpu")
def test_without_triton_a_gpu_is_refused_and_a_cpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"triton is not installed.*pip install 'callboard\[gpu\]', or use 'cpu'"):
        open_device("cuda:0")
    assert open_device("cpu") == torch.device("cpu")


# Weights of 15 GiB and a step of 3 on a GPU of 140 GiB, slots of 128 KiB, as an 8B model's.
ONE = 128 << 10


def test_slots_fill_what_weights_a_step_and_others_leave() -> None:
    told = options(Path("/nowhere"), mem_fraction=0.5, max_rows=256)
    left = slots_left(told, Taken(140 * GIB, 15 * GIB, 2 * GIB), 3 * GIB, ONE, 8192)
    assert left == (70 - 15 - 2 - 3) * GIB // ONE
    assert slots_left(told, Taken(140 * GIB, 15 * GIB, 0), 3 * GIB, ONE, 64) == 256 * 64, "no more than rows can use"


def test_a_gpu_taken_by_someone_else_is_refused_with_numbers_and_what_to_do() -> None:
    told = options(Path("/nowhere"), mem_fraction=0.9, max_rows=256, chunk_tokens=8192)
    with pytest.raises(ValueError, match="other processes hold") as caught:
        slots_left(told, Taken(140 * GIB, 15 * GIB, 107 * GIB), 3 * GIB, ONE, 131_072)
    for words in (
        "mem_fraction is 0.9 of the GPU's 140.0 GiB", "take 15.0 GiB", "other processes hold 107.0 GiB",
        "a step of 8192 tokens needs 3.0 GiB", "one sequence of 131072 tokens 16.0 GiB",
        "end those (`nvidia-smi` shows them) or choose another device",
    ):  # fmt: skip
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="smaller context_length") as caught:
        slots_left(told, Taken(24 * GIB, 15 * GIB, 0), 3 * GIB, ONE, 131_072)
    assert "nvidia-smi" not in str(caught.value), "nobody else is to blame"


def test_a_gpu_on_which_not_even_a_step_fits_is_refused_likewise(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*_: Any) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 15 * GIB)
    monkeypatch.setattr(room, "_step_bytes", too_much)
    model: Any = load(tiny, device=torch.device("cpu"), dtype=torch.float32)
    attention: Any = None
    with pytest.raises(ValueError, match="other processes hold 124.0 GiB, a step .* needs more than is free") as caught:
        kv_slots(options(tiny), model, attention, 256, CUDA, torch.float32)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
