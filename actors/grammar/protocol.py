"""What goes through the pipes of a process that proves constraints: MessagePack, each message behind its length."""

from __future__ import annotations

from typing import Any

import msgspec

from ..sampling import Constraint
from .limits import GrammarLimits
from .matcher import TokenizerFile

__all__ = ["HEADER_BYTES", "Proof", "Prove", "Ready", "Refusal", "Setup", "ToChild", "ToParent", "frame", "frame_size"]

HEADER_BYTES = 4


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message: which tokenizer, which limits.  memory_bytes: beyond what the process has once it is ready."""

    tokenizer: TokenizerFile
    limits: GrammarLimits
    memory_bytes: int


class Prove(msgspec.Struct, frozen=True, tag=True):
    """Compile a constraint.  cpu_s: how long it may compute; behind that the process dies by itself."""

    constraint: Constraint
    cpu_s: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The tokenizer is read."""


class Proof(msgspec.Struct, frozen=True, tag=True):
    """It compiles.  grammar: llguidance's grammar for it."""

    grammar: str


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """It does not compile, or the tokenizer cannot be used; the message is an InvalidRequest's, without its field."""

    message: str


ToChild = Setup | Prove
ToParent = Ready | Proof | Refusal


def frame(message: Any) -> bytes:
    """Put a message's length before it: 4 bytes, big-endian."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def frame_size(header: bytes) -> int:
    """Read a length."""
    return int.from_bytes(header, "big")
