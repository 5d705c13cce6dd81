"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any, cast

import msgspec

from ..errors import InvalidRequest
from ..messages import Delta, Finish, TokenLogprob
from ..reasoning import Markers
from .chunks import Chunks
from .constraints import cut_mark
from .exchange import Exchange
from .fields import Rules, convert, expect_fit, parse
from .generation import News, Work, complete, stream
from .openai_fields import IGNORED, PRIORITY, OpenAIFields, expect_choices, expect_model, sampling_of, usage
from .reasoning import Parting, behind_reasoning, opened_by, served_markers
from .room import Room
from .salts import salt_of
from .token_text import TokenText

__all__ = ["ChatRequest", "chat"]

_MESSAGES = 4096  # of one request
_ROLES = ("system", "developer", "user", "assistant")


class TextPart(msgspec.Struct):
    """A piece of a message's content.  Only text is taken: `type` is checked where the parts are joined."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct):
    """One message."""

    role: str
    content: str | list[TextPart]


class ChatRequest(OpenAIFields, kw_only=True):
    """The body of the route.  separate_reasoning, stream_reasoning: SGLang's; the first is true where a parser is."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool = True


_RULES = Rules(
    ignored=IGNORED,
    unsupported={
        "tools": "tools are not supported yet; constrain the output with response_format {'type': 'regex', ...}",
        "functions": "functions are not supported; nor are tools yet",
        "tool_choice": "tools are not supported yet",
        "function_call": "functions are not supported",
        "modalities": "this server answers with text alone; leave it out",
        "audio": "this server answers with text alone",
        "prediction": "predicted outputs are not supported",
        "reasoning_effort": "the served model has no levels of reasoning",
        "verbosity": "the served model has no levels of verbosity",
        "web_search_options": "this server searches nothing",
        "chat_template": "a chat template never comes with a request",
        "chat_template_kwargs": "template arguments are not supported",
        "priority": PRIORITY,
        "heal": "a conversation ends with its template's own text; /v1/completions and /generate take it",
    },
    harmless={"tool_choice": ("none", "auto"), "function_call": ("none", "auto"), "modalities": (["text"],)},
)
_MESSAGE_RULES = Rules(
    # they come back in what a client kept of an earlier answer
    ignored=frozenset({"annotations", "reasoning_content", "refusal"}),
    unsupported={
        "name": "the model does not tell speakers of one role apart",
        "tool_calls": "tools are not supported yet",
        "tool_call_id": "tools are not supported yet",
        "function_call": "functions are not supported",
        "audio": "the model reads text alone",
    },
)


async def chat(room: Room, exchange: Exchange, body: bytes) -> None:
    """Answer a conversation with its next message."""
    request = parse(body, ChatRequest, _RULES)
    expect_model(room.service, request.model)
    expect_choices(request.n, 1, room.options)
    salt = salt_of(request.cache_salt, request.extra_key)
    name, most = _max_tokens(request, room.service.limits.context_length)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs", "it needs logprobs to be true")
    wanted = (request.top_logprobs or 0) if request.logprobs else None
    sampling = sampling_of(
        room.service, request, max_tokens=most, max_name=name, logprobs=wanted, logprobs_name="top_logprobs"
    )
    text = room.service.chat_template.render(_messages(request.messages))
    expect_fit(text, "messages", room.service.limits)
    prompt = await room.service.encode(text)
    markers = served_markers(room)
    if markers is not None:
        sampling = await behind_reasoning(room, sampling, prompt, text)
    partings = _partings(request, None if markers is None else opened_by(markers, text))
    reply = _Reply(room, exchange, request, partings)
    works = [Work(prompt, one, reply.id, exchange.tenant, salt) for one in sampling.spread(request.n)]
    if request.stream:
        await stream(room.service, works, reply.news, room.pace)
        await reply.end()
        return
    done = await complete(room.service, works)
    await exchange.reply_json(
        {
            **reply.head("chat.completion"),
            "choices": [
                {
                    "index": index,
                    "message": _message(parting, one.text),
                    "logprobs": await _logprobs(room.token_text, one.logprobs) if request.logprobs else None,
                    "finish_reason": one.finish.reason,
                    **cut_mark(one.finish),
                }
                for index, (one, parting) in enumerate(zip(done, partings, strict=True))
            ],
            "usage": usage([[one.finish for one in done]]),
        }
    )


