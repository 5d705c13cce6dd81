"""What constraints may cost."""

from __future__ import annotations

import msgspec

__all__ = ["GrammarLimits", "ProofLimits"]


class GrammarLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what constraints may cost.

    entries and source_bytes: how many compiled ones are kept, and how long their texts may be together.  depth: how
    deep a JSON schema may nest.  states: automaton states of one constraint, each 1 to 2 kB, made as they are reached.
    compile_fuel and step_fuel: work to compile one, and to compute one mask, in llguidance's units (about 50,000 and
    14,000 a millisecond).
    """

    entries: int = 256
    source_bytes: int = 4 << 20
    depth: int = 64
    states: int = 50_000
    compile_fuel: int = 1_000_000
    step_fuel: int = 200_000


class ProofLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the processes that prove constraints.

    processes: how many there may be; they start when they are needed.  start_s: how long one may take to read the
    tokenizer.  compile_s and memory_bytes: what one constraint may take, beyond what the process had when it was ready.
    """

    processes: int = 2
    start_s: float = 60.0
    compile_s: float = 5.0
    memory_bytes: int = 512 << 20
