"""What may go wrong with a remote service, and which of it is worth another try."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import anyio
import msgspec

from ...actors.errors import Aborted, GenerationFailed, InvalidRequest, Overloaded

__all__ = ["Fault", "Patience", "Retries", "cut", "refused", "retry_after_s", "said", "silent", "unreachable"]


class Fault(Exception):
    """Raised inside a backend when an attempt has failed; its caller sees `error`, unless another attempt helps.

    retry: whether the same request may succeed later.  after_s: how long the service asks to wait.
    """

    def __init__(self, error: Exception, *, retry: bool = False, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry = retry
        self.after_s = after_s


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and how long apart, a request is sent again before its first text is here; times in seconds.

    times: how many attempts follow the first.  The pause before the n-th is first_s * 2**(n - 1), at most longest_s,
    and a random half of it is left out, so that many clients do not come back at once; a service that names a time
    gets that time.  One that asks for more than longest_s is not waited for.
    """

    times: int = 3
    first_s: float = 0.5
    longest_s: float = 30.0

    def verify(self) -> None:
        """Raise InvalidRequest naming the first field that makes no sense."""
        for field in ("times", "first_s", "longest_s"):
            if not getattr(self, field) >= 0:
                raise InvalidRequest(f"retries.{field}", f"{getattr(self, field)!r} is not a number, 0 or more")

    def pause_s(self, attempt: int, after_s: float | None, chance: float) -> float:
        """Give the pause before the attempt-th repetition (from 1); `chance` in [0, 1) is the random part."""
        if after_s is not None:
            return after_s
        return min(self.first_s * 2.0 ** (attempt - 1), self.longest_s) * (1.0 - chance / 2)


class Patience:
    """Count one request's attempts."""

    def __init__(self, retries: Retries, sleep: Callable[[float], Awaitable[Any]] = anyio.sleep) -> None:
        self._retries = retries
        self._sleep = sleep
        self._failed = 0

    async def bear(self, fault: Fault, *, begun: bool = False) -> None:
        """Wait until it is time for another attempt, or raise what the caller shall see.

        begun: whether text of the failed attempt was already given on; then there is never another.
        """
        self._failed += 1
        too_long = fault.after_s is not None and fault.after_s > self._retries.longest_s
        if begun or not fault.retry or too_long or self._failed > self._retries.times:
            raise fault.error from fault.__cause__
        await self._sleep(self._retries.pause_s(self._failed, fault.after_s, random.random()))  # noqa: S311


# --- what a status means --------------------------------------------------------------------------------------------

_BUSY = (429, 503, 529)  # 529 is Anthropic's word for overloaded
_ABORTED = 499  # callboard's, for a generation that somebody ended by its name
_MISTAKEN = (400, 404, 413, 415, 422)
_SPENT = ("insufficient_quota", "billing_hard_limit_reached")  # a 429 that no waiting helps


def refused(
    status: int,
    message: str,
    *,
    who: str,
    retryable: frozenset[int],
    field: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Fault:
    """Turn an error status and the service's words into the error a caller knows."""
    after_s = retry_after_s(headers or {})
    words = f"{who}: {message}"
    if status in _MISTAKEN:
        if field:
            return Fault(InvalidRequest(field, f"{who}: {message.removeprefix(f'{field}: ')}"))
        return Fault(InvalidRequest("request", words))
    if status == _ABORTED:
        return Fault(Aborted(words))
    if status in _BUSY and code not in _SPENT:
        hint = 1.0 if after_s is None else after_s
        return Fault(Overloaded(words, retry_after_s=hint), retry=status in retryable, after_s=after_s)
    retry = status in retryable and code not in _SPENT
    return Fault(GenerationFailed(f"{words} (status {status})"), retry=retry, after_s=after_s)


def silent(who: str, timeout_s: float) -> Fault:
    """Say that nothing came in time.  Not tried again: the caller has waited its time."""
    return Fault(TimeoutError(f"{who} was silent for {timeout_s:g} s"))


def unreachable(who: str, error: BaseException) -> Fault:
    """Say that no answer came because the connection could not be made, or broke."""
    return Fault(GenerationFailed(f"{who} cannot be reached: {_named(error)}"), retry=True)


def cut(who: str, error: BaseException | None = None) -> Fault:
    """Say that an answer broke off."""
    why = "" if error is None else f" ({_named(error)})"
    return Fault(GenerationFailed(f"{who}: the stream was cut before its end{why}"), retry=True)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read how long a service asks to wait: retry-after-ms, or retry-after in seconds or as a date; None if neither."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


class Said(msgspec.Struct, frozen=True):
    """A service's error object: its words, the field it blames, its code and its type."""

    message: str
    field: str | None = None
    code: str | None = None
    kind: str | None = None
    status: int | None = None

    @property
    def meant(self) -> int:
        """The status of an error that comes as an event, in a stream that had begun well."""
        return self.status or _STATUS_OF_KIND.get(self.kind or "") or _STATUS_OF_KIND.get(self.code or "") or 500


_STATUS_OF_KIND = {
    "aborted_error": 499,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
    "timeout_error": 504,
}


def said(body: Any) -> Said:
    """Find the words in an error body: {"error": {"message", ...}}, what lies inside it, or plain text."""
    found = body
    if isinstance(found, dict) and "error" in found:
        found = cast("dict[str, Any]", found)["error"]
    if not isinstance(found, dict):
        return Said(str(found)[:2000] if found else "no reason was given")
    inside = cast("dict[str, Any]", found)

    def text(*names: str) -> str | None:
        return next((str(inside[name]) for name in names if inside.get(name)), None)

    number = next((inside[name] for name in ("status_code", "code") if type(inside.get(name)) is int), None)
    return Said(
        message=text("message") or str(inside)[:2000],
        field=text("param"),
        code=text("code"),
        kind=text("type", "status"),
        status=number,
    )
