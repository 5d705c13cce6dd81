"""OpenAI's API, and whatever speaks it: chat models through messages, completion models through text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal, cast

import msgspec

from ...actors.backend import Prompt, Scores
from ...actors.chat_template import ChatTemplate
from ...actors.errors import InvalidRequest
from ...actors.messages import Delta
from ...actors.sampling import SamplingParams
from .capabilities import Capabilities
from .conversation import converse
from .fault import Fault, Retries
from .openai_words import SETTINGS, ChunkReader, settings
from .remote import Attempt, RemoteBackend
from .scoring import ReadToken, score_read
from .sdk import fault_of, sdk, verify_concurrency

__all__ = ["OpenAI"]

_CHAT = Capabilities(
    sampling=SETTINGS | {"json_schema"},
    begun=False,
    images=True,
    image_urls=True,
    overruns="message",
    stops=4,
    temperature=2.0,
)
_COMPLETION = Capabilities(sampling=SETTINGS, select=True, outside=True, overruns="text", stops=4, temperature=2.0)
_COMPLETION_MODELS = ("babbage-002", "davinci-002")

TokenLimit = Literal["max_tokens", "max_completion_tokens"]


class OpenAI(RemoteBackend):
    """Run programs on a model of OpenAI's, of Azure's, or of a server that speaks like them (`base_url=`).

    is_chat_model: None tells by the name (`...-instruct` and the base models complete text).  token_limit: what the
    field for the output's length is called; None is `max_completion_tokens` for OpenAI and Azure, and `max_tokens`,
    which every server knows, if a base_url is given.  client_options go to the SDK's client: api_key, base_url,
    organization, azure_endpoint, api_version, http_client and so on.  The SDK itself never retries: `retries` says.
    chat_template writes what `text()` shows, and what a completion model reads.
    """

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | None = None,
        is_azure: bool = False,
        *,
        token_limit: TokenLimit | None = None,
        timeout_s: float = 300.0,
        retries: Retries | None = None,
        concurrency: int = 256,
        **client_options: Any,
    ) -> None:
        if is_chat_model is None:
            is_chat_model = not (model_name.endswith("-instruct") or model_name in _COMPLETION_MODELS)
        elsewhere = "base_url" in client_options and not is_azure
        capabilities = _CHAT if is_chat_model else _COMPLETION
        if elsewhere:  # whose bounds nobody knows; it will speak for itself
            capabilities = msgspec.structs.replace(capabilities, stops=None, temperature=None)
        super().__init__(
            capabilities=capabilities, chat_template=chat_template or ChatTemplate(), timeout_s=timeout_s,
            retries=retries, concurrency=concurrency,
        )  # fmt: skip
        self.model_name = model_name
        self.is_chat_model = is_chat_model
        self.is_azure = is_azure
        self._token_limit = token_limit or ("max_tokens" if elsewhere else "max_completion_tokens")
        self._options = {**client_options, "timeout": timeout_s, "max_retries": 0}
        self._sdk = sdk("openai")
        verify_concurrency(self._sdk, concurrency, client_options)
        self._client: Any = self._make()  # now, so that a missing key is told here

    @property
    def who(self) -> str:
        kind = "chat" if self.is_chat_model else "completion"
        return f"{'Azure ' if self.is_azure else ''}OpenAI {kind} model {self.model_name}"

    def _make(self) -> Any:
        return (self._sdk.AsyncAzureOpenAI if self.is_azure else self._sdk.AsyncOpenAI)(**self._options)

    async def _connect(self, stack: AsyncExitStack) -> None:
        if self._client.is_closed():
            self._client = self._make()
        stack.push_async_callback(self._client.close)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _attempt(self, prompt: Prompt, sampling: SamplingParams) -> Attempt:
        request: dict[str, Any] = {
            "model": self.model_name,
            "stream": True,
            "stream_options": {"include_usage": True},
            **settings(sampling),
        }
        if self.is_chat_model:
            said = converse(prompt, self.chat_template, self.who, begun=self.capabilities.begun)
            request |= {"messages": list(said.messages), self._token_limit: sampling.max_new_tokens}
        else:
            request |= {"prompt": prompt.text, "max_tokens": sampling.max_new_tokens}
        return lambda: self._stream(request)

    async def _stream(self, request: dict[str, Any]) -> AsyncGenerator[Delta, None]:
        create = self._client.chat.completions.create if self.is_chat_model else self._client.completions.create
        reader, answered = ChunkReader(self.who), False
        try:
            async with await create(**request) as stream:
                answered = True
                async for chunk in stream:
                    if text := reader.text(chunk):
                        yield Delta(text=text)
        except Exception as error:
            raise self._fault(error, answered=answered) from error
        if (finish := reader.finish()) is not None:
            yield Delta(finish=finish)

    def _fault(self, error: Exception, *, answered: bool) -> Exception:
        if isinstance(error, Fault):
            return error
        return fault_of(error, self._sdk, self.who, self.timeout_s, answered=answered) or error

    # --- choices -----------------------------------------------------------------------------------------------------

    async def _score(
        self,
        prompt: Prompt,
        continuations: Sequence[str],
        *,
        unconditional: bool,  # noqa: ARG002
    ) -> Scores:
        """Score by echo and logprobs, which completion servers have and OpenAI's own models mostly refuse.

        The service tells its tokens' texts and not their ids: those of the scores are -1.
        """
        text = prompt.text
        texts = [*([text] if text else []), *(text + continuation for continuation in continuations)]

        async def ask() -> Any:
            try:
                return await self._client.completions.create(
                    model=self.model_name, prompt=texts, max_tokens=0, echo=True, logprobs=1, temperature=0
                )
            except Exception as error:
                raise self._fault(error, answered=False) from error

        reply = await self._call(ask)
        choices = sorted(cast("list[Any]", reply.choices), key=lambda choice: choice.index)
        if len(choices) != len(texts) or any(not choice.logprobs or not choice.logprobs.tokens for choice in choices):
            raise InvalidRequest(
                "choices",
                f"{self.who} gives no log-probabilities of its prompt to choose by; use gen and read its text",
            )
        read = [_read(choice.logprobs) for choice in choices]
        alone, read = (read[0], read[1:]) if text else ([], read)
        scores = score_read(continuations, alone, read, first=0)
        assert scores is not None, "everything from position 0 on is there"
        return scores


def _read(logprobs: Any) -> list[ReadToken]:
    return [
        ReadToken(identity=text, token=-1, logprob=logprob)
        for text, logprob in zip(logprobs.tokens, logprobs.token_logprobs, strict=True)
    ]