class _Part(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to its message."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


_NOTHING = _Part()


class _Choice(msgspec.Struct):
    """One choice's news as its client reads it."""

    index: int
    delta: _Part
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    grammar_complete: bool | msgspec.UnsetType = msgspec.UNSET


class _Reply:
    """One chat completion on its way out as events."""

    def __init__(self, room: Room, exchange: Exchange, request: ChatRequest, partings: list[Parting]) -> None:
        self.id = request.rid or f"chatcmpl-{room.new_id()}"
        self._room = room
        self._exchange = exchange
        self._partings = partings
        self._choices = request.n
        self._logprobs = request.logprobs
        self._usage = request.stream_options is not None and request.stream_options.include_usage
        self._created = int(time.time())
        self._chunks = Chunks(self.head("chat.completion.chunk"), usage=self._usage)
        self._last = b""  # the event that ends the last choice: it goes out with what follows it
        self._begun: set[int] = set()
        self._finishes: dict[int, Finish] = {}

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._room.service.name}

    async def news(self, news: News) -> None:
        data = b"".join([await self._event(index, delta) for index, delta in news])
        if len(self._finishes) == self._choices:
            self._last = data
        elif data:
            await self._exchange.write(data)

    async def _event(self, index: int, delta: Delta) -> bytes:
        thought, answer = self._partings[index].feed(delta.text, last=delta.finish is not None)
        part = _Part(content=answer or None, reasoning_content=thought or None)
        if index not in self._begun:
            self._begun.add(index)
            part.role, part.content = "assistant", answer
        elif part == _NOTHING and not delta.logprobs and delta.finish is None:
            return b""
        if delta.finish is not None:
            self._finishes[index] = delta.finish
        logprobs = await _logprobs(self._room.token_text, delta.logprobs) if self._logprobs else None
        reason = None if delta.finish is None else delta.finish.reason
        return self._chunks.choice(_Choice(index, part, logprobs, reason, **cut_mark(delta.finish)))

    async def end(self) -> None:
        counts = self._chunks.usage(usage([list(self._finishes.values())])) if self._usage else b""
        await self._exchange.end(self._last + counts + b"data: [DONE]\n\n")


def _partings(request: ChatRequest, markers: Markers | None) -> list[Parting]:
    """Give what parts each choice's reasoning from its answer, if anybody wants that."""
    if request.separate_reasoning and markers is None:
        raise InvalidRequest("separate_reasoning", "this server knows no reasoning: start it with --reasoning-parser")
    told = None if request.separate_reasoning is False else markers
    return [Parting(told, streams=request.stream_reasoning) for _ in range(request.n)]


def _message(parting: Parting, text: str) -> dict[str, Any]:
    thought, answer = parting.feed(text, last=True)
    told: dict[str, Any] = {"role": "assistant", "content": answer, "refusal": None}
    return {**told, "reasoning_content": thought or None} if parting.parts else told


def _max_tokens(request: ChatRequest, context_length: int) -> tuple[str, int]:
    """Give the limit and the name it was given by; without one, the context is the limit."""
    if request.max_completion_tokens is not None:
        if request.max_tokens not in (None, request.max_completion_tokens):
            raise InvalidRequest("max_tokens", "it is given as max_completion_tokens too, and the two differ")
        return "max_completion_tokens", request.max_completion_tokens
    return "max_tokens", context_length if request.max_tokens is None else request.max_tokens


def _messages(given: list[dict[str, Any]]) -> list[dict[str, str]]:
    if not given:
        raise InvalidRequest("messages", "at least one message is needed")
    if len(given) > _MESSAGES:
        raise InvalidRequest("messages", f"{len(given)} given, at most {_MESSAGES} allowed")
    # `developer` is what newer clients call the system's voice; no open model's template knows the word.
    roles = {"developer": "system"}
    messages: list[dict[str, str]] = []
    for index, item in enumerate(given):
        message = convert(item, ChatMessage, _MESSAGE_RULES, at=f"messages[{index}]")
        if message.role not in _ROLES:
            told = f"{message.role!r:.80} is none of {', '.join(_ROLES)}"
            raise InvalidRequest(f"messages[{index}].role", told)
        role = roles.get(message.role, message.role)
        messages.append({"role": role, "content": _content(message.content, index)})
    return messages


def _content(content: str | list[TextPart], index: int) -> str:
    if isinstance(content, str):
        return content
    for place, part in enumerate(content):
        if part.type != "text":
            raise InvalidRequest(
                f"messages[{index}].content[{place}]",
                f"type {part.type!r:.80} is not supported; the model reads text alone",
            )
    return "".join(part.text for part in content)


async def _logprobs(texts: TokenText, logprobs: Any) -> dict[str, Any]:
    logprobs = cast("tuple[TokenLogprob, ...]", logprobs)
    await texts.learn(logprobs)

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": texts.of(token), "logprob": logprob, "bytes": texts.bytes_of(token)}

    return {
        "content": [
            {**entry(one.token, one.logprob), "top_logprobs": [entry(token, value) for token, value in one.top]}
            for one in logprobs
        ],
        "refusal": None,
    }
