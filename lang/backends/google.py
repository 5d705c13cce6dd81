"""Google's models, through its official SDK."""

from __future__ import annotations

import itertools
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from ...actors.backend import Prompt
from ...actors.chat_template import ChatTemplate
from ...actors.errors import GenerationFailed, InvalidRequest
from ...actors.messages import Delta, Finish
from ...actors.sampling import SamplingParams
from ..parts import url_of
from .capabilities import Capabilities
from .conversation import converse
from .fault import Fault, Retries, cut, refused, said, silent, unreachable
from .remote import Attempt, RemoteBackend
from .sdk import RETRYABLE, sdk

if TYPE_CHECKING:
    import httpx

__all__ = ["GoogleBackend"]

_NAMES = {
    "max_new_tokens": "max_output_tokens",
    "stop": "stop_sequences",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
}
_ABLE = Capabilities(
    sampling=frozenset({*_NAMES, "json_schema"}), begun=False, images=True, overruns="message", stops=5, temperature=2.0
)
_DEFAULTS = msgspec.structs.asdict(SamplingParams())
_ENDINGS = ("STOP", "MAX_TOKENS")
_NAME = "x-callboard-generation"


class GoogleBackend(RemoteBackend):
    """One of Google's models, wherever it is served.

    client_options go to the SDK's client; api_version is the service's.  The system messages that a conversation
    begins with are its system instruction.  The SDK itself never retries: `retries` says.
    """

    def __init__(
        self,
        model_name: str,
        *,
        base_url: str | None,
        api_version: str,
        client_options: dict[str, Any],
        timeout_s: float,
        retries: Retries | None,
        concurrency: int,
    ) -> None:
        if any(stray in model_name for stray in ("..", "?", "&")):
            raise InvalidRequest("model_name", f"{model_name!r} holds '..', '?' or '&', as no model's name does")
        super().__init__(
            capabilities=_ABLE, chat_template=ChatTemplate(), timeout_s=timeout_s, retries=retries,
            concurrency=concurrency,
        )  # fmt: skip
        self.model_name = model_name
        self._sdk: Any = sdk("google.genai")
        self._auth: Any = sdk("google.auth.exceptions")
        self._options = client_options
        self._place = {"base_url": base_url, "api_version": api_version}
        self._names = itertools.count()
        self._responses: dict[str, httpx.Response] = {}  # those under way, by their generation
        self._make()

    @property
    def who(self) -> str:
        return f"Google model {self.model_name}"

    def _make(self) -> None:
        """Make the SDK's client, on an HTTP client of ours: with its own it takes aiohttp where that is installed."""
        import httpx

        types = self._sdk.types
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)  # the slots are the bound
        hooks: Any = {"request": [self._sending], "response": [self._answered]}
        self._http = httpx.AsyncClient(limits=limits, event_hooks=hooks)
        once = types.HttpRetryOptions(attempts=1)
        options = types.HttpOptions(**self._place, httpx_async_client=self._http, retry_options=once)
        self._client: Any = self._sdk.Client(**self._options, http_options=options)

    async def _connect(self, stack: AsyncExitStack) -> None:
        if self._http.is_closed:
            self._make()
        stack.callback(self._client.close)
        stack.push_async_callback(self._http.aclose)

    def _attempt(self, prompt: Prompt, sampling: SamplingParams) -> Attempt:
        said = converse(prompt, self.chat_template, self.who, begun=self.capabilities.begun)
        system, contents = _contents(list(said.messages), self.who)
        config = self._sdk.types.GenerateContentConfig(
            **_config(sampling),
            system_instruction={"parts": system} if system else None,
            automatic_continuation=False,  # an answer is one request
            automatic_function_calling={"disable": True},
        )
        return lambda: self._stream({"model": self.model_name, "contents": contents, "config": config})

    async def _stream(self, request: dict[str, Any]) -> AsyncGenerator[Delta, None]:
        reason: str | None = None
        usage: Any = None
        answered = False
        try:
            async with self._chunks(request) as chunks:
                while (chunk := await self._next(chunks)) is not None:
                    answered = True
                    usage = chunk.usage_metadata or usage
                    if blocked := chunk.prompt_feedback and chunk.prompt_feedback.block_reason:
                        raise Fault(GenerationFailed(f"{self.who}: the service refused the prompt ({blocked.value})"))
                    for candidate in (chunk.candidates or [])[:1]:
                        reason = candidate.finish_reason.value if candidate.finish_reason else reason
                        if text := _text(candidate):
                            yield Delta(text=text)
        except Fault:
            raise
        except Exception as error:
            raise self._fault(error, answered=answered) or error from error
        if reason is not None:
            yield Delta(finish=self._finish(reason, usage))

    @asynccontextmanager
    async def _chunks(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        """Open the SDK's stream, and leave its connection closed.

        The SDK closes it at the end, and when reading is cancelled or the connection fails; but not when its stream is
        closed early, nor behind an event that is an error or no JSON: there it waits for the garbage collector.
        """
        name = str(next(self._names))
        request["config"].http_options = self._sdk.types.HttpOptions(headers={_NAME: name})
        try:
            yield await self._client.aio.models.generate_content_stream(**request)
        finally:
            response = self._responses.pop(name, None)
            if response is not None:
                await response.aclose()

    async def _sending(self, request: httpx.Request) -> None:
        """Take the generation's name from a request of the SDK's: the service needs none."""
        request.extensions["generation"] = request.headers.pop(_NAME)

    async def _answered(self, response: httpx.Response) -> None:
        self._responses[response.request.extensions["generation"]] = response

    async def _next(self, chunks: Any) -> Any:
        """Give the next chunk, or None.  The SDK's own timeout is also the service's, for the whole answer."""
        with anyio.move_on_after(self.timeout_s):
            try:
                return await anext(chunks, None)
            except (AttributeError, KeyError, TypeError) as error:  # the SDK's, of an error without a number for a code
                raise ValueError(f"an event of another shape ({error})") from error
        raise silent(self.who, self.timeout_s)

    def _fault(self, error: Any, *, answered: bool) -> Fault | None:
        """Say what an exception of the SDK's means; None if it is somebody's bug."""
        import httpx

        if isinstance(error, self._sdk.errors.APIError):
            words = said(error.details)
            return refused(
                error.code or words.meant, words.message, who=self.who, retryable=RETRYABLE, field=words.field,
                code=words.code, headers=getattr(error.response, "headers", None),
            )  # fmt: skip
        if isinstance(error, (httpx.RequestError, OSError, self._auth.TransportError)):
            return (cut if answered else unreachable)(self.who, error)
        if isinstance(error, self._auth.GoogleAuthError):
            return Fault(GenerationFailed(f"{self.who}: no credentials that work: {error}"))
        if isinstance(error, ValueError):  # an event that is no JSON, or of another shape
            return Fault(GenerationFailed(f"{self.who} sent what cannot be read: {error}"))
        return None

    def _finish(self, reason: str, usage: Any) -> Finish:
        if reason not in _ENDINGS:  # SAFETY, RECITATION, BLOCKLIST and their like
            raise Fault(GenerationFailed(f"{self.who}: the service stopped the answer ({reason})"))
        return Finish(
            reason="length" if reason == "MAX_TOKENS" else "stop",
            prompt_tokens=(usage and usage.prompt_token_count) or 0,
            cached_tokens=(usage and usage.cached_content_token_count) or 0,
            completion_tokens=(usage and usage.candidates_token_count) or 0,
        )


def _text(candidate: Any) -> str:
    """Give a candidate's text without its thoughts."""
    parts: list[Any] = (candidate.content and candidate.content.parts) or []
    return "".join(part.text or "" for part in parts if not part.thought)


def _contents(messages: list[dict[str, Any]], who: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write messages in Google's words: the system messages at the beginning apart, the assistant as "model"."""
    count = next((index for index, one in enumerate(messages) if one["role"] != "system"), len(messages))
    roles = {"user": "user", "assistant": "model"}
    contents: list[dict[str, Any]] = []
    for message in messages[count:]:
        if message["role"] not in roles:
            raise InvalidRequest(
                "messages", f"{who} takes system messages first, then user and assistant, not {message['role']!r} there"
            )
        contents.append({"role": roles[message["role"]], "parts": _parts(message["content"])})
    return [{"text": message["content"]} for message in messages[:count]], contents


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"text": content}]
    parts: list[dict[str, Any]] = []
    for part in content:
        if (url := url_of(part)) is None:
            parts.append({"text": part["text"]})
        else:
            kind, _, data = url[len("data:") :].partition(";base64,")
            parts.append({"inline_data": {"mime_type": kind, "data": b64decode(data)}})
    return parts


def _config(sampling: SamplingParams) -> dict[str, Any]:
    """Give what differs from the default, and the length."""
    config: dict[str, Any] = {
        name: getattr(sampling, field)
        for field, name in _NAMES.items()
        if getattr(sampling, field) != _DEFAULTS[field] or field == "max_new_tokens"
    }
    if sampling.json_schema is not None:
        config["response_mime_type"] = "application/json"
        config["response_json_schema"] = msgspec.json.decode(sampling.json_schema)
    return config
