"""Chat templates by name, for servers that do not tell theirs."""

from __future__ import annotations

from ...actors.chat_template import ChatTemplate
from ...actors.errors import InvalidRequest
from ...actors.template_book import BOOK

__all__ = ["template_named"]


def template_named(name: str) -> ChatTemplate:
    """Give a template by its name, "plain" or one of the book's; InvalidRequest names those there are."""
    names = ["plain", *BOOK.names()]
    if name not in names:
        raise InvalidRequest("chat_template_name", f"{name!r:.80} is not one of {', '.join(sorted(names))}")
    return ChatTemplate() if name == "plain" else BOOK.get(name)
