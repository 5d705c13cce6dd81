"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import InvalidRequest
from ..messages import Delta, Finish, TokenLogprob
from .chunks import Chunks
from .constraints import cut_mark
from .exchange import Exchange
from .fields import Rules, listed, parse
from .generation import News, Work, complete, stream
from .openai_fields import IGNORED, PRIORITY, OpenAIFields, expect_choices, expect_model, sampling_of, usage
from .room import Room
from .salts import salt_of

__all__ = ["CompletionRequest", "completions"]


class CompletionRequest(OpenAIFields, kw_only=True):
    """The body of the route.  logprobs: how many of the likeliest tokens to give beside each token.  heal is ours."""

    prompt: Any
    max_tokens: int = 16
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None
    heal: bool = False


_RULES = Rules(
    ignored=IGNORED,
    unsupported={
        "priority": PRIORITY,
        "suffix": "the model writes behind a prompt, not into a gap",
    },
)


async def completions(room: Room, exchange: Exchange, body: bytes) -> None:
    """Continue one prompt or several, each n times."""
    request = parse(body, CompletionRequest, _RULES)
    expect_model(room.service, request.model)
    if request.best_of not in (None, request.n):
        raise InvalidRequest("best_of", f"{request.best_of} is not n, {request.n}; choices are not ranked here")
    if request.heal and request.logprobs is not None:
        raise InvalidRequest("logprobs", "with heal, tokens begin inside the prompt; /generate tells how far")
    prompts, _ = listed(request.prompt, "prompt", room.service.limits, room.options.sequences)
    expect_choices(request.n, len(prompts), room.options)
    sampling = sampling_of(
        room.service, request, max_tokens=request.max_tokens, max_name="max_tokens", logprobs=request.logprobs,
        logprobs_name="logprobs", echo=request.echo, heal=request.heal,
    )  # fmt: skip
    reply = _Reply(room, exchange, request, len(prompts) * request.n)
    tokens = [await room.service.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    if request.echo:
        reply.prompt_tokens = [memoryview(one).cast("i").tolist() for one in tokens]
        reply.prompts = [
            prompt if isinstance(prompt, str) else await room.service.decode(ids)
            for prompt, ids in zip(prompts, reply.prompt_tokens, strict=True)
        ]
    whose = reply.id, exchange.tenant, salt_of(request.cache_salt, request.extra_key)
    works = [Work(prompt, one, *whose) for prompt in tokens for one in sampling.spread(request.n)]
    if request.stream:
        await stream(room.service, works, reply.news, room.pace)
        await reply.end()
        return
    done = await complete(room.service, works)
    choices = [
        await reply.choice(index, one.text, one.logprobs, one.input_logprobs, one.finish, first=True)
        for index, one in enumerate(done)
    ]
    counts = [[one.finish for one in done[start : start + request.n]] for start in range(0, len(done), request.n)]
    await exchange.reply_json({**reply.head(), "choices": choices, "usage": usage(counts)})


class _Choice(msgspec.Struct):
    """One choice as its client reads it."""

    index: int
    text: str
    logprobs: dict[str, list[Any]] | None
    finish_reason: str | None
    grammar_complete: bool | msgspec.UnsetType = msgspec.UNSET


class _Reply:
    """One completion on its way out, whole or as events."""

    def __init__(self, room: Room, exchange: Exchange, request: CompletionRequest, choices: int) -> None:
        self.id = request.rid or f"cmpl-{room.new_id()}"
        self.prompts: list[str] = []  # their texts, and their tokens: if they are to be echoed
        self.prompt_tokens: list[list[int]] = []
        self._room = room
        self._exchange = exchange
        self._request = request
        self._choices = choices
        self._usage = request.stream_options is not None and request.stream_options.include_usage
        self._created = int(time.time())
        self._chunks = Chunks(self.head(), usage=self._usage)
        self._last = b""  # the event that ends the last choice: it goes out with what follows it
        self._offsets: dict[int, int] = {}  # characters already given of each choice, for text_offset
        self._begun: set[int] = set()
        self._finishes: dict[int, Finish] = {}

    def head(self) -> dict[str, Any]:
        model = self._room.service.name
        return {"id": self.id, "object": "text_completion", "created": self._created, "model": model}

    async def choice(
        self,
        index: int,
        text: str,
        logprobs: Sequence[TokenLogprob],
        input_logprobs: Sequence[TokenLogprob],
        finish: Finish | None,
        *,
        first: bool,
    ) -> _Choice:
        if self._request.echo and first:
            text = self.prompts[index // self._request.n] + text
        choice = _Choice(index, text, None, None if finish is None else finish.reason, **cut_mark(finish))
        if self._request.logprobs is not None:
            given = _Logprobs(self._room, self._offsets.get(index, 0), self._request.logprobs)
            if self._request.echo and first:
                await given.prompt(self.prompt_tokens[index // self._request.n], input_logprobs)
            await given.output(logprobs)
            self._offsets[index] = given.offset
            choice.logprobs = given.form
        return choice

    async def news(self, news: News) -> None:
        data = b"".join([await self._event(index, delta) for index, delta in news])
        if len(self._finishes) == self._choices:
            self._last = data
        elif data:
            await self._exchange.write(data)

    async def _event(self, index: int, delta: Delta) -> bytes:
        first = index not in self._begun
        if not delta.text and not delta.logprobs and delta.finish is None and not (first and self._request.echo):
            return b""
        self._begun.add(index)
        if delta.finish is not None:
            self._finishes[index] = delta.finish
        return self._chunks.choice(
            await self.choice(index, delta.text, delta.logprobs, delta.input_logprobs, delta.finish, first=first)
        )

    async def end(self) -> None:
        count = self._request.n
        finishes = [self._finishes[index] for index in sorted(self._finishes)]
        groups = [finishes[start : start + count] for start in range(0, len(finishes), count)]
        counts = self._chunks.usage(usage(groups)) if self._usage else b""
        await self._exchange.end(self._last + counts + b"data: [DONE]\n\n")


class _Logprobs:
    """OpenAI's older form of log-probabilities: parallel lists.  offset counts characters from the choice's start."""

    def __init__(self, room: Room, offset: int, top: int) -> None:
        self.form: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        self.offset = offset
        self._texts = room.token_text
        self._top = top

    async def prompt(self, tokens: list[int], logprobs: Sequence[TokenLogprob]) -> None:
        """Add the prompt; its first tokens, behind nothing, have no log-probability."""
        await self._texts.learn_ids(tokens)
        for token in tokens[: len(tokens) - len(logprobs)]:
            self._add(token, None, None)
        await self.output(logprobs)

    async def output(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add tokens with their log-probabilities."""
        await self._texts.learn(logprobs)
        for one in logprobs:
            top = {self._texts.of(token): logprob for token, logprob in one.top} if self._top else None
            self._add(one.token, one.logprob, top)

    def _add(self, token: int, logprob: float | None, top: dict[str, float] | None) -> None:
        text = self._texts.of(token)
        for field, value in (("tokens", text), ("token_logprobs", logprob), ("top_logprobs", top)):
            self.form[field].append(value)
        self.form["text_offset"].append(self.offset)
        self.offset += len(text)
