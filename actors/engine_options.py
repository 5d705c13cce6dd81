"""What an engine is told when it is made, and what it knows once it runs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

from .errors import InvalidRequest
from .tenancy import verify_weights

__all__ = ["MOST_REPLICAS", "EngineLimits", "EngineOptions", "divided_threads", "find_device", "model_folder"]

MOST_REPLICAS = 16
"""As many GPUs as one host has."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every argument of Engine.

    model: "embedded", or a folder in the Hugging Face layout.  device: "cpu", "cuda", "cuda:1"; "auto" is a GPU if
    torch sees one, and for the embedded model, which is quicker there, the CPU.  dtype: "float32", "bfloat16",
    "float16"; None is float32 on a CPU and the model's own elsewhere.  kv_dtype: of the KV pool; "float8" holds twice
    as many tokens as bfloat16, with fewer digits, not by flashinfer; None is as dtype.  context_length: tokens, at most
    the model's.
    max_rows: requests computed at once; None is 64 on a CPU, 1,024 on a GPU of 64 GiB or more and 256 on others.
    kv_slots: tokens the KV pool holds; None sizes it from memory.  mem_fraction: of a GPU's memory, what weights, KV
    pool and all else may take together.  chunk_tokens: prompt tokens computed a step; None is 512 on a CPU and 8192
    on a GPU.  attention: "reference" or, on a GPU only, "triton", our kernels alone, or "flashinfer", that library's
    alone, if it is installed; "auto" takes what is fastest.  max_queued: requests admitted at once.  in_flight: steps
    sent ahead of their results; 1 is no overlap.  prefix_cache: whether requests share the KV of equal beginnings.
    share_attention: whether rows that decode on a GPU read the KV they share once for all of them; flashinfer does
    not.  fast_forward: whether tokens that a grammar leaves no choice about are computed in one pass.  deterministic:
    the same prompt, parameters and seed give the same tokens, whatever runs beside them and however the prompt is
    cut or cached; on a GPU only, and slower.  threads: of torch on the CPU, None leaves them as they are (they
    belong to the whole process).  seed: makes requests that bring no seed repeatable.  eager: whether what a program
    has said is computed while that waits on a tool or a human, and nothing else is to do.  weights: by tenant, what
    share of the tokens it gets while others wait too; 1 for those it does not name.  replicas: how often the model is
    there, each time with all that is told here for itself: replica i lives on cuda:i, and on a CPU they divide its
    threads; what is generated is the same.
    """

    model: str = "embedded"
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    kv_dtype: Literal["float8"] | None = None
    context_length: int | None = None
    max_rows: int | None = None
    kv_slots: int | None = None
    mem_fraction: float = 0.9
    chunk_tokens: int | None = None
    attention: Literal["auto", "reference", "triton", "flashinfer"] = "auto"
    max_queued: int = 4096
    policy: Literal["longest-prefix", "first-come"] = "longest-prefix"
    in_flight: int = 2
    prefix_cache: bool = True
    share_attention: bool = True
    fast_forward: bool = True
    eager: bool = True
    deterministic: bool = False
    load_format: Literal["auto", "dummy"] = "auto"
    served_name: str | None = None
    threads: int | None = None
    seed: int | None = None
    weights: dict[str, float] = {}
    replicas: int = 1

    def verify(self) -> None:
        """Raise InvalidRequest naming the first argument of a wrong type or out of range."""
        try:
            msgspec.convert(msgspec.structs.asdict(self), EngineOptions)
        except msgspec.ValidationError as error:
            field = str(error).rpartition("$.")[2].rstrip("`") or "Engine"
            raise InvalidRequest(field, str(error).partition(" - at")[0]) from None
        for field, low, high in _RANGES:
            value: Any = getattr(self, field)
            if value is not None and not low <= value <= high:
                raise InvalidRequest(field, f"{value} is outside {low} to {high}")
        if self.kv_dtype is not None and self.attention == "flashinfer":
            raise InvalidRequest("attention", "'flashinfer'; where kv_dtype is 'float8' it must be another")
        if self.replicas > 1 and ":" in self.device:
            raise InvalidRequest(
                "device", f"{self.device!r:.80} is one device; {self.replicas} replicas take 'cuda', one each, or 'cpu'"
            )
        verify_weights(self.weights)

    def device_of(self, replica: int) -> str:
        """Name the device of a replica, once it is known which kind there is."""
        return f"cuda:{replica}" if self.replicas > 1 and self.device == "cuda" else self.device

    def on(self, device: str, memory_bytes: int = 0) -> EngineOptions:
        """Fill in what depends on the device, "cpu" or a GPU's name, with its memory.  Raises InvalidRequest."""
        if self.deterministic and device == "cpu":
            raise InvalidRequest("deterministic", "True needs a GPU: a CPU's libraries round by the number of rows")
        if self.deterministic and self.attention in ("reference", "flashinfer"):
            raise InvalidRequest(
                "attention", f"{self.attention!r}; where deterministic is True it must be 'auto' or 'triton'"
            )
        rows, tokens = (64, 512) if device == "cpu" else (256 if memory_bytes < _LARGE_BYTES else 1024, 8192)
        return msgspec.structs.replace(
            self,
            device=device,
            max_rows=self.max_rows or rows,
            chunk_tokens=self.chunk_tokens or tokens,
        )


