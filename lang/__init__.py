"""What users write: programs."""

from .batch import Batch
from .choices import token_length_normalized
from .expression import Expression
from .fork import ForkGroup
from .gen import gen, select
from .house import set_default_backend
from .null import NullBackend
from .program import Program, function
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
from .state import ProgramState

__all__ = [
    "Batch",
    "Expression",
    "ForkGroup",
    "NullBackend",
    "Program",
    "ProgramState",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "function",
    "gen",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "user",
    "user_begin",
    "user_end",
]
