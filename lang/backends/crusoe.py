"""Crusoe's managed inference, under the name SGLang's users know."""

from __future__ import annotations

import os
from typing import Any

from ...actors.chat_template import ChatTemplate
from ...actors.errors import InvalidRequest
from .openai import OpenAI

__all__ = ["Crusoe"]

_URL = "https://managed-inference-api-proxy.crusoecloud.com/v1/"


class Crusoe(OpenAI):
    """Run programs on a model that Crusoe serves; it speaks as OpenAI does.

    api_key: from CRUSOE_API_KEY if left out.  options: those of `OpenAI`.
    """

    def __init__(
        self,
        model_name: str,
        api_key: str | None = None,
        base_url: str | None = None,
        chat_template: ChatTemplate | None = None,
        **options: Any,
    ) -> None:
        api_key = api_key or os.environ.get("CRUSOE_API_KEY")
        if not api_key:
            raise InvalidRequest("api_key", "one is needed, or CRUSOE_API_KEY")
        options.setdefault("is_chat_model", True)  # whatever its name ends with
        super().__init__(
            model_name, chat_template=chat_template, api_key=api_key, base_url=base_url or _URL, **options
        )  # fmt: skip

    @property
    def who(self) -> str:
        return f"Crusoe {super().who.removeprefix('OpenAI ')}"
