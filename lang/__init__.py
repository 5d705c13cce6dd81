"""What users write: programs."""

from .batch import Batch
from .choices import (
    ChoicesMethod,
    Decision,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from .expression import Expression
from .fork import ForkGroup
from .gen import gen, gen_int, gen_string, select
from .global_config import GlobalConfig, global_config
from .house import set_default_backend
from .media import image, video
from .null import NullBackend
from .program import Program, function
from .reasoning import separate_reasoning
from .recording import Recording, record
from .roles import (
    assistant,
    assistant_begin,
    assistant_end,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from .runtime import Runtime
from .service import flush_cache, get_server_info
from .state import ProgramState

__all__ = [
    "Batch",
    "ChoicesMethod",
    "Decision",
    "Expression",
    "ForkGroup",
    "GlobalConfig",
    "NullBackend",
    "Program",
    "ProgramState",
    "Recording",
    "Runtime",
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
