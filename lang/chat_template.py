"""Chat templates by SGLang's names: those that ship, and one's own."""

from __future__ import annotations

from ..actors.role_template import ChatTemplateStyle
from ..actors.role_template import RoleTemplate as ChatTemplate
from ..actors.template_book import BOOK, Match

__all__ = [
    "ChatTemplate",
    "ChatTemplateStyle",
    "get_chat_template",
    "get_chat_template_by_model_path",
    "register_chat_template",
    "register_chat_template_matching_function",
]


def register_chat_template(template: ChatTemplate) -> None:
    """Let a template be known by its name; an engine takes it without, too: `Engine(chat_template=template)`."""
    BOOK.register(template)


def register_chat_template_matching_function(match: Match) -> Match:
    """Tell by a model's path which template it speaks, where its tokenizer brings none; also a decorator."""
    return BOOK.register_match(match)


def get_chat_template(name: str) -> ChatTemplate:
    """Give a template by its name; InvalidRequest names those there are."""
    return BOOK.get(name)


def get_chat_template_by_model_path(model_path: str) -> ChatTemplate:
    """Give the template a model's path speaks for; "default" if it speaks for none."""
    return BOOK.match(model_path) or BOOK.get("default")
