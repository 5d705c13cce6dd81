"""A language for programs that call language models, and the actor runtime that serves them.

import callboard as cb

@cb.function
def qa(s, question):
s += cb.user(question)
s += cb.assistant(cb.gen("answer", max_tokens=64))

print(qa.run(question="What is the capital of France?")["answer"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actors.async_lm import AsyncLM
    from .actors.backend import Backend
    from .actors.engine import Engine
    from .actors.errors import Aborted, BackendUnset, GenerationFailed, InvalidRequest, Overloaded
    from .actors.role_template import RoleTemplate
    from .actors.sampling import SamplingParams
    from .actors.server_args import ServerArgs
    from .lang import (
        ChoicesMethod,
        Decision,
        NullBackend,
        Program,
        ProgramState,
        Runtime,
        assistant,
        assistant_begin,
        assistant_end,
        flush_cache,
        function,
        gen,
        gen_int,
        gen_string,
        get_server_info,
        global_config,
        greedy_token_selection,
        image,
        record,
        select,
        separate_reasoning,
        set_default_backend,
        system,
        system_begin,
        system_end,
        token_length_normalized,
        unconditional_likelihood_normalized,
        user,
        user_begin,
        user_end,
        video,
    )
    from .lang.backends import Anthropic, Crusoe, Gemini, LiteLLM, OpenAI, Retries, RuntimeEndpoint, VertexAI

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "Anthropic",
    "AsyncLM",
    "Backend",
    "BackendUnset",
    "ChoicesMethod",
    "Crusoe",
    "Decision",
    "Engine",
    "Gemini",
    "GenerationFailed",
    "InvalidRequest",
    "LiteLLM",
    "NullBackend",
    "OpenAI",
    "Overloaded",
    "Program",
    "ProgramState",
    "Retries",
    "RoleTemplate",
    "Runtime",
    "RuntimeEndpoint",
    "SamplingParams",
    "ServerArgs",
    "VertexAI",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "record",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]

_ROOMS = {
    "AsyncLM": ".actors.async_lm",
    "Backend": ".actors.backend",
    "Engine": ".actors.engine",
    "RoleTemplate": ".actors.role_template",
    "SamplingParams": ".actors.sampling",
    "ServerArgs": ".actors.server_args",
    **dict.fromkeys(
        ("Anthropic", "Crusoe", "Gemini", "LiteLLM", "OpenAI", "Retries", "RuntimeEndpoint", "VertexAI"),
        ".lang.backends",
    ),
    **dict.fromkeys(("Aborted", "BackendUnset", "GenerationFailed", "InvalidRequest", "Overloaded"), ".actors.errors"),
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing the package costs nothing, and no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_ROOMS.get(name, ".lang"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
