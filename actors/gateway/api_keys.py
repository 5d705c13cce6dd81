"""The keys of several tenants, and the file an operator keeps them in."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import InvalidRequest
from ..tenancy import verify_tenant, verify_weights

__all__ = ["ApiKey", "KeyFile", "read_api_keys", "verify_api_keys", "verify_key"]

_KEYS = 1024  # all are compared at each request
_SHORTEST, _LONGEST = 16, 512  # characters of a tenant's key
_FILE_BYTES = 1 << 20


class ApiKey(msgspec.Struct, frozen=True):
    """One key, and on whose behalf its holder asks.  A tenant may have several, so that they can be changed."""

    tenant: str
    key: str

    def __repr__(self) -> str:
        return f"ApiKey({self.tenant!r}, ...)"


class KeyFile(msgspec.Struct, frozen=True):
    """What such a file says: keys, and what weight tenants have that it gives one."""

    keys: tuple[ApiKey, ...]
    weights: dict[str, float]


def read_api_keys(path: str | Path) -> KeyFile:
    """Read a file of lines `name key [weight]`; empty lines, and those that begin with #, say nothing.

    Raises ValueError, which tells the line and never a key, for a line that is none, for a file that is large, and for
    one that anybody but its owner may read or write.
    """
    keys: list[ApiKey] = []
    weights: dict[str, float] = {}
    for number, line in enumerate(_text(Path(path)).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        at = f"api_keys: {path}, line {number}"
        if len(words) not in (2, 3):
            raise ValueError(f"{at}: {len(words)} words; write a name, a key and, if you like, a weight")
        keys.append(ApiKey(words[0], words[1]))
        if len(words) == 3:
            weight = _weight(words[2], at)
            if words[0] in weights and weights[words[0]] != weight:
                raise ValueError(f"{at}: {words[0]!r:.80} has another weight above")
            weights[words[0]] = weight
    if not keys:
        raise ValueError(f"api_keys: {path} has no key")
    verify_api_keys(keys)
    verify_weights(weights)
    return KeyFile(tuple(keys), weights)


def _weight(word: str, at: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{at}: the third word is no number") from None  # it may be a part of a key


def _text(path: Path) -> str:
    """Read a file of secrets, or say why it had better not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe's end may never come
    except OSError as error:
        raise ValueError(f"api_keys: {path} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"api_keys: {path} is no regular file")
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"api_keys: {path} is not its owner's alone; chmod 600 it, as this user or root")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > _FILE_BYTES:
        raise ValueError(f"api_keys: {path} is larger than the {_FILE_BYTES} bytes allowed")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"api_keys: {path} is not ASCII") from None


def verify_api_keys(keys: Sequence[ApiKey]) -> None:
    """Raise ValueError if these cannot all be told apart, or one could be guessed; no message tells a key."""
    if len(keys) > _KEYS:
        raise ValueError(f"api_keys: {len(keys)} given, at most {_KEYS} allowed")
    seen: dict[str, str] = {}
    for one in keys:
        try:
            verify_tenant(one.tenant, "api_keys")
        except InvalidRequest as error:
            raise ValueError(f"{error} (a tenant's name)") from None
        if not one.tenant or any(character.isspace() for character in one.tenant):
            raise ValueError(f"api_keys: {one.tenant!r} is no name; one word is needed")
        verify_key(f"api_keys: the key of {one.tenant!r}", one.key)
        if not _SHORTEST <= len(one.key) <= _LONGEST:
            raise ValueError(
                f"api_keys: the key of {one.tenant!r} has {len(one.key)} characters; "
                f"{_SHORTEST} to {_LONGEST} are needed"
            )
        if one.key in seen:
            raise ValueError(f"api_keys: {seen[one.key]!r} and {one.tenant!r} have the same key")
        seen[one.key] = one.tenant


def verify_key(field: str, key: str) -> None:
    """Raise ValueError unless a client can send it in a header."""
    if not (key and key.isascii() and key.isprintable() and key == key.strip()):
        raise ValueError(f"{field}: it must be printable ASCII and not empty")