# Per-row state and the logits of 1,024 rows take some GiB.
_LARGE_BYTES = 64 << 30
_RANGES = (
    ("context_length", 2, 1 << 24),
    ("max_rows", 1, 4096),
    ("kv_slots", 2, 1 << 31),
    ("mem_fraction", 0.01, 1.0),
    ("chunk_tokens", 1, 1 << 20),
    ("max_queued", 1, 1 << 20),
    ("in_flight", 1, 4),
    ("threads", 1, 1024),
    ("replicas", 1, MOST_REPLICAS),
)


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the loaded model and its pool allow.

    kv_slots, max_rows: of each of the `replicas`.  device: the first one's.  kv_dtype, kv_scales: see
    WorkerDescription.
    """

    architecture: str
    context_length: int
    vocabulary: int
    kv_slots: int
    max_rows: int
    device: str
    dtype: str
    kv_dtype: str
    kv_scales: str
    replicas: int = 1


def find_device(options: EngineOptions) -> tuple[str, int]:
    """Choose where a model runs, and tell a GPU's memory in bytes, of several the least; imports torch, which takes a
    second.  Raises InvalidRequest if there are fewer GPUs than replicas.
    """
    if options.device == "cpu" or (options.device == "auto" and options.model == "embedded"):
        return "cpu", 0
    import torch

    if not torch.cuda.is_available():
        return ("cpu" if options.device == "auto" else options.device), 0
    device = "cuda" if options.device == "auto" else options.device
    if options.replicas > (found := torch.cuda.device_count()):
        raise InvalidRequest("replicas", f"{options.replicas} take a GPU each; torch sees {found} CUDA devices here")
    devices = [device] if options.replicas == 1 else [f"{device}:{index}" for index in range(options.replicas)]
    try:
        return device, min(torch.cuda.get_device_properties(one).total_memory for one in devices)
    except (RuntimeError, AssertionError, ValueError):  # the worker says what is wrong with such a device
        return device, 0


def divided_threads(options: EngineOptions) -> int | None:
    """Tell how many of torch's threads each worker has: on a CPU, replicas divide what there are or are told."""
    if options.replicas == 1 or options.device != "cpu":
        return options.threads
    import torch

    return max(1, (options.threads or torch.get_num_threads()) // options.replicas)


def model_folder(model: str) -> Path:
    """Find a model's folder: the one that ships for "embedded", a folder with a config.json, or a hub's cached copy."""
    if model == "embedded":
        from ..models import embedded

        return embedded.path()
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise InvalidRequest("model", f"{folder} has no config.json; give a folder in the Hugging Face layout")
    if model.count("/") == 1 and model[0] not in "/.~" and find_spec("huggingface_hub"):
        return _hub(model)
    raise InvalidRequest("model", f'{model!r} is neither "embedded" nor a folder')


def _hub(name: str) -> Path:
    """Fetch a model from the hub, or take the copy it has left on this disk.  Safetensors and text files only."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"]))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise InvalidRequest("model", f"{name!r} could not be fetched, and no copy is on this disk: {error}") from error
