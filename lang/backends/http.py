"""Backends that speak HTTP themselves, without a vendor's SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from ssl import SSLContext, create_default_context
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from ...actors.chat_template import ChatTemplate
from ...actors.errors import GenerationFailed, InvalidRequest
from .capabilities import Capabilities
from .events import events
from .fault import Fault, Retries, cut, refused, said, silent, unreachable
from .remote import RemoteBackend

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpBackend"]


class HttpBackend(RemoteBackend):
    """A service at `base_url` that takes and gives JSON.

    certificates: a PEM file to trust instead of the system's, or an SSLContext.  retryable: the statuses that are
    worth another attempt.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str],
        retryable: frozenset[int],
        certificates: str | SSLContext | None,
        capabilities: Capabilities,
        chat_template: ChatTemplate,
        timeout_s: float,
        retries: Retries | None,
        concurrency: int,
    ) -> None:
        _verify_url(base_url)
        super().__init__(
            capabilities=capabilities, chat_template=chat_template, timeout_s=timeout_s, retries=retries,
            concurrency=concurrency,
        )  # fmt: skip
        self.base_url = base_url.rstrip("/")
        self._headers = dict(headers)
        self._retryable = retryable
        self._certificates = certificates
        self._http: httpx.AsyncClient | None = None

    async def _connect(self, stack: AsyncExitStack) -> None:
        import httpx

        trusted = self._certificates
        if isinstance(trusted, str):
            try:
                trusted = create_default_context(cafile=trusted)
            except OSError as error:  # an SSLError is one
                raise InvalidRequest("verify", f"{trusted!r} cannot be read as certificates: {error}") from error
        self._http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=self.base_url,
                headers=self._headers,
                timeout=httpx.Timeout(self.timeout_s, pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),  # the slots are the bound
                verify=True if trusted is None else trusted,
            )
        )

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        """Give the JSON that answers a request; Fault if none does."""
        async with self._response(method, path, body) as response:
            data = await response.aread()
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Fault(GenerationFailed(f"{self.who} answered {path} with no JSON: {data[:80]!r}")) from error

    async def _events(self, path: str, body: Any) -> AsyncGenerator[Any, None]:
        """Give the events that answer a request, as they come; Fault if they break off or one of them is an error."""
        async with (
            self._response("POST", path, body) as response,
            aclosing(events(response.aiter_bytes(), self.who)) as news,
        ):
            async for event in news:
                if isinstance(event, dict) and (error := cast("dict[str, Any]", event).get("error")):
                    raise self._refused(said(error).meant, error, {})
                yield event

    @asynccontextmanager
    async def _response(self, method: str, path: str, body: Any) -> AsyncIterator[httpx.Response]:
        """Open a response; what breaks before it is there may be tried again.  Leaving it closes its connection."""
        import httpx

        assert self._http is not None, "there is a slot only in an entered backend"
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        answered = False
        try:
            async with self._http.stream(method, path, content=content, headers=headers) as response:
                answered = True
                if response.status_code >= 400:
                    raise self._refused(response.status_code, _body(await response.aread()), response.headers)
                yield response
        except httpx.TimeoutException as error:
            raise silent(self.who, self.timeout_s) from error
        except (httpx.RequestError, OSError) as error:
            raise (cut if answered else unreachable)(self.who, error) from error

    def _refused(self, status: int, body: Any, headers: Mapping[str, str]) -> Fault:
        words = said(body)
        return refused(
            status, words.message, who=self.who, retryable=self._retryable, field=words.field, code=words.code,
            headers=headers,
        )  # fmt: skip


def _body(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode("utf-8", "replace")


def _verify_url(base_url: Any) -> None:
    if not isinstance(base_url, str) or not base_url.startswith(("http://", "https://")):
        raise InvalidRequest("base_url", f"{base_url!r:.80} begins neither with http:// nor with https://")
    try:
        parts = urlsplit(base_url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is none
        named = False
    if not named:
        raise InvalidRequest("base_url", f"{base_url!r:.80} names no host, or no port from 1 to 65535")
