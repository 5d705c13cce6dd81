"""Anthropic's API, through its official SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from ...actors.backend import Prompt
from ...actors.chat_template import ChatTemplate
from ...actors.errors import GenerationFailed, InvalidRequest
from ...actors.messages import Delta, Finish
from ...actors.sampling import SamplingParams
from ..parts import url_of
from .capabilities import Capabilities
from .conversation import converse
from .fault import Fault, Retries
from .remote import Attempt, RemoteBackend
from .sdk import fault_of, sdk, verify_concurrency

__all__ = ["Anthropic"]

_ABLE = Capabilities(
    sampling=frozenset({"max_new_tokens", "stop", "temperature", "top_p", "top_k", "json_schema"}),
    begun=True,
    images=True,
    image_urls=True,
    temperature=1.0,
)


class Anthropic(RemoteBackend):
    """Run programs on one of Anthropic's models.

    The system messages that a conversation begins with are its system prompt, in every turn.  An answer may begin
    with text of the program's, if the model lets it.  client_options go to the SDK's client: api_key, base_url,
    http_client and so on.  The SDK itself never retries: `retries` says.
    """

    def __init__(
        self,
        model_name: str,
        *,
        timeout_s: float = 300.0,
        retries: Retries | None = None,
        concurrency: int = 256,
        **client_options: Any,
    ) -> None:
        super().__init__(
            capabilities=_ABLE, chat_template=ChatTemplate(), timeout_s=timeout_s, retries=retries,
            concurrency=concurrency,
        )  # fmt: skip
        self.model_name = model_name
        self._options = {**client_options, "timeout": timeout_s, "max_retries": 0}
        self._sdk = sdk("anthropic")
        verify_concurrency(self._sdk, concurrency, client_options)
        self._client: Any = self._make()

    @property
    def who(self) -> str:
        return f"Anthropic model {self.model_name}"

    def _make(self) -> Any:
        return self._sdk.AsyncAnthropic(**self._options)

    async def _connect(self, stack: AsyncExitStack) -> None:
        if self._client.is_closed():
            self._client = self._make()
        stack.push_async_callback(self._client.close)

    def _attempt(self, prompt: Prompt, sampling: SamplingParams) -> Attempt:
        said = converse(prompt, self.chat_template, self.who, begun=self.capabilities.begun)
        system, messages = _system(list(said.messages), self.who)
        begun = said.begun.rstrip()  # the API refuses space at the end; the answer then begins with it
        if begun:
            messages.append({"role": "assistant", "content": begun})
        request: dict[str, Any] = {
            "model": self.model_name,
            "messages": messages,
            "max_tokens": sampling.max_new_tokens,
            "stream": True,
        }
        if system:
            request["system"] = system
        if sampling.stop:
            request["stop_sequences"] = list(sampling.stop)
        if sampling.json_schema is not None:
            schema = msgspec.json.decode(sampling.json_schema)
            request["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        # The SDK no longer names these, for not every model takes them; those that do read them from the body.
        request["extra_body"] = {
            field: getattr(sampling, field)
            for field, default in (("temperature", 1.0), ("top_p", 1.0), ("top_k", -1))
            if getattr(sampling, field) != default
        }
        return lambda: self._stream(request, said.begun[len(begun) :])

    async def _stream(self, request: dict[str, Any], space: str) -> AsyncGenerator[Delta, None]:
        """Give the text as it comes, without the space that the program has written already."""
        ending, answered = _Ending(), False
        try:
            async with await self._client.messages.create(**request) as stream:
                answered = True
                async for event in stream:
                    ending.see(event)
                    text = event.delta.text if _is_text(event) else ""
                    while space and text:
                        text, space = (text[1:], space[1:]) if text[0] == space[0] else (text, "")
                    if text:
                        yield Delta(text=text)
        except Exception as error:
            fault = fault_of(error, self._sdk, self.who, self.timeout_s, answered=answered)
            raise fault or error from error
        if ending.whole:
            yield Delta(finish=ending.finish(self.who))


def _system(messages: list[dict[str, Any]], who: str) -> tuple[str, list[dict[str, Any]]]:
    """Part the system messages at the beginning from the rest."""
    count = next((index for index, one in enumerate(messages) if one["role"] != "system"), len(messages))
    rest = messages[count:]
    if any(message["role"] not in ("user", "assistant") for message in rest):
        stray = next(message["role"] for message in rest if message["role"] not in ("user", "assistant"))
        raise InvalidRequest(
            "messages", f"{who} takes system messages first, then user and assistant, not {stray!r} there"
        )
    told = [{**message, "content": _content(message["content"])} for message in rest]
    return "\n\n".join(message["content"] for message in messages[:count]), told


def _content(content: str | list[dict[str, Any]]) -> Any:
    """Write parts in Anthropic's words."""
    if isinstance(content, str):
        return content
    blocks: list[dict[str, Any]] = []
    for part in content:
        if (url := url_of(part)) is None:
            blocks.append(part)
            continue
        if url.startswith("data:"):
            kind, _, data = url[len("data:") :].partition(";base64,")
            source = {"type": "base64", "media_type": kind, "data": data}
        else:
            source = {"type": "url", "url": url}
        blocks.append({"type": "image", "source": source})
    return blocks


def _is_text(event: Any) -> bool:
    return event.type == "content_block_delta" and event.delta.type == "text_delta"


class _Ending:
    """Gather from a stream's events how it ends."""

    def __init__(self) -> None:
        self.whole = False  # whether the last event was seen
        self._reason: str | None = None
        self._matched: str | None = None
        self._prompt = 0
        self._cached = 0
        self._output = 0

    def see(self, event: Any) -> None:
        if event.type == "message_start":
            usage = event.message.usage
            self._cached = usage.cache_read_input_tokens or 0
            self._prompt = usage.input_tokens + self._cached + (usage.cache_creation_input_tokens or 0)
        elif event.type == "message_delta":
            self._reason = event.delta.stop_reason or self._reason
            self._matched = event.delta.stop_sequence or self._matched
            self._output = event.usage.output_tokens
        elif event.type == "message_stop":
            self.whole = True

    def finish(self, who: str) -> Finish:
        reason = self._reason or "end_turn"
        if reason == "refusal":
            raise Fault(GenerationFailed(f"{who}: the service's safety classifier stopped the answer"))
        return Finish(
            reason="length" if reason in ("max_tokens", "model_context_window_exceeded") else "stop",
            matched=self._matched,
            message="" if reason in ("end_turn", "max_tokens", "stop_sequence") else reason,
            prompt_tokens=self._prompt,
            cached_tokens=self._cached,
            completion_tokens=self._output,
        )
