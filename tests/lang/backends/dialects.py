"""The wire formats of four services, as their servers write them, and the backend that reads each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from callboard import Anthropic, Gemini, OpenAI, Retries, RuntimeEndpoint
from callboard.lang.backends.remote import RemoteBackend

from .service import Act, Service, stream

__all__ = ["CHATTING", "DIALECTS", "Dialect", "service_of"]


class Dialect(NamedTuple):
    """make: a backend for a URL.  piece(text, so_far) is the event of a piece, ending(text, reason) those behind.

    error: an error's body.  broken: an error as an event.  question: the last user message of a request.
    """

    name: str
    make: Callable[..., RemoteBackend]
    opening: Callable[[], list[bytes]]
    piece: Callable[[str, str], bytes]
    ending: Callable[[str, str], list[bytes]]
    error: Callable[[str, str], Any]
    broken: Callable[[str, str], bytes]
    question: Callable[[dict[str, Any]], str]
    pages: dict[str, Any]

    def told(self, *texts: str, reason: str = "stop") -> list[bytes]:
        """Give the events of a whole answer."""
        events, so_far = self.opening(), ""
        for text in texts:
            so_far += text
            events.append(self.piece(text, so_far))
        return [*events, *self.ending(so_far, reason)]

    def begun(self, *texts: str) -> list[bytes]:
        """Give the events of an answer's beginning."""
        return self.told(*texts)[: len(self.opening()) + len(texts)]

    def refusal(self, status: int, message: str, *, kind: str = "invalid_request_error", **headers: str) -> Act:
        body = msgspec.json.encode(self.error(message, kind))
        named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        return Act((body,), status, (("content-type", "application/json"), *named))

    def speak(self, body: dict[str, Any]) -> Act:
        if "sampling_params" in body and not body.get("stream"):  # a prompt to be read, and nothing to be said
            return Act((msgspec.json.encode({"text": "", "meta_info": {"prompt_tokens": 7}}),))
        return stream(*self.told("re: ", self.question(body)))


def service_of(dialect: Dialect, *script: Act) -> Service:
    return Service(dialect.speak, *script, pages=dialect.pages)


def _data(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _last_user(text: str) -> str:
    return text.rpartition("user: ")[2].partition("\n")[0]


_DONE = b"data: [DONE]\n\n"
_FAST = Retries(times=2, first_s=0.0, longest_s=1.0)


# --- /generate -------------------------------------------------------------------------------------------------------


def _native(text: str, finish: Any, tokens: int) -> bytes:
    meta = {"id": "1", "finish_reason": finish, "prompt_tokens": 7, "completion_tokens": tokens, "cached_tokens": 3}
    return _data({"text": text, "output_ids": list(range(tokens)), "meta_info": meta})


NATIVE = Dialect(
    "native",
    lambda url, **options: RuntimeEndpoint(url, "secret", **{"retries": _FAST, **options}),
    list,
    lambda text, so_far: _native(so_far, None, len(so_far)),
    lambda text, reason: [
        _native(text, {"type": reason, "length" if reason == "length" else "matched": None}, len(text)),
        _DONE,
    ],
    lambda message, kind: {"error": {"message": message}},
    lambda message, kind: _data({"error": {"message": message, "code": 503 if kind == "overloaded_error" else 500}}),
    lambda body: _last_user(body["text"]),
    {"/model_info": {"model_path": "m"}, "/server_info": {"version": "1"}},
)


# --- OpenAI's --------------------------------------------------------------------------------------------------------

_USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 3}}


def _chat(choices: Sequence[Any], usage: Any = None) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt"}
    return _data({**head, "choices": choices, "usage": usage})


def _chat_choice(content: str | None, reason: str | None = None) -> list[Any]:
    return [{"index": 0, "delta": {} if content is None else {"content": content}, "finish_reason": reason}]


