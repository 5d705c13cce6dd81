"""Chat messages: `system(...)`, `user(...)`, `assistant(...)`, and the same by their beginnings and ends."""

from __future__ import annotations

from functools import lru_cache

from .expression import Expression, RoleBegin, RoleEnd, RoleText, Sequence, flatten

__all__ = [
    "assistant",
    "assistant_begin",
    "assistant_end",
    "message",
    "system",
    "system_begin",
    "system_end",
    "user",
    "user_begin",
    "user_end",
]


def message(role: str, expression: Expression | str) -> RoleText | Sequence:
    """Say a whole message of any role the model's chat template knows."""
    if type(expression) is str:
        return RoleText(role, expression)
    begin, end = _ends(role)
    return Sequence((begin, *flatten(expression), end))


@lru_cache(maxsize=64)  # the same few roles, for every message of every program
def _ends(role: str) -> tuple[RoleBegin, RoleEnd]:
    return RoleBegin(role), RoleEnd(role)


def system(expr: Expression | str | None = None) -> RoleText | Sequence:
    """Say a system message."""
    return message("system", "" if expr is None else expr)


def user(expr: Expression | str | None = None) -> RoleText | Sequence:
    """Say a user's message."""
    return message("user", "" if expr is None else expr)


def assistant(expr: Expression | str | None = None) -> RoleText | Sequence:
    """Say the assistant's message; a `gen` in it is what the model says."""
    return message("assistant", "" if expr is None else expr)


def system_begin() -> RoleBegin:
    """Begin a system message."""
    return RoleBegin("system")


def system_end() -> RoleEnd:
    """End the system message."""
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    """Begin a user's message."""
    return RoleBegin("user")


def user_end() -> RoleEnd:
    """End the user's message."""
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    """Begin the assistant's message."""
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    """End the assistant's message."""
    return RoleEnd("assistant")
