"""callboard doctor: what it finds, and what it advises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from callboard.__main__ import main
from callboard.commands import doctor
from callboard.commands.model_findings import examine_model
from callboard.models import embedded
from callboard.models.room import Room


def test_doctor_finds_that_this_machine_can_run(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--quick"]) == 0
    told = capsys.readouterr().out
    for what in ("Python", "memory", "torch", "GPU", "triton", "flashinfer", "nvcc", "model"):
        assert what in told
    assert "callboard chat" in told


def test_doctor_starts_the_model_that_ships(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    assert re.search(r"answers '.+'; [\d.]+ s to start", capsys.readouterr().out)


def test_doctor_tells_of_a_model_before_it_is_loaded(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--model", "embedded", "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    for words in ("LlamaForCausalLM, 8.0 million parameters", "56 tensors in a file", "of weights in float32 fit cpu"):
        assert words in told
    assert "This machine runs that model." in told


def test_doctor_tells_what_a_model_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--model", str(tmp_path)]) == 1
    assert "callboard cannot run yet: model: " in capsys.readouterr().out
    for file in embedded.path().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    (tmp_path / "tokenizer.json").unlink()
    assert main(["doctor", "--model", str(tmp_path), "--device", "abacus"]) == 1
    told = capsys.readouterr().out
    assert "weights: " in told
    assert "cannot be read as safetensors" in told
    assert "tokenizer.json does not exist" in told
    assert "callboard cannot run yet: room: device is 'abacus'; it must be 'cpu', 'cuda' or 'cuda:N'" in told


def test_doctor_counts_what_a_device_has_left():
    def told(free: int, device: str = "cuda:1", kv_dtype: str | None = None) -> doctor.Finding:
        found = examine_model("embedded", device, None, kv_dtype, lambda _: Room(free << 20, 4 << 30))
        return next(finding for finding in found if finding.what == "room")

    # 6 layers x 2 heads x (key + value) x 32 x 2 bytes = 1536 a token; 15.2 MiB of weights and 1 GiB are kept apart.
    fits = told(2 << 10)
    assert fits.state == "good"
    assert "0.01 GiB of weights in bfloat16 fit cuda:1, and leave 1.0 of 4.0 GiB: 688,698 cached tokens" in fits.told
    taken = told(100)
    assert taken.state == "bad"
    assert "cuda:1 has 0.1 GiB free of 4.0 GiB; other processes hold the rest: end them (`nvidia-smi`" in taken.told
    assert "in float32" in told(2 << 10, "cpu").told
    plain, narrow = told(2 << 10, "cpu").told, told(2 << 10, "cpu", "float8").told
    assert plain.endswith(": 339,173 cached tokens")  # 3072 bytes each
    assert narrow.endswith(": 1,356,693 cached tokens in float8")  # 768


def test_doctor_takes_the_pool_s_dtype_as_serve_does(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--model", "embedded", "--device", "cpu", "--kv-dtype", "float8"]) == 0
    assert "cached tokens in float8" in capsys.readouterr().out


def test_doctor_says_what_to_do():
    everything = ("GPU", "triton", "flashinfer-python", "nvcc", "C compiler")
    good = [doctor.Finding(what, "good", "") for what in everything]
    assert len(doctor.advice(good)) == 1
    told = {1: "nothing runs on the GPU", 2: "nothing needs it: attention", 3: "only flashinfer", 4: "name it in CC"}
    for number, words in told.items():
        lacking = [*good[:number], doctor.Finding(good[number].what, "missing", ""), *good[number + 1 :]]
        assert words in doctor.advice(lacking)[1]
    without_gpu = [doctor.Finding("GPU", "missing", ""), *good[1:]]
    assert "no GPU" in doctor.advice(without_gpu)[1]
    broken = [doctor.Finding("torch", "bad", "cannot be imported")]
    assert doctor.advice(broken) == ["callboard cannot run yet: torch: cannot be imported"]
