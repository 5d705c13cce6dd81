"""`separate_reasoning`: a thinking model's reasoning and answer, as two variables."""

from __future__ import annotations

import msgspec

from ..actors.errors import InvalidRequest
from ..actors.reasoning import markers_of
from .expression import Expression, Gen, Sequence, flatten

__all__ = ["reasoning_name", "separate_reasoning"]


def separate_reasoning(expr: Expression | str | None = None, model_type: str | None = None) -> Sequence:
    """Tell reasoning and answer apart in every `gen` of an expression.

    `gen("x")` gives its answer as "x" and its reasoning as "x_reasoning_content", both streamed; the program's text
    keeps both as the model wrote them, for the model reads on from there.  model_type: the family whose markers are
    meant ("qwen3", "deepseek-r1", ...).  Raises InvalidRequest for an unknown one, and if there is no `gen`.
    """
    if model_type is None:
        raise InvalidRequest("model_type", "the family of the model is needed, such as 'qwen3'")
    markers = markers_of(model_type)
    items = flatten("" if expr is None else expr)
    if not any(isinstance(item, Gen) for item in items):
        raise InvalidRequest("expr", f"there is no gen in {expr!r:.80} whose reasoning could be told apart")
    return Sequence(
        tuple(msgspec.structs.replace(item, markers=markers) if isinstance(item, Gen) else item for item in items)
    )


def reasoning_name(name: str | None) -> str | None:
    """Give the variable that holds the reasoning of another."""
    return None if name is None else f"{name}_reasoning_content"
