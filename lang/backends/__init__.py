"""Backends elsewhere: servers and vendors.  Importing this imports no SDK and no HTTP client."""

from .anthropic import Anthropic
from .capabilities import Capabilities
from .fault import Retries
from .gemini import Gemini
from .openai import OpenAI
from .runtime_endpoint import RuntimeEndpoint
from .vertex import VertexAI

__all__ = ["Anthropic", "Capabilities", "Gemini", "OpenAI", "Retries", "RuntimeEndpoint", "VertexAI"]
