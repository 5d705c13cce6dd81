"""Chat templates: the tokenizer's own Jinja template, rendered in a sandbox, whole or a role at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import InvalidRequest

__all__ = ["PLAIN", "ChatTemplate"]

PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""The template of a model that brings none."""

_MARK = "\ue000callboard\ue001"  # private-use characters: no template and no tokenizer gives them a meaning


class ChatTemplate:
    """Render messages to a prompt.

    source: the Jinja template; special: the names a template may use (bos_token, eos_token, ...); stop: strings that
    end what the assistant says, beside the model's own end tokens.  The environment is an immutable sandbox: a template
    comes with a model's files and is not trusted.  Raises InvalidRequest if it is no template.
    """

    image_token: str = "<image>"  # noqa: S105
    """What stands for an image in the text."""

    def __init__(
        self, source: str = PLAIN, special: Mapping[str, str] | None = None, *, stop: tuple[str, ...] = ()
    ) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.Undefined)
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = _to_json
        self.source = source
        self.special = dict(special or {})
        self.stop = stop
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InvalidRequest("chat_template", f"it is no Jinja template: {error}") from error
        self._roles: dict[tuple[str, str | None, str | None], tuple[str, str]] = {}

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate:
        """Read the template from a model folder; PLAIN if it brings none."""
        return cls.find(folder) or ChatTemplate.of(PLAIN, folder)

    @classmethod
    def find(cls, folder: Path) -> ChatTemplate | None:
        """Read the template from a model folder: chat_template.jinja, else tokenizer_config.json's, else None."""
        if (path := folder / "chat_template.jinja").exists():
            return ChatTemplate.of(path.read_text(encoding="utf-8"), folder)
        source = _config(folder).get("chat_template")
        if isinstance(source, list):  # several named templates: the one called "default" speaks
            source = next((item["template"] for item in source if item.get("name") == "default"), None)
        return ChatTemplate.of(source, folder) if source else None

    @staticmethod
    def of(source: str, folder: Path) -> ChatTemplate:
        """Give a template that may use the special tokens of a model folder."""
        config = _config(folder)
        return ChatTemplate(source, {name: _token_text(config[name]) for name in _SPECIAL if config.get(name)})

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Give the prompt for `messages` (each with role and content); InvalidRequest if the template refuses."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self.special,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest("messages", f"the model's chat template refused them: {error}") from error

    def role(self, role: str, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """Give what stands before and after a message of `role` that follows `messages`.

        Found by rendering a mark in the message's place, so any template whose output for earlier messages does not
        depend on later ones can be written a role at a time.  A default system prompt that the template inserts
        stands before the first message.
        """
        # Templates look at the role before and at whether one came before; not at what was said.
        last = messages[-1]["role"] if messages else None
        before = messages[-2]["role"] if len(messages) > 1 else None
        around = self._roles.get((role, last, before))
        if around is None:
            around = self._roles[role, last, before] = self._around(role, messages)
        return around

    def _around(self, role: str, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        before = self.render(messages, add_generation_prompt=False) if messages else ""
        if role == "assistant" and messages:
            opening = self.render(messages, add_generation_prompt=True)
        else:
            opening = None
        whole = self.render([*messages, {"role": role, "content": _MARK}], add_generation_prompt=False)
        if _MARK not in whole:
            raise InvalidRequest("role", f"the model's chat template has no place for the role {role!r}")
        prefix, _, suffix = whole.partition(_MARK)
        if opening is not None and opening.startswith(before):
            return opening[len(before) :], suffix
        return prefix.removeprefix(before), suffix


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return msgspec.json.decode(path.read_bytes()) if path.exists() else {}


_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def _token_text(value: Any) -> str:
    return value["content"] if isinstance(value, dict) else str(value)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    text = msgspec.json.encode(value)
    return (msgspec.json.format(text, indent=indent) if indent else text).decode()
