"""What can be asked of a backend from synchronous code: to empty its cache, and to tell what it is."""

from __future__ import annotations

from typing import Any

from .crossing import wait_in
from .house import HOUSE, backend_of

__all__ = ["flush_cache", "get_server_info"]


def flush_cache(backend: Any = None) -> bool:
    """Empty the prefix cache of a backend, or the default one; False if there is none.

    It starts no engine to do so.  In async code: `await backend.flush()`.
    """
    chosen = HOUSE.default if backend is None else backend_of(backend)
    if chosen is None:
        return False
    loop = HOUSE.home_blocking(chosen)
    return wait_in(loop, chosen.flush, "await backend.flush()") is not None


def get_server_info(backend: Any = None) -> dict[str, Any] | None:
    """Tell what a backend, or the default one, serves and has done; None if there is none.

    It starts no engine to do so.  In async code: `await backend.server_info()`.
    """
    chosen = HOUSE.default if backend is None else backend_of(backend)
    if chosen is None:
        return None
    return wait_in(HOUSE.home_blocking(chosen), chosen.server_info, "await backend.server_info()")
