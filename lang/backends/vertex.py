"""Vertex AI, under the name SGLang's users know."""

from __future__ import annotations

import os
from typing import Any

from ...actors.errors import InvalidRequest
from .fault import Retries
from .google import GoogleBackend
from .sdk import sdk

__all__ = ["VertexAI"]


class VertexAI(GoogleBackend):
    """Run programs on one of Google's models at Vertex AI, told by project and location.

    project and location: from GCP_PROJECT_ID and GCP_LOCATION if left out.  credentials: google-auth's, renewed as they
    end.  token: an OAuth access token instead, such as `gcloud auth print-access-token` gives, which is never renewed.
    With neither, the SDK looks for the application default credentials at the first request.
    """

    def __init__(
        self,
        model_name: str,
        safety_settings: Any = None,
        *,
        token: str | None = None,
        credentials: Any = None,
        project: str | None = None,
        location: str | None = None,
        base_url: str | None = None,
        timeout_s: float = 300.0,
        retries: Retries | None = None,
        concurrency: int = 256,
    ) -> None:
        if safety_settings is not None:
            raise InvalidRequest("safety_settings", "they are the project's; leave them out")
        if token is not None and credentials is not None:
            raise InvalidRequest("token", "either token or credentials is taken, and not both")
        project = project or os.environ.get("GCP_PROJECT_ID")
        location = location or os.environ.get("GCP_LOCATION")
        if not project or not location:
            raise InvalidRequest("project", "project and location are needed, or GCP_PROJECT_ID and GCP_LOCATION")
        if token is not None:
            credentials = sdk("google.oauth2.credentials").Credentials(token)
        super().__init__(
            model_name,
            base_url=base_url,
            api_version="v1",
            client_options={"vertexai": True, "project": project, "location": location, "credentials": credentials},
            timeout_s=timeout_s,
            retries=retries,
            concurrency=concurrency,
        )
