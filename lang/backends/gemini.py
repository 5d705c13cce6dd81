"""Google's Gemini models, by the service named for them."""

from __future__ import annotations

import os

from ...actors.errors import InvalidRequest
from .fault import Retries
from .google import GoogleBackend

__all__ = ["Gemini"]


class Gemini(GoogleBackend):
    """Run programs on one of Google's Gemini models.

    api_key: from GOOGLE_API_KEY or GEMINI_API_KEY if left out.  base_url: as the SDK takes it, with no version behind.
    """

    def __init__(
        self,
        model_name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout_s: float = 300.0,
        retries: Retries | None = None,
        concurrency: int = 256,
    ) -> None:
        if not (api_key or os.environ.get("GOOGLE_API_KEY") or os.environ.get("GEMINI_API_KEY")):
            raise InvalidRequest("api_key", "none is given, nor set as GOOGLE_API_KEY or GEMINI_API_KEY")
        super().__init__(
            model_name,
            base_url=base_url,
            api_version="v1beta",  # which has every setting; the SDK's own choice is v1
            client_options={"vertexai": False, "api_key": api_key},
            timeout_s=timeout_s,
            retries=retries,
            concurrency=concurrency,
        )
