"""SGLang's server arguments mean what ours do, and what cannot be had is refused by its name."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import pytest

import callboard as sgl
from callboard.actors.engine_options import EngineOptions
from callboard.actors.server_args import ServerArgs, engine_arguments


def test_each_name_is_one_of_ours() -> None:
    given: dict[str, Any] = {
        "served_model_name": "m", "context_length": 64, "dtype": "half", "device": "cpu", "load_format": "dummy",
        "random_seed": 3, "mem_fraction_static": 0.5, "max_running_requests": 4, "max_queued_requests": 9,
        "max_total_tokens": 256, "chunked_prefill_size": 32, "schedule_policy": "fcfs",
        "attention_backend": "torch_native", "disable_radix_cache": True, "tp_size": 1, "kv_cache_dtype": "fp8_e4m3",
    }  # fmt: skip
    engine = sgl.Engine(**asdict(ServerArgs("embedded", **given)))
    assert engine.options == EngineOptions(
        model="embedded", served_name="m", context_length=64, dtype="float16", device="cpu", load_format="dummy",
        seed=3, mem_fraction=0.5, max_rows=4, max_queued=9, kv_slots=256, chunk_tokens=32, policy="first-come",
        attention="reference", prefix_cache=False, kv_dtype="float8",
    )  # fmt: skip


def test_what_is_not_given_is_our_own_default() -> None:
    assert sgl.Engine(**asdict(ServerArgs("embedded"))).options == sgl.Engine().options
    assert sgl.Engine(model_path="embedded", dtype="auto").options == EngineOptions()
    with sgl.Runtime(**{**asdict(ServerArgs("embedded")), "port": None}) as runtime:
        assert runtime.endpoint.options == EngineOptions()


def test_every_field_but_the_listener_s_is_heeded_or_has_one_value() -> None:
    other: dict[type, Any] = {str: "no such", int: 7777, bool: True, type(None): 5}
    one_value = {"tokenizer_path", "tp_size", "dp_size", "pp_size", "nnodes", "trust_remote_code", "quantization"}
    for field in fields(ServerArgs):
        if field.name in {"model_path", "served_model_name", "chat_template", "log_level", "host", "port", "api_key",
                          "admin_api_key", "reasoning_parser"}:  # fmt: skip
            continue
        told = {field.name: other[type(field.default)]}
        if field.name in one_value:
            with pytest.raises(sgl.InvalidRequest, match=field.name):
                engine_arguments(told)
        else:
            assert engine_arguments(told) != {}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tp_size": 2}, "tp_size"),
        ({"quantization": "awq"}, "quantization"),
        ({"tokenizer_path": "elsewhere"}, "tokenizer_path"),
        ({"attention_backend": "fa3"}, "attention"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_dtype"),
        ({"kv_cache_dtype": "fp8_e4m3", "attention_backend": "flashinfer"}, "attention"),
        ({"schedule_policy": "lof"}, "policy"),
        ({"mem_fraction_static": 7.0}, "mem_fraction"),
        ({"port": 8000}, "port"),
        ({"api_key": "secret"}, "api_key"),
        ({"speculative_algorithm": "EAGLE"}, "Engine"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(sgl.InvalidRequest) as caught:
        sgl.Engine(**options)
    assert caught.value.field == field
    assert next(iter(options)) in str(caught.value) or field in str(caught.value)


def test_it_refuses_itself_what_cannot_be_had() -> None:
    with pytest.raises(sgl.InvalidRequest, match="tp_size: 8 is not supported; only 1 is"):
        ServerArgs("embedded", tp_size=8)
    with pytest.raises(sgl.InvalidRequest, match="model_path: 'b' is given, and 'a' as the model too"):
        sgl.Engine("a", model_path="b")
