"""Backends elsewhere: servers and vendors.  Importing this imports no SDK and no HTTP client."""

from .anthropic import Anthropic
from .capabilities import Capabilities
from .crusoe import Crusoe
from .fault import Retries
from .gemini import Gemini
from .litellm import LiteLLM
from .openai import OpenAI
from .runtime_endpoint import RuntimeEndpoint
from .vertex import VertexAI

__all__ = [
    "Anthropic",
    "Capabilities",
    "Crusoe",
    "Gemini",
    "LiteLLM",
    "OpenAI",
    "Retries",
    "RuntimeEndpoint",
    "VertexAI",
]
