"""On whose behalf a request runs: what a tenant may be called, what weight it has, and where its cache lies."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from .errors import InvalidRequest

__all__ = ["cache_namespace", "verify_tenant", "verify_weights"]

_NAME = 128  # characters of a tenant's name
_SALT = 1024  # characters of a salt, or of what is made of several
_TENANTS = 4096  # that may have a weight of their own
_LEAST, _MOST = 1e-6, 1e6


def verify_tenant(name: str, field: str = "tenant") -> None:
    """Raise InvalidRequest unless `name` is short and printable; "" is everybody who gives none."""
    if len(name) > _NAME:
        raise InvalidRequest(field, f"{len(name)} characters given, at most {_NAME} allowed")
    if not name.isprintable():  # so that no name can be taken for a namespace that is made of another
        raise InvalidRequest(field, f"{name!r:.80} is not printable")


def cache_namespace(tenant: str, salt: str = "") -> str:
    """Give where in the prefix cache a tenant's requests look: nobody else's do, nor its own under another salt.

    Raises InvalidRequest for a name or a salt that is too long.  The salt itself goes no further: it is digested.
    """
    verify_tenant(tenant)
    if not salt:
        return tenant
    if len(salt) > _SALT:
        raise InvalidRequest("salt", f"{len(salt)} characters given, at most {_SALT} allowed")
    name = tenant.encode("utf-8", "surrogatepass")
    digest = blake2b(b"%d:%b%b" % (len(name), name, salt.encode("utf-8", "surrogatepass")), digest_size=32)
    return f"salt\t{digest.hexdigest()}"


def verify_weights(weights: Mapping[str, float]) -> None:
    """Raise InvalidRequest naming the first weight that no share can be made of."""
    if len(weights) > _TENANTS:
        raise InvalidRequest("weights", f"{len(weights)} tenants given, at most {_TENANTS} allowed")
    for name, weight in weights.items():
        verify_tenant(name, "weights")
        if not _LEAST <= weight <= _MOST:  # nor is a NaN
            raise InvalidRequest("weights", f"{weight} given for {name!r}, {_LEAST:g} to {_MOST:g} allowed")
