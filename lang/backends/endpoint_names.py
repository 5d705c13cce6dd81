"""What SGLang's endpoints are asked in synchronous code, by the names its users know."""

from __future__ import annotations

from typing import Any

from ...actors.backend import Prompt
from ..crossing import wait_in
from ..house import HOUSE
from ..service import flush_cache, get_server_info
from .http import HttpBackend

__all__ = ["EndpointNames"]


class EndpointNames(HttpBackend):
    """Ask a server from synchronous code; a backend that nobody has entered is entered in the background loop.

    In async code: `model_info`, and `await` of `statistics`, `flush` and `prefill`.
    """

    model_info: dict[str, Any]

    def get_model_name(self) -> str:
        """Give the path of the model, as the server knows it."""
        HOUSE.home_blocking(self)
        return str(self.model_info.get("model_path", ""))

    def get_server_info(self) -> dict[str, Any]:
        """Tell what the server tells of itself."""
        return get_server_info(self) or {}

    def flush_cache(self) -> bool:
        """Empty the server's prefix cache of what no request holds."""
        return flush_cache(self)

    def cache_prefix(self, prefix_str: str) -> None:
        """Let the server read a text, for the prompts that begin with it."""
        prompt = Prompt(tail=prefix_str, text=prefix_str)
        wait_in(HOUSE.home_blocking(self), lambda: self.prefill(prompt), "await backend.prefill(...)")
