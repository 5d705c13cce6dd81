"""What the vendors' SDKs have in common: how they are found, and how their errors read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from ...actors.errors import GenerationFailed, InvalidRequest
from .fault import Fault, cut, refused, said, silent, unreachable

__all__ = ["RETRYABLE", "fault_of", "refusal_of", "sdk", "verify_concurrency"]

RETRYABLE = frozenset({408, 429, 500, 502, 503, 504, 529})
"""The statuses after which the vendors' own clients try again."""


def sdk(name: str, extra: str = "remote") -> ModuleType:
    """Import a vendor's SDK; ImportError says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(f"the {name} package is needed: pip install 'callboard[{extra}]'") from error


def verify_concurrency(module: ModuleType, concurrency: int, client_options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if the SDK's own client has fewer connections: waiting for one would read as silence."""
    most = module.DEFAULT_CONNECTION_LIMITS.max_connections
    if "http_client" not in client_options and concurrency > most:
        raise InvalidRequest(
            "concurrency", f"{concurrency} is more than the {most} connections of the SDK's client; give http_client"
        )


def fault_of(error: Exception, module: ModuleType, who: str, timeout_s: float, *, answered: bool) -> Fault | None:
    """Say what an SDK's exception means; None if it is none of the SDK's, but somebody's bug.

    answered: whether the response had begun.
    """
    if isinstance(error, module.APITimeoutError) or _named(error, "TimeoutException"):
        return silent(who, timeout_s)
    if isinstance(error, module.APIConnectionError) or _named(error, "RequestError"):
        cause = error.__cause__ or error
        return cut(who, cause) if answered else unreachable(who, cause)
    if isinstance(error, module.APIError):
        response = getattr(error, "response", None)
        return refusal_of(error, who, {} if response is None else response.headers)
    if isinstance(error, ValueError):  # an event that is no JSON
        return Fault(GenerationFailed(f"{who} sent what cannot be read: {error}"))
    return None


def refusal_of(error: Any, who: str, headers: Mapping[str, str]) -> Fault:
    """Say what an error means that the service itself has answered with."""
    words = said(error.body if error.body is not None else error.message)
    status = getattr(error, "status_code", None) or 0
    if status < 400:
        status = words.meant
    return refused(
        status, words.message, who=who, retryable=RETRYABLE, field=words.field, code=words.code,
        headers=headers,
    )  # fmt: skip


def _named(error: Exception, name: str) -> bool:
    """Whether this is an exception of httpx's, of whichever generation an SDK stands on."""
    return any(
        kind.__name__ == name and kind.__module__.partition(".")[0] in ("httpx", "httpx2")
        for kind in type(error).__mro__
    )
