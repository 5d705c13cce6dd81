"""A server that speaks /generate: callboard's own, or SGLang's."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from ssl import SSLContext
from typing import Any, cast

import anyio
import msgspec

from ...actors.backend import Prompt, Scores
from ...actors.chat_template import ChatTemplate
from ...actors.errors import GenerationFailed, InvalidRequest
from ...actors.messages import Delta
from ...actors.reasoning import MODEL_TYPES, Markers
from ...actors.sampling import SamplingParams
from .capabilities import EVERYTHING, Capabilities
from .endpoint_names import EndpointNames
from .fault import Retries
from .native import NativeReply, native_request
from .program_session import ProgramSession
from .remote import Attempt
from .scoring import ReadToken, score_read
from .templates import template_named

__all__ = ["RuntimeEndpoint"]

_LOG = logging.getLogger("callboard.backends")
_RETRYABLE = frozenset({429, 502, 503, 504, 529})
_MARGIN = 8  # tokens before the prompt's end from which choices are first looked at
_BATCH = 64  # choices a request
_LISTS = 4096  # tokens whose texts are asked for in a request
_ABLE = Capabilities(
    sampling=EVERYTHING, select=True, unconditional=True, outside=True, prefill=True, images=True, image_urls=True,
    least_tokens=0,
)  # fmt: skip


class RuntimeEndpoint(EndpointNames):
    """Run programs on a callboard or an SGLang server at `base_url`.

    verify: a PEM file of certificates to trust, or an SSLContext.  The chat template is `chat_template`, or the one
    called `chat_template_name`, or what the server tells of its own; a server that tells none gets roles written
    plainly.  Entering it asks the server for its model: GenerationFailed if it cannot be reached.  `heal`, and
    constraints that bind behind reasoning, are among its capabilities from then on, if the server tells of them.  So
    does a callboard server of programs: it hears which requests are of one, and when that is over, and keeps its KV for
    it as for programs of its own.
    """

    knows_texts = True

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | SSLContext | None = None,
        chat_template_name: str | None = None,
        *,
        chat_template: ChatTemplate | None = None,
        timeout_s: float = 300.0,
        retries: Retries | None = None,
        concurrency: int = 512,
    ) -> None:
        if chat_template is None and chat_template_name is not None:
            chat_template = template_named(chat_template_name)
        super().__init__(
            base_url,
            headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
            retryable=_RETRYABLE,
            certificates=verify,
            capabilities=_ABLE,
            chat_template=chat_template or ChatTemplate(),
            timeout_s=timeout_s,
            retries=retries,
            concurrency=concurrency,
        )
        self._template_given = chat_template is not None
        self._incremental = False
        self._markers: Markers | None = None  # of the reasoning that the server tells from answers
        self._session: ProgramSession | None = None  # with a server that knows of programs
        self.model_info: dict[str, Any] = {}

    @property
    def who(self) -> str:
        return f"the server at {self.base_url}"

    async def _connect(self, stack: AsyncExitStack) -> None:
        await super()._connect(stack)
        self.model_info = await self._either("/model_info", "/get_model_info")
        if not self._template_given:
            self.chat_template = self._told_template()
        try:
            server = await self._either("/server_info", "/get_server_info")
        except (GenerationFailed, InvalidRequest):  # not every key may ask for it; what it tells is a nicety
            server = {}
        self._learn_abilities(server)
        self._incremental = bool(server.get("incremental_streaming_output") or server.get("stream_output"))
        if self.model_info.get("programs") is True:
            await self._open_session(stack)

    async def _open_session(self, stack: AsyncExitStack) -> None:
        assert self._http is not None, "it is connected"
        self._session = session = ProgramSession(self._http, self.who)
        stack.callback(setattr, self, "_session", None)
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        await group.start(session.run)

    def _learn_abilities(self, server: Mapping[str, Any]) -> None:
        """Take up what not every server can; `server` is what /server_info tells."""
        parser = server.get("reasoning_parser")
        self._markers = MODEL_TYPES.get(parser.lower()) if isinstance(parser, str) else None
        self.binds_answers = self._markers is not None
        more = {"reasoning"} if self.binds_answers else set[str]()
        if self.model_info.get("token_healing") is True:
            more.add("heal")
        able = EVERYTHING | more
        if server.get("enable_deterministic_inference") is False:  # an SGLang server that takes a seed and forgets it
            able -= {"seed"}
        self.capabilities = msgspec.structs.replace(_ABLE, sampling=able)

    async def _either(self, path: str, older: str) -> dict[str, Any]:
        """Ask one route, or the one an older server has in its place."""
        try:
            return await self._call(lambda: self._json("GET", path))
        except InvalidRequest:
            return await self._call(lambda: self._json("GET", older))

    def _told_template(self) -> ChatTemplate:
        source = self.model_info.get("chat_template")
        if isinstance(source, str) and source:
            special = self.model_info.get("special_tokens")
            return ChatTemplate(source, cast("Mapping[str, str]", special) if isinstance(special, dict) else None)
        _LOG.warning("%s tells no chat template: roles are written plainly; give chat_template_name", self.who)
        return ChatTemplate()

    # --- as a backend ------------------------------------------------------------------------------------------------

    def _attempt(self, prompt: Prompt, sampling: SamplingParams) -> Attempt:
        self._verify_markers(sampling.reasoning)
        body = {**native_request(prompt.text, sampling), **self._shown(prompt), **self._named(prompt), "stream": True}

        async def attempt() -> AsyncGenerator[Delta, None]:
            reply = NativeReply(self.who, sampling, incremental=self._incremental)
            async with aclosing(self._events("/generate", body)) as news:
                async for event in news:
                    delta = reply.add(event)
                    if delta != _NOTHING:
                        yield delta

        return attempt

    def _verify_markers(self, asked: Markers | None) -> None:
        told = self._markers
        if asked is not None and told is not None and (asked.begin, asked.end) != (told.begin, told.end):
            raise InvalidRequest(
                "model_type", f"its reasoning ends with {asked.end!r}, and what {self.who} parts ends with {told.end!r}"
            )

    def lease(self) -> int:
        return 0 if self._session is None else self._session.lease()

    def release(self, lease: int) -> None:
        if self._session is not None:
            self._session.release(lease)

    def verify_image(self, url: str) -> None:
        if self.model_info.get("has_image_understanding") is False:
            raise InvalidRequest("image", f"{self.who} reads text alone")
        super().verify_image(url)

    def _shown(self, prompt: Prompt) -> dict[str, Any]:
        """Give the images beside the text, in which the template's token stands for each."""
        if not prompt.images:
            return {}
        token = self.chat_template.image_token
        if prompt.text.count(token) != len(prompt.images):
            raise InvalidRequest("image", f"{token!r} stands for an image here; do not say it as text beside one")
        return {"image_data": [url for _, _, url in prompt.images]}

    def _named(self, prompt: Prompt, *, kept: bool = True) -> dict[str, Any]:
        """Say of which program a prompt is, to a server that knows of programs; kept: whether that goes on from it."""
        program = None if self._session is None else self._session.name(prompt, kept=kept)
        return {} if program is None else {"program": program}

    async def score(self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False) -> Scores:
        if prompt.images:
            raise InvalidRequest("choices", f"{self.who} scores choices behind text alone, not behind images; use gen")
        return await super().score(prompt, continuations, unconditional=unconditional)

    async def prefill(self, prompt: Prompt) -> None:
        if prompt.text and not prompt.images:
            await self._prompt_tokens(prompt.text, self._named(prompt))

    async def _score(self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool) -> Scores:
        """Score by few requests: one that fills the cache, and one a batch of continuations.

        Log-probabilities are asked for from a few tokens before the prompt's end; if the continuations already differ
        there, once more from its beginning.  unconditional: then the tokens that were scored are read by themselves.
        """
        text, named = prompt.text, self._named(prompt)
        length = await self._prompt_tokens(text, named) if text else 0
        texts = [*([text] if text else []), *(text + continuation for continuation in continuations)]
        for start in (max(length - _MARGIN, 0), 0):
            first, read = _aligned(await self._read(texts, start, named))
            alone, read = (read[0], read[1:]) if text else ([], read)
            scores = score_read(continuations, alone, read, first=first)
            if scores is not None:
                if unconditional:
                    return await self._with_unconditional(scores, self._named(prompt, kept=False))
                return scores
        raise GenerationFailed(f"{self.who} gives no log-probabilities for the choices")

    async def _with_unconditional(self, scores: Scores, named: Mapping[str, Any]) -> Scores:
        """Add the log-probabilities of the scored tokens without the prompt; the first of each has none, and is 0."""
        longer = [index for index, score in enumerate(scores.scores) if len(score.tokens) > 1]
        replies = await self._read([list(scores.scores[index].tokens) for index in longer], 0, named)
        by_themselves = [(0.0,) * min(len(score.tokens), 1) for score in scores.scores]
        for index, meta in zip(longer, replies, strict=True):
            told = [triple[0] for triple in meta.get("input_token_logprobs") or []][
                1 - len(scores.scores[index].tokens) :
            ]
            if len(told) != len(scores.scores[index].tokens) - 1 or None in told:
                raise GenerationFailed(f"{self.who} gives no log-probabilities for the choices without their prompt")
            by_themselves[index] = (0.0, *told)
        return msgspec.structs.replace(
            scores,
            scores=tuple(
                msgspec.structs.replace(score, unconditional=row)
                for score, row in zip(scores.scores, by_themselves, strict=True)
            ),
        )

    async def _prompt_tokens(self, text: str, named: Mapping[str, Any]) -> int:
        """Let the server read a text, a program's if `named`, so that it is cached; give its length in tokens."""
        body = {**native_request(text, SamplingParams(max_new_tokens=0, temperature=0.0)), **named}
        reply = await self._call(lambda: self._json("POST", "/generate", body))
        return int(_meta(reply, self.who).get("prompt_tokens") or 0)

    async def _read(
        self, prompts: Sequence[str | list[int]], start: int, named: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Give the meta_info of each text, or array of tokens, with log-probabilities from position `start` on."""
        sampling = SamplingParams(max_new_tokens=0, temperature=0.0, return_logprob=True, logprob_start=start)
        read: list[dict[str, Any]] = []
        for place in range(0, len(prompts), _BATCH):
            batch = list(prompts[place : place + _BATCH])
            body = {**native_request(batch, sampling), **named}
            replies = await self._call(partial(self._json, "POST", "/generate", body))
            if not isinstance(replies, list) or len(cast("list[Any]", replies)) != len(batch):
                raise GenerationFailed(f"{self.who} answered a batch of {len(batch)} with something else")
            read += [_meta(reply, self.who) for reply in cast("list[Any]", replies)]
        return read

    async def token_texts(self, tokens: Sequence[int]) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(tokens), _LISTS):
            lists = [[token] for token in tokens[start : start + _LISTS]]
            body = {"tokens": lists, "skip_special_tokens": False}
            reply = await self._call(lambda body=body: self._json("POST", "/detokenize", body))
            told: Any = cast("dict[str, Any]", reply).get("text") if isinstance(reply, dict) else None
            if not isinstance(told, list) or len(cast("list[Any]", told)) != len(lists):
                raise GenerationFailed(f"{self.who} does not tell its tokens' texts")
            texts += [str(text) for text in cast("list[Any]", told)]
        return texts

    # --- about the server --------------------------------------------------------------------------------------------

    async def flush(self) -> bool:
        """Empty the server's prefix cache of what no request holds."""

        async def ask() -> None:
            async with self._response("POST", "/flush_cache", None) as response:
                await response.aread()

        await self._call(ask)
        return True

    async def statistics(self) -> dict[str, Any]:
        """Give what the server tells of itself (/server_info)."""
        return await self._either("/server_info", "/get_server_info")


_NOTHING = Delta()


def _meta(reply: Any, who: str) -> dict[str, Any]:
    meta = cast("dict[str, Any]", reply).get("meta_info") if isinstance(reply, dict) else None
    if not isinstance(meta, dict):
        raise GenerationFailed(f"{who} answered without meta_info")
    return cast("dict[str, Any]", meta)


def _aligned(replies: list[dict[str, Any]]) -> tuple[int, list[list[ReadToken]]]:
    """Give the first position that all replies tell a token of, and their tokens from there on.

    Servers differ in whether the token at the asked position is told, so positions are counted from the end.
    """
    read: list[tuple[int, list[ReadToken]]] = []
    for meta in replies:
        triples: list[Any] = meta.get("input_token_logprobs") or []
        tokens = [ReadToken(identity=triple[1], token=triple[1], logprob=triple[0]) for triple in triples]
        read.append((int(meta["prompt_tokens"]) - len(tokens), tokens))
    first = max(start for start, _ in read)
    return first, [tokens[first - start :] for start, tokens in read]