CHAT = Dialect(
    "openai-chat",
    lambda url, **options: OpenAI("gpt", **{"retries": _FAST, "base_url": f"{url}/v1", "api_key": "secret", **options}),
    lambda: [_chat([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])],
    lambda text, so_far: _chat(_chat_choice(text)),
    lambda text, reason: [_chat(_chat_choice(None, reason)), _chat([], _USAGE), _DONE],
    lambda message, kind: {"error": {"message": message, "type": kind, "param": None, "code": None}},
    lambda message, kind: _data({"error": {"message": message, "type": kind, "code": None}}),
    lambda body: body["messages"][-1]["content"],
    {},
)


def _completion(choices: Sequence[Any], usage: Any = None) -> bytes:
    head = {"id": "c", "object": "text_completion", "created": 1, "model": "gpt-instruct"}
    return _data({**head, "choices": choices, "usage": usage})


def _completion_choice(text: str, reason: str | None = None) -> list[Any]:
    return [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]


COMPLETION = Dialect(
    "openai-completion",
    lambda url, **options: OpenAI(
        "gpt-instruct", **{"retries": _FAST, "base_url": f"{url}/v1", "api_key": "secret", **options}
    ),
    list,
    lambda text, so_far: _completion(_completion_choice(text)),
    lambda text, reason: [_completion(_completion_choice("", reason)), _completion([], _USAGE), _DONE],
    CHAT.error,
    CHAT.broken,
    lambda body: _last_user(body["prompt"]),
    {},
)


# --- Anthropic's -----------------------------------------------------------------------------------------------------


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **fields})


def _anthropic_opening() -> list[bytes]:
    usage = {"input_tokens": 4, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "claude", "usage": usage}
    return [
        _event("message_start", message={**message, "stop_reason": None, "stop_sequence": None}),
        _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        _event("ping"),
    ]


def _anthropic_ending(text: str, reason: str) -> list[bytes]:
    named = {"stop": "end_turn", "length": "max_tokens"}.get(reason, reason)
    return [
        _event("content_block_stop", index=0),
        _event("message_delta", delta={"stop_reason": named, "stop_sequence": None}, usage={"output_tokens": 2}),
        _event("message_stop"),
    ]


ANTHROPIC = Dialect(
    "anthropic",
    lambda url, **options: Anthropic("claude", **{"retries": _FAST, "base_url": url, "api_key": "secret", **options}),
    _anthropic_opening,
    lambda text, so_far: _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text}),
    _anthropic_ending,
    lambda message, kind: {"type": "error", "error": {"type": kind, "message": message}},
    lambda message, kind: _event("error", error={"type": kind, "message": message}),
    lambda body: body["messages"][-1]["content"],
    {},
)


# --- Google's --------------------------------------------------------------------------------------------------------


def _google(text: str | None, reason: str | None = None) -> bytes:
    content = {"role": "model", "parts": [{"text": "hm", "thought": True}, *([{"text": text}] if text else [])]}
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 2, "cachedContentTokenCount": 3}
    ending = {} if reason is None else {"finishReason": reason}
    return _data({"candidates": [{"content": content, "index": 0, **ending}], "usageMetadata": usage})


GOOGLE = Dialect(
    "gemini",
    lambda url, **options: Gemini("gemini", **{"retries": _FAST, "base_url": url, "api_key": "secret", **options}),
    list,
    lambda text, so_far: _google(text),
    lambda text, reason: [_google(None, {"stop": "STOP", "length": "MAX_TOKENS"}.get(reason, reason))],
    lambda message, kind: {"error": {"message": message, "status": kind.upper()}},
    lambda message, kind: _data({"error": {"code": 503 if kind == "overloaded_error" else 500, "message": message}}),
    lambda body: body["contents"][-1]["parts"][0]["text"],
    {},
)

DIALECTS = (NATIVE, CHAT, COMPLETION, ANTHROPIC, GOOGLE)
CHATTING = (CHAT, ANTHROPIC, GOOGLE)
