"""The errors of every entrance, named as states."""

from __future__ import annotations

__all__ = ["Aborted", "BackendUnset", "GenerationFailed", "InvalidRequest", "Overloaded"]


class InvalidRequest(ValueError):
    """Raised before anything runs when an argument is out of range, unknown or of the wrong type.

    `field` names the argument; the message says what was given and what is allowed. HTTP: 400.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Overloaded(Exception):
    """Raised when there is no room: a queue, a mailbox or a rate is at its bound. HTTP: 429 or 503.

    `retry_after_s` is a hint in seconds.
    """

    def __init__(self, reason: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class GenerationFailed(Exception):
    """Raised at every waiter of a generation that ended by a fault of the runtime. HTTP: 500."""


class Aborted(Exception):
    """Raised at every waiter of a generation that was aborted by somebody else than the waiter."""


class BackendUnset(RuntimeError):
    """Raised when a program needs a backend and none can be found or started."""
