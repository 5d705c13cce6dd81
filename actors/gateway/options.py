"""What an operator may set of a gateway."""

from __future__ import annotations

import msgspec

from ..reasoning import MODEL_TYPES
from .api_keys import ApiKey, verify_api_keys, verify_key

__all__ = ["GatewayOptions"]


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gateway listens, who may speak to it, and how much one request may ask for.

    port 0 takes any free one.  certfile and keyfile (PEM paths) switch TLS on.  api_key guards the routes of level
    `key`, and so do api_keys, each a tenant's own; admin_api_key guards those of level `admin` (without it, api_key
    does, and never a tenant's).  reasoning_parser: the family whose markers
    the model writes around its reasoning (MODEL_TYPES); None leaves it in the text.  Times are in seconds.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    certfile: str | None = None
    keyfile: str | None = None
    api_key: str | None = None
    admin_api_key: str | None = None
    api_keys: tuple[ApiKey, ...] = ()
    body_bytes: int = 32 << 20  # the largest request body
    body_timeout_s: float = 30.0  # the longest pause inside a request body
    header_bytes: int = 16 << 10
    live_requests: int = 4096  # exchanges at once; one more is told 503
    choices: int = 128  # n of one prompt
    sequences: int = 512  # prompts of a batch, times n
    streams_per_connection: int = 256  # HTTP/2
    keep_alive_s: float = 5.0  # also how long Hypercorn keeps a connection that its client has closed
    backlog: int = 2048
    grace_s: float = 5.0  # what in-flight requests get when the gateway stops
    reasoning_parser: str | None = None
    stream_interval_ms: float | None = None  # between two events of a stream; None: by how many are live (pace.py)

    @property
    def guarded(self) -> bool:
        """Whether clients need a key."""
        return self.api_key is not None or bool(self.api_keys)

    def verify(self) -> None:
        """Raise ValueError naming the first setting that cannot be served with."""
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: {self.port} is outside 0 to 65535")
        if (self.certfile is None) != (self.keyfile is None):
            raise ValueError("certfile, keyfile: both are needed for TLS, and only one was given")
        verify_api_keys(self.api_keys)
        for field in ("api_key", "admin_api_key"):
            key: str | None = getattr(self, field)
            if key is not None:
                verify_key(field, key)
                if any(one.key == key for one in self.api_keys):
                    raise ValueError(f"{field}: it is a tenant's key too, in api_keys")
        if self.admin_api_key is not None and not self.guarded:
            raise ValueError(
                "admin_api_key: give api_key or api_keys too; a guarded administration beside open routes is a slip"
            )
        if self.reasoning_parser is not None and self.reasoning_parser.lower() not in MODEL_TYPES:
            known = ", ".join(MODEL_TYPES)
            raise ValueError(f"reasoning_parser: {self.reasoning_parser!r:.80} is unknown; there are {known}")
        for field in _POSITIVE:
            if getattr(self, field) <= 0:
                raise ValueError(f"{field}: {getattr(self, field)} is not above 0")
        if self.grace_s < 0:
            raise ValueError(f"grace_s: {self.grace_s} is below 0")
        if self.stream_interval_ms is not None and not 0 <= self.stream_interval_ms <= _LONGEST_INTERVAL_MS:
            raise ValueError(
                f"stream_interval_ms: {self.stream_interval_ms:g} is outside 0 to {_LONGEST_INTERVAL_MS:g}"
            )


_LONGEST_INTERVAL_MS = 1000.0
_POSITIVE = (
    "body_bytes", "body_timeout_s", "header_bytes", "live_requests", "choices", "sequences", "streams_per_connection",
    "keep_alive_s", "backlog",
)  # fmt: skip
