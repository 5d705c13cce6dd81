"""POST /generate: SGLang's own route, its fields and its replies."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import anyio
import msgspec

from ..errors import InvalidRequest
from ..messages import Delta
from ..sampling import SamplingParams
from .constraints import schema_text
from .exchange import Exchange
from .fields import Rules, convert, expect_name, listed, parse, stops
from .generation import News, Work, complete, stream
from .native_output import NativeOutput
from .openai_fields import PRIORITY, expect_choices
from .programs import program_leases
from .reasoning import behind_reasoning
from .room import Room
from .salts import salt_of

__all__ = ["GenerateRequest", "generate", "native_sampling"]

T = TypeVar("T")

_WRITE_BYTES = 1 << 16
_STOP_REGEXES = 32  # different ones in a batch: each takes up to some 20 ms to read


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of the route.  A batch gives lists: of texts or of token id arrays, and, if it likes, of the rest."""

    text: Any = None
    input_ids: Any = None
    sampling_params: Any = {}
    return_logprob: bool | list[bool] = False
    logprob_start_len: int | list[int] = -1
    top_logprobs_num: int | list[int] = 0
    return_text_in_logprobs: bool = False
    require_reasoning: bool = False
    stream: bool = False
    rid: str | list[str] | None = None
    cache_salt: str | list[str] | None = None
    extra_key: str | list[str] | None = None
    program: Any = None


class NativeSampling(msgspec.Struct, kw_only=True):
    """sampling_params, in SGLang's names; seed is another name of sampling_seed, and heal is ours."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    n: int = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = []
    stop_regex: str | list[str] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    regex: str | None = None
    json_schema: str | dict[str, Any] | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    heal: bool = False
    sampling_seed: int | None = None
    seed: int | None = None


_RULES = Rules(
    ignored=frozenset({"background", "conversation_id", "custom_labels", "log_metrics", "no_logs", "routing_key"}),
    unsupported={
        "input_embeds": "embeddings are not taken; give text or input_ids",
        "image_data": "the model reads text alone",
        "video_data": "the model reads text alone",
        "audio_data": "the model reads text alone",
        "token_ids_logprob": "log-probabilities of chosen tokens are not supported yet; top_logprobs_num is",
        "return_hidden_states": "hidden states are not given out",
        "session_params": "sessions are not supported; a prefix is found in the cache by itself",
        "session_id": "sessions are not supported; a prefix is found in the cache by itself",
        "lora_path": "adapters are not supported yet",
        "custom_logit_processor": "code never comes with a request",
        "priority": PRIORITY,
        "bootstrap_host": "this server does not hand requests on",
        "bootstrap_port": "this server does not hand requests on",
        "bootstrap_room": "this server does not hand requests on",
        "return_entropy": "entropies are not given out",
        "return_prompt_token_ids": "use /tokenize",
    },
)
_SAMPLING_RULES = Rules(
    ignored=frozenset({"stream_interval"}),
    unsupported={
        "beam_width": "beam search is not supported",
        "custom_params": "they belong to code, which never comes with a request",
        "no_stop_trim": "a stop string is always cut off",
        "spaces_between_special_tokens": "false is not supported; the tokenizer's own spacing is kept",
        "watermark": "watermarks are not supported",
        "dtype": "constrain the output with a regex",
    },
    harmless={"spaces_between_special_tokens": (True,), "beam_width": (1,)},
)


async def generate(room: Room, exchange: Exchange, body: bytes) -> None:
    """Continue one prompt or a batch."""
    request = parse(body, GenerateRequest, _RULES)
    if (request.text is None) == (request.input_ids is None):
        raise InvalidRequest("text", "exactly one of text and input_ids is needed")
    field = "text" if request.input_ids is None else "input_ids"
    given = request.text if request.input_ids is None else request.input_ids
    prompts, batch = listed(given, field, room.service.limits, room.options.sequences)
    if field == "text" and not all(isinstance(prompt, str) for prompt in prompts):
        raise InvalidRequest("text", "it holds token ids; give those as input_ids")
    if field == "input_ids" and any(isinstance(prompt, str) for prompt in prompts):
        raise InvalidRequest("input_ids", "it holds strings; give those as text")
    n, samplings = await _samplings(room, request, len(prompts))
    names = _names(room, request.rid, len(prompts), batch)
    salts = _salts(request, len(prompts))
    works: list[Work] = []
    for prompt, sampling, name, salt in zip(prompts, samplings, names, salts, strict=True):
        text = prompt if isinstance(prompt, str) else None
        tokens = prompt if isinstance(prompt, bytes) else await room.service.encode(prompt)
        if request.require_reasoning:
            sampling = await behind_reasoning(room, sampling, tokens, text)
        works.extend(Work(tokens, one, name, exchange.tenant, salt) for one in sampling.spread(n))
    with program_leases(room, exchange, request.program) as (lease, program):
        if program:
            works = [msgspec.structs.replace(work, lease=lease, program=program) for work in works]
        await _answer(room, exchange, request, works, many=batch or n > 1)


async def _answer(room: Room, exchange: Exchange, request: GenerateRequest, works: list[Work], *, many: bool) -> None:
    outputs = [NativeOutput(room, work, texts=request.return_text_in_logprobs) for work in works]
    if request.stream:
        await _stream(room, exchange, works, outputs, many)
        return
    for output, done in zip(outputs, await complete(room.service, works), strict=True):
        await output.add(Delta(
            text=done.text, tokens=tuple(done.tokens), logprobs=tuple(done.logprobs),
            input_logprobs=tuple(done.input_logprobs), finish=done.finish,
        ))  # fmt: skip
    replies = [output.reply() for output in outputs]
    await exchange.reply_json(replies if many else replies[0])


async def _stream(room: Room, exchange: Exchange, works: list[Work], outputs: list[NativeOutput], many: bool) -> None:
    async def tell(news: News) -> None:
        nonlocal last
        events = bytearray()
        for index, delta in news:
            if len(events) > _WRITE_BYTES:  # all that was said before is in them, too: others have their turn
                await exchange.write(bytes(events))
                events.clear()
            await outputs[index].add(delta)
            reply = outputs[index].reply()
            if many:
                reply["index"] = index
            events += b"data: " + msgspec.json.encode(reply) + b"\n\n"
        if all(output.ended for output in outputs):
            last = bytes(events)  # they go out with what follows them
        else:
            await exchange.write(bytes(events))

    last = b""
    await stream(room.service, works, tell, room.pace)
    await exchange.end(last + b"data: [DONE]\n\n")


async def _samplings(room: Room, request: GenerateRequest, count: int) -> tuple[int, list[SamplingParams]]:
    """Give n, which must be one for the whole batch, and each prompt's sampling parameters, checked."""
    given = _each(request.sampling_params, "sampling_params", count)
    natives = [
        convert(one, NativeSampling, _SAMPLING_RULES, at="sampling_params")
        for one in (given if count > 1 else given[:1])
    ]
    n = natives[0].n
    if any(one.n != n for one in natives):
        raise InvalidRequest("sampling_params.n", "it must be the same for every prompt of a batch")
    expect_choices(n, count, room.options)
    wanted = _each(request.return_logprob, "return_logprob", count)
    starts = _each(request.logprob_start_len, "logprob_start_len", count)
    tops = _each(request.top_logprobs_num, "top_logprobs_num", count)
    samplings = [_sampling(*one) for one in zip(natives, wanted, starts, tops, strict=True)]
    expressions = len({pattern for sampling in samplings for pattern in sampling.stop_regex})
    if expressions > _STOP_REGEXES:
        raise InvalidRequest(
            "sampling_params.stop_regex",
            f"{expressions} different expressions given, at most {_STOP_REGEXES} allowed in one request",
        )
    for place, sampling in enumerate(samplings):
        if place:  # those of a large batch take a while, and everybody else waits meanwhile
            await anyio.lowlevel.checkpoint()
        room.service.verify(sampling)
    return n, samplings


