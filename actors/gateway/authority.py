"""Who a client is, by its key."""

from __future__ import annotations

import hmac
import secrets
from hashlib import blake2b
from typing import NamedTuple

from .options import GatewayOptions

__all__ = ["Authority", "Caller"]


class Caller(NamedTuple):
    """On whose behalf a client asks, and whether it may do what is the administrator's."""

    tenant: str
    administers: bool


class Authority:
    """Know the keys of a gateway.  Without any, every client is the one tenant there is, and the administrator.

    Keys are kept and compared as digests, of equal length and under a secret of this process; every comparison takes
    the same time, and each key is compared with all, whichever it is.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self._secret = secrets.token_bytes(32)
        entries = [(one.key, Caller(one.tenant, administers=False)) for one in options.api_keys]
        if options.api_key is not None:
            entries.append((options.api_key, Caller("", administers=options.admin_api_key is None)))
        if options.admin_api_key is not None:
            entries.append((options.admin_api_key, Caller("", administers=True)))
        self._entries = tuple((self._digest(key.encode()), caller) for key, caller in entries)

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._secret, digest_size=32).digest()

    def caller(self, authorization: bytes) -> Caller | None:
        """Give who sent this header, `Bearer KEY`; None if that is no key of anybody's."""
        if not self._entries:
            return Caller("", administers=True)
        scheme, _, given = authorization.partition(b" ")
        digest = self._digest(given.strip() if scheme.lower() == b"bearer" else b"")
        found: Caller | None = None
        for known, caller in self._entries:
            if hmac.compare_digest(known, digest):
                found = caller
        return found
