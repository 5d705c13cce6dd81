"""A message's content with images in it: text with a stand-in for each image, and OpenAI's parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["content_of", "in_text", "url_of"]


def content_of(text: str, images: Iterable[tuple[int, int, str]], start: int = 0) -> str | list[dict[str, Any]]:
    """Give the content of a message: its text behind `start`, or parts if an image stands there.

    images: from where to where in `text` each stands, and its URL, in order.
    """
    parts: list[dict[str, Any]] = []
    place = start
    for first, last, url in images:
        if first < start:
            continue
        if first > place:
            parts.append({"type": "text", "text": text[place:first]})
        parts.append({"type": "image_url", "image_url": {"url": url}})
        place = last
    if not parts:
        return text[start:]
    if place < len(text):
        parts.append({"type": "text", "text": text[place:]})
    return parts


def in_text(content: str | Sequence[Mapping[str, Any]], image_token: str) -> str:
    """Give a message's content as it stands in the program's text."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else image_token for part in content)


def url_of(part: Mapping[str, Any]) -> str | None:
    """Give the URL of a part that is an image."""
    return part["image_url"]["url"] if part["type"] == "image_url" else None
