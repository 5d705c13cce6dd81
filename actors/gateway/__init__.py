"""The HTTP gateway: OpenAI's and SGLang's routes over an engine, as an actor."""

from .gateway import Address, Gateway, check
from .options import GatewayOptions
from .service import Service

__all__ = ["Address", "Gateway", "GatewayOptions", "Service", "check"]
