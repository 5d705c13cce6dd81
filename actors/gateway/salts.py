"""What parts the cache further than tenants do: `cache_salt`, as vLLM and SGLang take it, and SGLang's `extra_key`."""

from __future__ import annotations

from ..errors import InvalidRequest

__all__ = ["salt_of"]

_LONGEST = 256  # characters


def salt_of(cache_salt: str | None, extra_key: str | None) -> str:
    """Make one salt of the two; "" if neither is given.  Raises InvalidRequest for one that is empty or too long.

    An empty one is refused, for whoever sends it has probably lost the one it meant, and would share what it computes.
    """
    for field, value in (("cache_salt", cache_salt), ("extra_key", extra_key)):
        if value is not None and not 0 < len(value) <= _LONGEST:
            raise InvalidRequest(field, f"{len(value)} characters given, 1 to {_LONGEST} allowed")
    if cache_salt is None and extra_key is None:
        return ""
    return f"{len(cache_salt or '')}:{cache_salt or ''}{extra_key or ''}"
