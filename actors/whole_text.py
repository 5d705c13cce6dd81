"""Texts of whole characters alone: half of one, a lone surrogate, can be neither tokenized nor sent."""

from __future__ import annotations

from .errors import InvalidRequest

__all__ = ["verify_whole"]


def verify_whole(text: str, field: str = "text") -> None:
    """Raise InvalidRequest, naming `field`, if a text holds half a character, as cut UTF-16 and odd file names do."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half, at = text[error.start], error.start
        raise InvalidRequest(field, f"it holds half a character, {half!r} at {at}, which no model reads") from None
