"""Chat templates told by what stands around each role's text, as SGLang's are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from .chat_template import ChatTemplate
from .errors import InvalidRequest

__all__ = ["ChatTemplateStyle", "RoleTemplate"]

Ends = tuple[str, str]


class ChatTemplateStyle(Enum):
    """PLAIN: a message is its role's prefix, its text, its suffix.

    LLAMA2: a system message that comes first is written inside the user's message behind it.
    """

    PLAIN = auto()
    LLAMA2 = auto()


class RoleTemplate(ChatTemplate):
    """A template by roles.  A chat that begins with no system message gets default_system_prompt, if there is one.

    It is written as Jinja (`source`), so that whoever is told it writes as this does.  stop_str: strings that end what
    the assistant says.  Raises InvalidRequest for values of a wrong kind; a role it has not is refused when it is used.
    """

    def __init__(
        self,
        name: str,
        default_system_prompt: str | None,
        role_prefix_and_suffix: Mapping[str, Ends],
        stop_str: Sequence[str] = (),
        image_token: str = "<image>",  # noqa: S107
        audio_token: str = "<audio>",  # noqa: S107
        style: ChatTemplateStyle = ChatTemplateStyle.PLAIN,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidRequest("name", f"{name!r:.80} is not a non-empty string")
        if isinstance(stop_str, str) or not all(isinstance(stop, str) and stop for stop in stop_str):
            raise InvalidRequest("stop_str", f"{stop_str!r:.80} is not a list of non-empty strings")
        self.role_prefix_and_suffix = {
            role: (str(ends[0]), str(ends[1])) for role, ends in role_prefix_and_suffix.items()
        }
        if "assistant" not in self.role_prefix_and_suffix:
            raise InvalidRequest("role_prefix_and_suffix", f"{name} says nothing of the assistant")
        self.name = name
        self.default_system_prompt = default_system_prompt
        self.style = style
        self.image_token = image_token
        self.audio_token = audio_token
        super().__init__(self._jinja(), stop=tuple(stop_str))

    @property
    def stop_str(self) -> tuple[str, ...]:
        """The strings that end what the assistant says."""
        return self.stop

    def get_prefix_and_suffix(self, role: str, hist_messages: Sequence[Mapping[str, Any]]) -> Ends:
        """Give what stands around a message of `role` behind these messages, a default system prompt left out."""
        prefix, suffix = self.role_prefix_and_suffix.get(role, ("", ""))
        if self.style is ChatTemplateStyle.LLAMA2:
            if role == "system" and not hist_messages:
                return self._user_prefix + prefix, suffix
            if role == "user" and len(hist_messages) == 1 and hist_messages[0]["content"] is not None:
                return "", suffix
        return prefix, suffix

    def get_prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Write whole messages; a system message without content is the default system prompt."""
        text = ""
        for place, message in enumerate(messages):
            content = message["content"]
            if message["role"] == "system" and content is None:
                content = self.default_system_prompt
            if content is None:
                continue
            prefix, suffix = self.get_prefix_and_suffix(message["role"], messages[:place])
            text += f"{prefix}{content}{suffix}"
        return text

    @property
    def _user_prefix(self) -> str:
        return self.role_prefix_and_suffix.get("user", ("", ""))[0]

    def _jinja(self) -> str:
        llama = self.style is ChatTemplateStyle.LLAMA2
        parts: list[str] = []
        if self.default_system_prompt is not None:
            prefix, suffix = self.get_prefix_and_suffix("system", ())
            default = _said(prefix + self.default_system_prompt + suffix)
            parts.append("{% if messages and messages[0].role != 'system' %}" + default + "{% endif %}")
        # A user's message is open already behind a system message that comes first, or the default one.
        opened = "loop.index0 == 1 and messages[0].role == 'system'"
        if self.default_system_prompt is not None:
            opened = f"loop.first or {opened}"
        parts.append("{% for message in messages %}")
        branch = "if"
        for role, (prefix, suffix) in self.role_prefix_and_suffix.items():
            opening = _said(prefix)
            if llama and role == "system":
                opening = "{% if loop.first %}" + _said(self._user_prefix) + "{% endif %}" + opening
            elif llama and role == "user":
                opening = "{% if not (" + opened + ") %}" + opening + "{% endif %}"
            parts.append("{% " + branch + " message.role == " + json.dumps(role) + " %}" + opening)
            parts.append("{{ message.content }}" + _said(suffix))
            branch = "elif"
        parts.append("{% else %}{{ raise_exception('it has no role ' ~ message.role) }}{% endif %}{% endfor %}")
        opening = _said(self.role_prefix_and_suffix["assistant"][0])
        parts.append("{% if add_generation_prompt %}" + opening + "{% endif %}")
        return "".join(parts)


def _said(text: str) -> str:
    """Write text as Jinja that gives it."""
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}" if text else ""
