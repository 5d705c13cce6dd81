"""Vertex AI, under the name SGLang's users know."""

from __future__ import annotations

import os
from typing import Any

from ...actors.errors import InvalidRequest
from .fault import Retries
from .gemini import Gemini

__all__ = ["VertexAI"]


class VertexAI(Gemini):
    """Run programs on one of Google's models at Vertex AI: Gemini, told by project and location.

    project and location: from GCP_PROJECT_ID and GCP_LOCATION if left out.  token: an OAuth access token, such as
    `gcloud auth print-access-token` gives; it is sent as it is, and never renewed.
    """

    def __init__(
        self,
        model_name: str,
        safety_settings: Any = None,
        *,
        token: str,
        project: str | None = None,
        location: str | None = None,
        timeout_s: float = 300.0,
        retries: Retries | None = None,
        concurrency: int = 256,
    ) -> None:
        if safety_settings is not None:
            raise InvalidRequest("safety_settings", "they are the project's; leave them out")
        project = project or os.environ.get("GCP_PROJECT_ID")
        location = location or os.environ.get("GCP_LOCATION")
        if not project or not location:
            raise InvalidRequest("project", "project and location are needed, or GCP_PROJECT_ID and GCP_LOCATION")
        super().__init__(
            model_name,
            token=token,
            base_url=f"https://{location}-aiplatform.googleapis.com/v1/projects/{project}/locations/{location}"
            "/publishers/google",
            timeout_s=timeout_s,
            retries=retries,
            concurrency=concurrency,
        )
