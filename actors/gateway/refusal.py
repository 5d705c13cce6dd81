"""Errors as clients see them: a status, headers, and one JSON object."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ..errors import Aborted, GenerationFailed, InvalidRequest, Overloaded

__all__ = ["ClientLeft", "Refusal", "as_refusal"]


class ClientLeft(Exception):
    """Raised when the client closes the connection before its request is whole; nobody is left to answer."""


class Refusal(Exception):
    """Raised to answer with an error status.

    The body is OpenAI's error object on every route: {"error": {"message", "type", "param", "code"}}.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}

    def body(self) -> bytes:
        """Give the JSON object."""
        return msgspec.json.encode({"error": self.error})


def as_refusal(error: Exception) -> Refusal | None:
    """Say how a known error is answered; None for one that nobody has named."""
    match error:
        case Refusal():
            return error
        case InvalidRequest():
            code = "context_length_exceeded" if "context" in str(error) else "invalid_value"
            return Refusal(400, str(error), "invalid_request_error", param=error.field, code=code)
        case Overloaded():
            wait = str(max(1, math.ceil(error.retry_after_s))).encode()
            return Refusal(429, str(error), "overloaded_error", code="overloaded", headers=((b"retry-after", wait),))
        case Aborted():
            # 499 and not 409: the openai client would send a 409 again.
            return Refusal(499, str(error), "aborted_error", code="aborted")
        case GenerationFailed():
            return Refusal(500, str(error), "server_error", code="generation_failed")
        case _:
            return None
