"""Chat templates by name, for servers that do not tell theirs."""

from __future__ import annotations

from ...actors.chat_template import PLAIN, ChatTemplate
from ...actors.errors import InvalidRequest

__all__ = ["template_named"]

_SOURCES = {
    "plain": PLAIN,
    "chatml": (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # Its server's tokenizer puts <|begin_of_text|> in front by itself.
    "llama-3-instruct": (
        "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content }}"
        "<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
}


def template_named(name: str) -> ChatTemplate:
    """Give a template by its name; InvalidRequest names those there are."""
    if name not in _SOURCES:
        raise InvalidRequest("chat_template_name", f"{name!r} is not one of {', '.join(sorted(_SOURCES))}")
    return ChatTemplate(_SOURCES[name])
