"""A model folder is read as transformers wrote it, and what is wrong with one is said in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from callboard.models.decoder import Decoder
from callboard.models.loader import load
from callboard.models.parameters import Parameter, Source
from callboard.models.registry import family
from callboard.models.room import HEADROOM_BYTES, Room, device_room, weight_bytes
from callboard.models.upload import Upload

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a tiny untied checkpoint."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def read(folder: Path, **changes: Any) -> Decoder:
    model = load(folder, **({"device": CPU, "dtype": torch.float32} | changes))
    assert isinstance(model, Decoder)
    return model


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def shard(folder: Path) -> Path:
    """Cut the checkpoint into many files; return the index."""
    whole = folder / "model.safetensors"
    LlamaForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="6KB")
    whole.unlink(missing_ok=True)
    return folder / "model.safetensors.index.json"


def weights_of(model: Decoder) -> list[torch.Tensor]:
    layers = [
        tensor
        for layer in model.layers
        for tensor in (
            layer.attention_norm.weight_I,
            layer.mlp_norm.weight_I,
            *(getattr(layer, name).weight_IO for name in ("qkv", "output", "gate_up", "down")),
        )
    ]
    return [model.embedding_VC, model.norm.weight_I, model.head.weight_IO, *layers]  # type: ignore[attr-defined]


def test_shards_load_like_one_file(folder: Path) -> None:
    whole = weights_of(read(folder))
    shard(folder)
    assert len(list(folder.glob("*.safetensors"))) > 3
    for one, other in zip(whole, weights_of(read(folder)), strict=True):
        assert torch.equal(one, other)


def test_the_dtype_is_the_checkpoints_unless_asked_for(folder: Path) -> None:
    change_config(folder, dtype="bfloat16")
    assert read(folder, dtype=None).embedding_VC.dtype == torch.bfloat16
    assert read(folder, dtype=torch.float16).embedding_VC.dtype == torch.float16
    with pytest.raises(ValueError, match="dtype is torch.float64; allowed: float32, bfloat16, float16"):
        read(folder, dtype=torch.float64)


def test_dummy_weights_need_no_files_and_follow_the_seed(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    one, again, other = (weights_of(read(folder, load_format="dummy", seed=seed)) for seed in (3, 3, 4))
    for first, second in zip(one, again, strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(one[0], other[0])
    assert torch.equal(one[1], torch.ones(24))
    with pytest.raises(ValueError, match="load_format is 'gguf'; allowed: auto, dummy"):
        read(folder, load_format="gguf")


def test_a_tied_checkpoint_may_carry_its_head_and_an_old_one_its_frequencies(folder: Path) -> None:
    change_config(folder, tie_word_embeddings=True)
    change_weights(folder, lambda held: held.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}))
    model = read(folder)
    assert torch.equal(model.embedding_VC.t(), model.head.weight_IO)  # type: ignore[attr-defined]


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_weights(folder, lambda held: held.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(
        ValueError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight, which a LlamaForCausalLM needs"
    ):
        read(folder)


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    change_config(folder, attention_bias=True)
    with pytest.raises(ValueError, match="and 5 more tensors, which a LlamaForCausalLM needs"):
        read(folder)


def test_a_tensor_that_would_go_unused_is_refused(folder: Path) -> None:
    change_weights(folder, lambda held: held.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(6)}))
    with pytest.raises(ValueError, match=r"holds model\.layers\.0\.self_attn\.q_norm\.weight, which this Llama"):
        read(folder)


def test_a_wrong_shape_is_told_beside_the_right_one(folder: Path) -> None:
    change_weights(folder, lambda held: held.update({"model.norm.weight": torch.ones(25)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight has the shape \[25\]; config\.json calls for \[24\]"):
        read(folder)


def test_weights_stored_in_another_type_are_refused(folder: Path) -> None:
    change_weights(folder, lambda held: held.update({"model.norm.weight": torch.ones(24, dtype=torch.int8)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight is stored as I8; allowed: F32, BF16, F16"):
        read(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    index = shard(folder)
    lost = sorted(folder.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=f"names files that .* does not hold: {lost.name}"):
        read(folder)
    assert index.exists()


def test_an_index_that_promises_too_much_is_caught(folder: Path) -> None:
    index = shard(folder)
    content = json.loads(index.read_text())
    files = sorted(set(content["weight_map"].values()))
    name = next(name for name, file in content["weight_map"].items() if file == files[0])
    content["weight_map"][name] = files[1]
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{files[1]} does not hold {name}, though"):
        read(folder)


@pytest.mark.parametrize("outside", ["../secret.safetensors", "/etc/passwd", "sub/model.safetensors", 3])
def test_an_index_may_not_point_outside_its_folder(folder: Path, outside: Any) -> None:
    index = shard(folder)
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = outside
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"model\.norm\.weight is in .*; it must be a file name in the same folder"):
        read(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-100],
        lambda content: content[:5],
        lambda _: b"",
        lambda content: b"\xff" * 8 + content[8:],
        lambda content: content[:8] + b"?" + content[9:],
        lambda content: content.replace(b"[50,24]", b"[51,24]", 1),
    ],
    ids=["cut short", "five bytes", "empty", "an endless header", "no JSON", "a shape that is not there"],
)
def test_a_damaged_file_is_named(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    file = folder / "model.safetensors"
    damaged = damage(file.read_bytes())
    assert damaged != file.read_bytes()
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read as safetensors: .*; fetch it again"):
        read(folder)


def test_a_folder_without_safetensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="only safetensors weights are loaded"):
        read(folder)


# --- on a device ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("buffer_bytes", [64, 1000, 1 << 20])
def test_an_upload_through_buffers_of_any_size_changes_nothing(dtype: torch.dtype, buffer_bytes: int) -> None:
    upload = Upload(CPU, buffer_bytes)
    for shape in ((1,), (37,), (25, 40), (3, 16)):
        tensor, place = torch.randn(shape).to(dtype), torch.empty(shape, dtype=dtype)
        upload.send(tensor, place)
        assert torch.equal(tensor, place)


def test_a_device_keeps_a_matrix_by_its_outputs_and_a_cpu_by_its_inputs() -> None:
    matrix = Parameter("m", (Source("a", (3, 5)), Source("b", (4, 5))), transposed=True)
    for device, strides in (("meta", (1, 5)), ("cpu", (7, 1))):
        weight = matrix.allocate(torch.device(device), torch.float32)
        assert (tuple(weight.shape), weight.stride()) == ((5, 7), strides)


@pytest.mark.gpu
@ON_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_a_gpu_holds_what_the_files_hold(folder: Path, tied: bool, dtype: torch.dtype) -> None:
    change_config(folder, tie_word_embeddings=tied)
    on_cpu, on_gpu = read(folder, dtype=dtype), read(folder, dtype=dtype, device="cuda")
    for one, other in zip(weights_of(on_cpu), weights_of(on_gpu), strict=True):
        assert torch.equal(one, other.cpu())
    assert on_gpu.layers[0].qkv.weight_IO.t().is_contiguous()  # type: ignore[attr-defined]
    assert tied == (on_gpu.head.weight_IO.data_ptr() == on_gpu.embedding_VC.data_ptr())  # type: ignore[attr-defined]


@pytest.mark.gpu
@ON_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_on_a_gpu_are_sums_in_float32(folder: Path, dtype: torch.dtype) -> None:
    model = read(folder, dtype=dtype, device="cuda", load_format="dummy")
    hidden_NC = torch.randn(5, 24, device="cuda", dtype=dtype)
    scores_NV = model.logits(hidden_NC)
    assert scores_NV.dtype == torch.float32
    wanted_NV = hidden_NC.double() @ model.head.weight_IO.double()  # type: ignore[attr-defined]
    torch.testing.assert_close(scores_NV.double(), wanted_NV, rtol=1e-5, atol=1e-5)


# --- room ---


def bytes_of(folder: Path, dtype: torch.dtype = torch.float32) -> int:
    model = read(folder)
    return weight_bytes(family(model.config.architecture).parameters(model.config), dtype)


def test_the_weights_are_counted_before_they_are_read(folder: Path) -> None:
    held = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert bytes_of(folder) == 4 * held
    assert bytes_of(folder, torch.bfloat16) == 2 * held


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_model_that_just_fits_is_loaded(folder: Path, load_format: str) -> None:
    needed = bytes_of(folder) + HEADROOM_BYTES
    read(folder, load_format=load_format, room=lambda _: Room(needed, needed))
    with pytest.raises(ValueError, match="the model needs 1.0 GiB"):
        read(folder, load_format=load_format, room=lambda _: Room(needed - 1, needed - 1))


@pytest.mark.parametrize(
    ("dtype", "free", "total", "told"),
    [
        (torch.float32, 10, 80, r"cpu has 10.0 GiB free of 80.0 GiB; other processes hold the rest: end them"),
        (torch.float32, 22, 24, r"22.0 GiB free of 24.0 GiB; dtype 'bfloat16' needs 16.0 GiB"),
        (torch.float32, 10, 24, "10.0 GiB free of 24.0 GiB; choose a larger device or a smaller model"),
        (
            torch.bfloat16,
            10,
            12,
            "16.0 GiB \\(15.0 GiB of weights in bfloat16, 1.0 GiB to work in\\); cpu has 10.0 GiB",
        ),
    ],
)
def test_a_model_too_large_is_refused_with_numbers_and_advice(
    folder: Path, dtype: torch.dtype, free: int, total: int, told: str
) -> None:
    # The shape of Llama-3.1-8B.
    change_config(
        folder, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=128256,
    )  # fmt: skip
    gib = 1 << 30
    with pytest.raises(ValueError, match=told):
        read(folder, dtype=dtype, load_format="dummy", room=lambda _: Room(free * gib, total * gib))


def test_a_cpu_is_not_asked_and_a_gpu_that_is_not_there_is_named() -> None:
    assert device_room(CPU) is None
    with pytest.raises(ValueError, match="device cuda:99 cannot be used .*nvidia-smi"):
        device_room(torch.device("cuda:99"))


def test_a_missing_tensor_is_told_before_anything_is_allocated(folder: Path) -> None:
    change_config(folder, hidden_size=1 << 20, num_attention_heads=1 << 18, num_hidden_layers=3)
    with pytest.raises(ValueError, match="lacks"):
        read(folder)
