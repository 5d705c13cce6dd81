"""The routes that tell or tidy: health, model, figures, tokens, the cache, aborts."""

from __future__ import annotations

from typing import Any, cast

import anyio
import msgspec

from ..errors import InvalidRequest
from .exchange import Exchange
from .fields import Rules, expect_fit, parse, token_ids
from .refusal import Refusal
from .room import Room

__all__ = [
    "abort_request", "detokenize", "flush_cache", "health", "live", "metrics", "model", "model_info", "models",
    "server_info", "tokenize",
]  # fmt: skip

_LISTS = 4096  # of token ids in one /detokenize
_TOKENS = 1 << 20  # in all of them
_PATIENCE_S = 5.0  # what an engine gets to tell its statistics
_PUBLIC = (
    "body_bytes", "choices", "grace_s", "header_bytes", "host", "live_requests", "port", "sequences",
    "streams_per_connection",
)  # fmt: skip


async def health(room: Room, exchange: Exchange, body: bytes) -> None:
    """Say whether requests should be sent here: 200, or 503 with the reason."""
    del body
    state = _state(room)
    await exchange.reply_json(state, 200 if state["live"] and state["ready"] else 503)


async def live(room: Room, exchange: Exchange, body: bytes) -> None:
    """Say whether the process is worth keeping: 200, or 503 if it should be started anew."""
    del body
    state = _state(room)
    await exchange.reply_json(state, 200 if state["live"] else 503)


def _state(room: Room) -> dict[str, Any]:
    state = dict(room.service.health())
    if room.stopping:
        state.update(ready=False, reason="the gateway is stopping")
    return state


async def models(room: Room, exchange: Exchange, body: bytes) -> None:
    """List what is served, in OpenAI's form."""
    del body
    await exchange.reply_json({"object": "list", "data": [_model(room)]})


async def model(room: Room, exchange: Exchange, body: bytes) -> None:
    """Describe one model by its name."""
    del body
    name = exchange.path_params["name"]
    if name != room.service.name:
        raise Refusal(
            404, f"model: {name!r:.200} is not served here; this server has {room.service.name!r}", "not_found_error",
            param="model", code="model_not_found",
        )  # fmt: skip
    await exchange.reply_json(_model(room))


def _model(room: Room) -> dict[str, Any]:
    return {
        "id": room.service.name,
        "object": "model",
        "created": room.began,
        "owned_by": "callboard",
        "max_model_len": room.service.limits.context_length,
    }


async def model_info(room: Room, exchange: Exchange, body: bytes) -> None:
    """Describe the model, in SGLang's words and ours."""
    del body
    info = {str(key): value for key, value in room.service.model_info().items()}
    path = str(info.get("model_path", info.get("path", room.service.name)))
    await exchange.reply_json(
        {"model_path": path, "tokenizer_path": path, "is_generation": True, "programs": True, **info}
    )


async def server_info(room: Room, exchange: Exchange, body: bytes) -> None:
    """Tell versions, limits and figures; only what is listed here, never a key or a file's path."""
    del body
    from importlib.metadata import version

    await exchange.reply_json(
        {
            "version": version("callboard"),
            "served_model_name": room.service.name,
            "context_length": room.service.limits.context_length,
            "tls": room.options.certfile is not None,
            "guarded": room.options.guarded,
            "reasoning_parser": room.options.reasoning_parser,
            "options": {field: getattr(room.options, field) for field in _PUBLIC},
            "statistics": await _statistics(room),
        }
    )


async def metrics(room: Room, exchange: Exchange, body: bytes) -> None:
    """Give the page Prometheus reads."""
    del body
    page = room.metrics.text(await _statistics(room), tenants=exchange.administers)
    await exchange.reply(200, page, ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),))


async def _statistics(room: Room) -> dict[str, Any] | None:
    with anyio.move_on_after(_PATIENCE_S):
        return await room.service.statistics()
    return None


class _Nothing(msgspec.Struct):
    """A body without fields."""


async def flush_cache(room: Room, exchange: Exchange, body: bytes) -> None:
    """Empty the prefix cache of what no request holds."""
    if body:
        parse(body, _Nothing, Rules())
    flushed = await room.service.flush()
    await exchange.reply_json({"success": True, "freed": flushed.freed, "held": flushed.held})


class AbortRequest(msgspec.Struct):
    """The body of /abort_request."""

    rid: str = ""


_ABORT_RULES = Rules(
    unsupported={"abort_all": "only requests that are named can be aborted"}, ignored=frozenset({"abort_message"})
)


async def abort_request(room: Room, exchange: Exchange, body: bytes) -> None:
    """End a tenant's requests of one name.  200 also if there are none: they may have ended meanwhile."""
    request = parse(body, AbortRequest, _ABORT_RULES)
    if not request.rid:
        raise InvalidRequest("rid", "the name of a request is needed: its rid, or the id of its reply")
    room.service.abort(request.rid, tenant=exchange.tenant)
    await exchange.reply_json({"success": True})


class TokenizeRequest(msgspec.Struct):
    """The body of /tokenize; text is another name of prompt."""

    prompt: str | None = None
    text: str | None = None
    model: str = ""


class DetokenizeRequest(msgspec.Struct):
    """The body of /detokenize."""

    tokens: Any
    model: str = ""
    skip_special_tokens: bool = True


async def tokenize(room: Room, exchange: Exchange, body: bytes) -> None:
    """Give a text's token ids."""
    request = parse(body, TokenizeRequest, Rules())
    if (request.prompt is None) == (request.text is None):
        raise InvalidRequest("prompt", "exactly one of prompt and text is needed")
    text = expect_fit(request.prompt or request.text or "", "prompt", room.service.limits)
    tokens = memoryview(await room.service.encode(text)).cast("i").tolist()
    await exchange.reply_json(
        {"tokens": tokens, "count": len(tokens), "max_model_len": room.service.limits.context_length}
    )


async def detokenize(room: Room, exchange: Exchange, body: bytes) -> None:
    """Give the text of token ids, or of each list of them."""
    request = parse(body, DetokenizeRequest, Rules())
    given: Any = request.tokens
    if isinstance(given, list):
        _expect_tokens(cast("list[Any]", given))
    if not isinstance(given, list) or not given or not isinstance(given[0], list):
        await exchange.reply_json({"text": await _text(room, given, request)})
        return
    lists = cast("list[Any]", given)
    if len(lists) > _LISTS:
        raise InvalidRequest("tokens", f"{len(lists)} lists given, at most {_LISTS} allowed")
    await exchange.reply_json({"text": [await _text(room, one, request) for one in lists]})


def _expect_tokens(given: list[Any]) -> None:
    count = sum(len(cast("list[Any]", one)) if isinstance(one, list) else 1 for one in given[:_TOKENS])
    if max(count, len(given)) > _TOKENS:
        raise InvalidRequest("tokens", f"more than the {_TOKENS} allowed in one request")


async def _text(room: Room, given: Any, request: DetokenizeRequest) -> str:
    ids = memoryview(token_ids(given, "tokens", room.service.limits.vocabulary)).cast("i").tolist()
    return await room.service.decode(ids, skip_special_tokens=request.skip_special_tokens)