def native_sampling(
    given: Any, *, return_logprob: bool = False, logprob_start_len: int = -1, top_logprobs_num: int = 0
) -> tuple[int, SamplingParams]:
    """Turn a `sampling_params` object into n and sampling parameters; raises InvalidRequest, naming the field."""
    native = convert(given, NativeSampling, _SAMPLING_RULES, at="sampling_params")
    return native.n, _sampling(native, return_logprob, logprob_start_len, top_logprobs_num)


def _sampling(native: NativeSampling, wanted: bool, start: int, top: int) -> SamplingParams:
    if native.seed is not None and native.sampling_seed not in (None, native.seed):
        raise InvalidRequest("sampling_params.seed", "it is given as sampling_seed too, and the two differ")
    return SamplingParams(
        max_new_tokens=native.max_new_tokens,
        min_new_tokens=native.min_new_tokens,
        stop=stops(native.stop),
        stop_token_ids=tuple(native.stop_token_ids),
        stop_regex=stops(native.stop_regex),
        temperature=native.temperature,
        top_p=native.top_p,
        top_k=native.top_k,
        min_p=native.min_p,
        frequency_penalty=native.frequency_penalty,
        presence_penalty=native.presence_penalty,
        repetition_penalty=native.repetition_penalty,
        logit_bias=native.logit_bias,
        ignore_eos=native.ignore_eos,
        skip_special_tokens=native.skip_special_tokens,
        regex=native.regex,
        json_schema=schema_text(native.json_schema),
        ebnf=native.ebnf,
        structural_tag=schema_text(native.structural_tag),
        heal=native.heal,
        seed=native.sampling_seed if native.seed is None else native.seed,
        return_logprob=wanted,
        top_logprobs_num=top if wanted else 0,
        logprob_start=start if wanted else -1,
    )


def _names(room: Room, rid: str | list[str] | None, count: int, batch: bool) -> list[str]:
    if rid is None:
        return [room.new_id() for _ in range(count)]
    names = [rid] * count if isinstance(rid, str) else rid
    if len(names) != count or (isinstance(rid, list) and not batch):
        raise InvalidRequest("rid", f"{len(names)} names given for {count} prompts")
    for name in names:
        expect_name(name)
    return names


def _salts(request: GenerateRequest, count: int) -> list[str]:
    none = [None] * count
    salts = none if request.cache_salt is None else _each(request.cache_salt, "cache_salt", count)
    keys = none if request.extra_key is None else _each(request.extra_key, "extra_key", count)
    return [salt_of(*one) for one in zip(salts, keys, strict=True)]


def _each(value: T | list[T], field: str, count: int) -> list[T]:
    """Give one value a prompt, from one for all or a list of them."""
    if not isinstance(value, list):
        return [value] * count
    values = cast("list[T]", value)
    if len(values) != count:
        raise InvalidRequest(field, f"{len(values)} values given for {count} prompts")
    return values
