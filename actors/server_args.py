"""SGLang's names for what an engine and its gateway are told, and ours for the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .engine_options import MOST_REPLICAS
from .errors import InvalidRequest

__all__ = ["ServerArgs", "engine_arguments"]

# SGLang's name -> ours, where they differ
_NAMES = {
    "model_path": "model",
    "served_model_name": "served_name",
    "random_seed": "seed",
    "mem_fraction_static": "mem_fraction",
    "max_running_requests": "max_rows",
    "max_queued_requests": "max_queued",
    "max_total_tokens": "kv_slots",
    "kv_cache_dtype": "kv_dtype",
    "chunked_prefill_size": "chunk_tokens",
    "schedule_policy": "policy",
    "attention_backend": "attention",
    "enable_deterministic_inference": "deterministic",
    "dp_size": "replicas",
    "data_parallel_size": "replicas",  # vLLM's
}
# SGLang's word for a value -> ours
_WORDS: dict[str, dict[Any, Any]] = {
    "dtype": {"auto": None, "half": "float16", "float": "float32"},
    "kv_dtype": {"auto": None, "fp8_e4m3": "float8"},
    "policy": {"lpm": "longest-prefix", "fcfs": "first-come"},
    "attention": {"torch_native": "reference"},
}
# what asks for one process on one machine and a model as it lies there, which is what there is
_HARMLESS: dict[str, Any] = {
    "tp_size": 1, "pp_size": 1, "nnodes": 1, "trust_remote_code": False, "quantization": None,
    "skip_tokenizer_init": False, "is_embedding": False,
}  # fmt: skip
_LISTENING = ("host", "port", "api_key", "admin_api_key", "reasoning_parser")  # a gateway's, not an engine's


@dataclass(frozen=True)
class ServerArgs:
    """Hold what a server is told, by SGLang's names: `Runtime(**dataclasses.asdict(args))`, `Engine(...)` likewise.

    It has the arguments that mean something here; None is this package's own default.  `tp_size` and its like take the
    one value there is.  Raises InvalidRequest, naming the first that cannot be had.
    """

    model_path: str
    tokenizer_path: str | None = None
    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    admin_api_key: str | None = None
    served_model_name: str | None = None
    chat_template: str | None = None
    reasoning_parser: str | None = None
    context_length: int | None = None
    dtype: str = "auto"
    device: str | None = None
    load_format: str = "auto"
    random_seed: int | None = None
    mem_fraction_static: float | None = None
    max_running_requests: int | None = None
    max_queued_requests: int | None = None
    max_total_tokens: int | None = None
    chunked_prefill_size: int | None = None
    schedule_policy: str | None = None
    attention_backend: str | None = None
    disable_radix_cache: bool = False
    enable_deterministic_inference: bool = False
    tp_size: int = 1
    dp_size: int = 1
    pp_size: int = 1
    nnodes: int = 1
    trust_remote_code: bool = False
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    log_level: str = "error"

    def __post_init__(self) -> None:
        told = {name: value for name, value in asdict(self).items() if name not in _LISTENING}
        engine_arguments(told)


def engine_arguments(options: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
    """Give Engine's arguments by our names, from SGLang's or ours; what nobody knows is left for Engine to refuse.

    model: the one that is given beside them.  Raises InvalidRequest for what cannot be had, and for what would make an
    engine listen: that takes a gateway.
    """
    named: dict[str, Any] = {}
    for name, value in options.items():
        if name in _HARMLESS:
            if value != _HARMLESS[name]:
                raise InvalidRequest(name, f"{value!r:.80} is not supported; only {_HARMLESS[name]!r} is")
        elif name in _LISTENING:
            if value is not None and value != _DEFAULTS[name]:
                raise InvalidRequest(name, "an engine does not listen; Runtime and callboard serve take it")
        elif name == "tokenizer_path":
            if value not in (None, model, options.get("model_path")):
                raise InvalidRequest(name, "the tokenizer is the one in the model's own folder")
        elif name == "disable_radix_cache":
            named["prefix_cache"] = not value
        elif name != "log_level" and value is not None:  # logging is the host's business
            ours = _NAMES.get(name, name)
            words = _WORDS.get(ours, {})
            told = words.get(value, value) if isinstance(value, str) else value
            if ours == "model" and model not in (None, "embedded", told):
                raise InvalidRequest(name, f"{told!r:.80} is given, and {model!r:.80} as the model too")
            if ours == "replicas" and name != ours and isinstance(told, int) and not 1 <= told <= MOST_REPLICAS:
                raise InvalidRequest(name, f"{told} is outside 1 to {MOST_REPLICAS}")
            if told is not None:
                named[ours] = told
    return named


_DEFAULTS = {field.name: field.default for field in fields(ServerArgs)}
