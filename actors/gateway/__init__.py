"""The HTTP gateway: OpenAI's and SGLang's routes over an engine, as an actor."""

from .api_keys import ApiKey, KeyFile, read_api_keys
from .gateway import Address, Gateway, check
from .options import GatewayOptions
from .service import Service

__all__ = ["Address", "ApiKey", "Gateway", "GatewayOptions", "KeyFile", "Service", "check", "read_api_keys"]
