"""The process that proves constraints: compile what comes in on stdin, tell on stdout whether it could be.

It holds nothing that others need, so a constraint that takes too long, too much memory or too much stack costs only
this process.  Its parent kills it; left alone, it ends with its stdin, or at its limit of processor time.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import BinaryIO

import msgspec
from llguidance import LLTokenizer

from ..errors import InvalidRequest
from .limits import GrammarLimits
from .matcher import compile_matcher, read_tokenizer
from .protocol import HEADER_BYTES, Proof, Prove, Ready, Refusal, Setup, ToChild, ToParent, frame, frame_size
from .source import to_grammar

__all__ = ["main"]


def main() -> None:
    """Serve until stdin ends."""
    decoder = msgspec.msgpack.Decoder(ToChild)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokens: LLTokenizer | None = None
    limits = GrammarLimits()
    while (body := _read(source)) is not None:
        message = decoder.decode(body)
        answer: ToParent = Ready()
        if isinstance(message, Setup):
            try:
                tokens, limits = read_tokenizer(message.tokenizer), message.limits
            except (ValueError, OSError) as error:
                answer = Refusal(str(error))
            _limit_memory(message.memory_bytes)
        else:
            assert tokens is not None, "Setup comes first"
            answer = _prove(message, tokens, limits)
        sink.write(frame(answer))
        sink.flush()


def _prove(prove: Prove, tokens: LLTokenizer, limits: GrammarLimits) -> Proof | Refusal:
    constraint = prove.constraint
    _limit_time(prove.cpu_s)
    try:
        grammar = to_grammar(constraint, limits.depth)
        compile_matcher(tokens, constraint, grammar, limits)
    except InvalidRequest as error:
        return Refusal(str(error).removeprefix(f"{error.field}: "))
    except MemoryError:
        return Refusal("compiling it takes more memory than is allowed")
    return Proof(grammar)


def _read(source: BinaryIO) -> bytes | None:
    header = source.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    body = source.read(size := frame_size(header))
    return body if len(body) == size else None


def _limit_time(cpu_s: float) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = math.ceil(time.process_time() + cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _limit_memory(more_bytes: int) -> None:
    """Allow so much address space beyond what there is; nothing is limited where the system does not tell."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return
    has = int(statm.read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGESIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = has + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    main()
