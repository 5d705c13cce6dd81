"""A prompt as chat services want it: whole messages, and what the program has begun to answer itself."""

from __future__ import annotations

from typing import Any

import msgspec

from ...actors.backend import Prompt
from ...actors.chat_template import ChatTemplate
from ...actors.errors import InvalidRequest
from ..parts import content_of, in_text

__all__ = ["Conversation", "converse"]


class Conversation(msgspec.Struct, frozen=True):
    """messages: finished ones, in OpenAI's form.  begun: the text with which the next answer begins."""

    messages: tuple[dict[str, Any], ...]
    begun: str = ""


def converse(prompt: Prompt, template: ChatTemplate, who: str, *, begun: bool) -> Conversation:
    """Turn a prompt, written with `template`, into messages; InvalidRequest if it is more than messages can say.

    Text without any role is one user message.  begun: whether the service goes on with an answer that has begun.
    """
    if not prompt.messages and prompt.role is None:
        if not prompt.text:
            raise InvalidRequest("messages", f"{who} answers messages, and nothing was said yet")
        return Conversation(({"role": "user", "content": content_of(prompt.text, prompt.images)},))
    if prompt.role != "assistant":
        where = "outside of the roles" if prompt.role is None else f"in the role {prompt.role!r}"
        raise InvalidRequest("messages", f"{who} speaks as assistant only: put gen in assistant(...), not {where}")
    written = _begun(prompt, template, who)
    if written and not begun:
        raise InvalidRequest(
            "messages",
            f"{who} cannot go on with an answer that the program began ({written[:40]!r}): "
            "let gen stand alone in assistant(...), or give @function num_api_spec_tokens",
        )
    return Conversation(prompt.messages, written)


def _begun(prompt: Prompt, template: ChatTemplate, who: str) -> str:
    """Give the open message's text so far: what is left of the text behind all that the template has written."""
    place = 0
    messages = [{**one, "content": in_text(one["content"], template.image_token)} for one in prompt.messages]
    for index, message in enumerate(messages):
        prefix, suffix = template.role(message["role"], messages[:index])
        place = _expect(prompt.text, place, f"{prefix}{message['content']}{suffix}", who)
    prefix, _ = template.role("assistant", messages)
    return prompt.text[_expect(prompt.text, place, prefix, who) :]


def _expect(text: str, place: int, piece: str, who: str) -> int:
    if not text.startswith(piece, place):
        stray = text[place : place + 40]
        raise InvalidRequest("messages", f"{who} takes text in roles only, and {stray!r} stands outside of them")
    return place + len(piece)
