"""Whatever LiteLLM speaks to, through it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import anyio

from ...actors.backend import Prompt
from ...actors.chat_template import ChatTemplate
from ...actors.messages import Delta
from ...actors.sampling import SamplingParams
from .capabilities import Capabilities
from .conversation import converse
from .fault import Fault, Retries, silent
from .openai_words import SETTINGS, ChunkReader, settings
from .remote import Attempt, RemoteBackend
from .sdk import fault_of, refusal_of, sdk

__all__ = ["LiteLLM"]

_ABLE = Capabilities(sampling=SETTINGS | {"json_schema"}, begun=False, images=True, image_urls=True, overruns="message")


class LiteLLM(RemoteBackend):
    """Run programs on a chat model that LiteLLM reaches, by LiteLLM's name for it ("groq/llama-3.3-70b-versatile").

    What a provider cannot do, LiteLLM refuses when it is asked, in its own words.  options go to each call of
    `litellm.acompletion`.  timeout is timeout_s by SGLang's name, max_retries is Retries(times=...).
    """

    def __init__(
        self,
        model_name: str,
        chat_template: ChatTemplate | None = None,
        api_key: str | None = None,
        organization: str | None = None,
        base_url: str | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        default_headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 300.0,
        retries: Retries | None = None,
        concurrency: int = 256,
        **options: Any,
    ) -> None:
        if max_retries is not None and retries is None:
            retries = Retries(times=max_retries)
        super().__init__(
            capabilities=_ABLE, chat_template=chat_template or ChatTemplate(),
            timeout_s=timeout_s if timeout is None else timeout, retries=retries, concurrency=concurrency,
        )  # fmt: skip
        self.model_name = model_name
        given = {
            "api_key": api_key,
            "organization": organization,
            "base_url": base_url,
            "extra_headers": None if default_headers is None else dict(default_headers),  # as a call takes them
        }
        self._options = {**{name: value for name, value in given.items() if value is not None}, **options}
        self._litellm: Any = sdk("litellm", "litellm")
        self._sdk = sdk("openai", "litellm")  # LiteLLM's errors are subclasses of its

    @property
    def who(self) -> str:
        return f"LiteLLM model {self.model_name}"

    async def _connect(self, stack: AsyncExitStack) -> None:
        """Do nothing: LiteLLM keeps clients of its own."""

    def _attempt(self, prompt: Prompt, sampling: SamplingParams) -> Attempt:
        said = converse(prompt, self.chat_template, self.who, begun=self.capabilities.begun)
        request: dict[str, Any] = {
            **self._options,
            **settings(sampling),
            "model": self.model_name,
            "messages": list(said.messages),
            "max_tokens": sampling.max_new_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "timeout": 2 * self.timeout_s,  # its own reads as many things; silence is measured here
            "max_retries": 0,
            "num_retries": 0,
        }
        return lambda: self._stream(request)

    async def _stream(self, request: dict[str, Any]) -> AsyncGenerator[Delta, None]:
        reader, stream = ChunkReader(self.who), None
        try:
            with anyio.fail_after(self.timeout_s):
                stream = await self._litellm.acompletion(**request)
            chunks = aiter(stream)
            while True:
                with anyio.fail_after(self.timeout_s):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                if text := reader.text(chunk):
                    yield Delta(text=text)
        except TimeoutError as error:
            raise silent(self.who, self.timeout_s) from error
        except Exception as error:
            if isinstance(error, Fault):
                raise
            raise self._fault(error, answered=stream is not None) or error from error
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        if (finish := reader.finish()) is not None:
            yield Delta(finish=finish)

    def _fault(self, error: Exception, *, answered: bool) -> Fault | None:
        """Say what LiteLLM's exception means; whether the service has answered shows in the headers it keeps."""
        told = getattr(error, "original_exception", None) or error  # what broke a stream
        headers = getattr(told, "litellm_response_headers", None)
        if headers is not None:
            return refusal_of(told, self.who, headers)
        return fault_of(told, self._sdk, self.who, self.timeout_s, answered=answered)
