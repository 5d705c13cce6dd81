"""Chat templates by name and by model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from .chat_template import ChatTemplate
from .errors import InvalidRequest
from .named_templates import NAMED, RULES
from .role_template import ChatTemplateStyle, RoleTemplate

__all__ = ["BOOK", "Match", "TemplateBook", "choose_template"]

Match = Callable[[str], "str | RoleTemplate | None"]
"""From a model's path to its template, or its name; None if it is for another to say."""


class TemplateBook:
    """Look templates up; those that ship are in every book."""

    def __init__(self) -> None:
        self._made: dict[str, RoleTemplate] = {}
        self._matches: list[Match] = []

    def names(self) -> list[str]:
        """Give every name there is, in alphabetical order."""
        return sorted({*NAMED, *self._made})

    def register(self, template: RoleTemplate) -> None:
        """Add a template under its name, in the place of one that had it."""
        if not isinstance(template, RoleTemplate):
            raise InvalidRequest("chat_template", f"{template!r:.80} is no template by roles")
        self._made[template.name] = template

    def register_match(self, match: Match) -> Match:
        """Add a way to tell a model's template by its path; it is asked behind those that were added before it."""
        self._matches.append(match)
        return match

    def get(self, name: str) -> RoleTemplate:
        """Give a template by its name; InvalidRequest names those there are."""
        template = self._made.get(name)
        if template is None:
            if name not in NAMED:
                raise InvalidRequest("chat_template", f"{name!r:.80} is not one of {', '.join(self.names())}")
            told = dict(NAMED[name])
            style = ChatTemplateStyle.LLAMA2 if told.pop("llama_2", False) else ChatTemplateStyle.PLAIN
            template = self._made[name] = RoleTemplate(name, style=style, **told)
        return template

    def match(self, model_path: str) -> RoleTemplate | None:
        """Give the template a model's path speaks for: what was registered is asked first, then what ships."""
        for match in self._matches:
            if (found := match(model_path)) is not None:
                return found if isinstance(found, RoleTemplate) else self.get(found)
        for expression, name in RULES:
            if re.search(expression, model_path, re.IGNORECASE):
                return self.get(name)
        return None


BOOK = TemplateBook()
"""What SGLang's register_chat_template adds to, for it says of no place of its own; nothing is in it until then.

An engine or a backend that is given a template, or a book, does not look here.
"""


def choose_template(
    given: ChatTemplate | str | None, folder: Path, model: str, book: TemplateBook = BOOK
) -> ChatTemplate:
    """Give the template of an engine.

    given: a template, a name in the book, a file, or a template's own source.  None is the tokenizer's own; where it
    has none, that of the model's name; where that tells nothing, the plain one.  Raises InvalidRequest.
    """
    if isinstance(given, ChatTemplate):
        return given
    if given is None:
        return ChatTemplate.find(folder) or book.match(model) or ChatTemplate.load(folder)
    if not isinstance(given, str):
        raise InvalidRequest("chat_template", f"{given!r:.80} is neither a template, a name nor a file")
    if "{{" in given or "{%" in given:
        return ChatTemplate.of(given, folder)
    if given in book.names():
        return book.get(given)
    path = Path(given).expanduser()
    if not path.is_file():
        raise InvalidRequest("chat_template", f"{given!r:.80} is neither a file nor one of {', '.join(book.names())}")
    try:
        return ChatTemplate.of(path.read_text(encoding="utf-8"), folder)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("chat_template", f"{path} cannot be read: {error}") from error
