"""Several generations by one call (`num_api_spec_tokens`): the model writes further than asked, and what fits is taken.

A service is asked without stop strings.  Where the program then says what the model has written too, the next
generation is read from there; where it says something else, the rest is thrown away and the service is asked anew.
What is left over belongs to the program's stream: no backend, no other program and no other run ever sees it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec

from ..actors.backend import Prompt
from ..actors.errors import GenerationFailed, InvalidRequest
from ..actors.messages import Delta, Finish
from ..actors.sampling import CONSTRAINTS, SamplingParams
from .ahead import Ahead, Piece, unlike
from .expression import RoleBegin, RoleEnd
from .script import Generate

if TYPE_CHECKING:
    from .stream import Stream

__all__ = ["TRIES", "look_ahead", "speculate", "speculates"]

TRIES = 3
"""How many answers of a chat model are looked at until one fits."""
_SEVERAL = "several gens in one message of a chat model"


def look_ahead(steps: list[Any]) -> list[Any]:
    """Tell each generation of a chat message what the message says behind it.

    Raises InvalidRequest if one call cannot serve all of them: each but the last needs a stop, and all one sampling.
    """
    told, behind, closed = list(steps), (), False
    for index in reversed(range(len(told))):
        step = told[index]
        if isinstance(step, (RoleBegin, RoleEnd)):
            behind, closed = (), isinstance(step, RoleEnd)
        elif isinstance(step, str):
            behind = (step, *behind) if behind else ()
        elif isinstance(step, Generate):
            if behind:
                _verify_one_of_several(step, next(item for item in behind if isinstance(item, Generate)))
            told[index] = msgspec.structs.replace(step, behind=behind, closed=closed)
            behind = (step, *behind)
    return told


def _verify_one_of_several(step: Generate, following: Generate) -> None:
    if not step.sampling.stop:
        raise InvalidRequest("stop", f"{_SEVERAL} are one answer, so each but the last needs a stop string")
    if not (_can_share(step) and _can_share(following)):
        raise InvalidRequest(
            "num_api_spec_tokens", f"{_SEVERAL} take no n, separate_reasoning, penalties or constraints"
        )
    if (field := unlike(step.sampling, following.sampling)) is not None:
        given = getattr(step.sampling, field), getattr(following.sampling, field)
        raise InvalidRequest(field, f"{_SEVERAL} are one answer, so it must be the same; {given[0]!r} and {given[1]!r}")


def _can_share(step: Generate) -> bool:
    """Whether a generation may be a part of a longer one: what binds or weighs a text does so from its beginning."""
    sampling = step.sampling
    weighed = sampling.frequency_penalty or sampling.presence_penalty or sampling.min_new_tokens
    bound = any(getattr(sampling, name) is not None for name in CONSTRAINTS)
    return not (weighed or bound or step.variable.parts or step.markers or sampling.stop_regex)


def speculates(stream: Stream, step: Generate) -> bool:
    """Whether a generation is to be served by `speculate`."""
    if stream.defaults.overrun_tokens is None or not _can_share(step):
        return False
    transcript = stream.transcript
    if stream.backend.overruns == "text":
        return True
    if stream.backend.overruns != "message" or transcript.role != "assistant":
        return False
    return bool(step.behind) or not step.closed or transcript.length > transcript.written


async def speculate(stream: Stream, step: Generate, prompt: Prompt) -> AsyncGenerator[Delta, None]:
    """Do what the backend's `generate` does, from what is left of an earlier call, or by one that goes further."""
    by_message = stream.backend.overruns == "message"
    find, tries = (_fit, TRIES) if by_message else (_take, 1)
    piece, asked = find(stream, step), None
    while piece is None and tries:
        tries -= 1
        stream.ahead = None
        start = stream.transcript.written if by_message else stream.transcript.length
        stream.ahead, asked = await _overrun(stream, step.sampling, prompt, start)
        piece = find(stream, step)
    if piece is not None:
        if piece.text:
            yield Delta(text=piece.text)
        yield Delta(finish=_finish(piece, asked))
        return
    if by_message:
        told = "nothing" if stream.ahead is None else repr(stream.ahead.text[:80])
        raise GenerationFailed(
            f"{TRIES} answers did not fit what the program says around its gens; the last began with {told}"
        )
    stream.ahead = None  # its tokens cannot be told apart, and it is too long: the service cuts for itself
    async with aclosing(stream.backend.generate(prompt, step.sampling)) as deltas:
        async for delta in deltas:
            yield delta


def _take(stream: Stream, step: Generate) -> Piece | None:
    """Serve a generation from what goes on behind the program's text."""
    ahead = stream.ahead
    if ahead is None or unlike(ahead.sampling, step.sampling) is not None:
        return None
    place = ahead.place(stream.transcript)
    return None if place is None else ahead.serve(place, step.sampling)


def _fit(stream: Stream, step: Generate) -> Piece | None:
    """Serve a generation from a whole answer, if it fits everything the message says that is known so far."""
    ahead = stream.ahead
    if ahead is None or ahead.start != stream.transcript.written:
        return None
    if (field := unlike(ahead.sampling, step.sampling)) is not None:
        raise InvalidRequest(field, f"{_SEVERAL} are one answer, so it must be the same for all of them")
    place = ahead.place(stream.transcript)
    if place is None or (piece := ahead.serve(place, step.sampling, guess=not step.behind)) is None:
        return None
    place += len(piece.text)
    for item in step.behind:
        if isinstance(item, str):
            if not ahead.text.startswith(item, place):
                return None
            place += len(item)
        else:
            following = ahead.serve(place, item.sampling, guess=item is step.behind[-1])
            if following is None:
                return None
            place += len(following.text)
    return piece


async def _overrun(stream: Stream, sampling: SamplingParams, prompt: Prompt, start: int) -> tuple[Ahead, Finish]:
    """Ask for what goes on behind the first `start` characters, and further than one generation needs."""
    most = max(sampling.max_new_tokens, stream.defaults.overrun_tokens or 0)
    wider = msgspec.structs.replace(sampling, stop=(), max_new_tokens=most)
    if start < len(prompt.text):
        prompt = msgspec.structs.replace(prompt, text=prompt.text[:start], tail="")
    texts, finish = list[str](), None
    async with aclosing(stream.backend.generate(prompt, wider)) as deltas:
        async for delta in deltas:
            if delta.text:
                texts.append(delta.text)
            finish = delta.finish
    if finish is None or finish.reason not in ("stop", "length"):
        raise GenerationFailed("" if finish is None else finish.message or "the generation was ended")
    # Services mostly send a token a piece.  Where there are as many pieces as tokens were counted, this one did.
    ends = tuple(accumulate(map(len, texts))) if texts and len(texts) == finish.completion_tokens else None
    ahead = Ahead(start, "".join(texts), ends, finish.completion_tokens, finish.reason == "stop", sampling)
    return ahead, finish


def _finish(piece: Piece, asked: Finish | None) -> Finish:
    """Say how a generation ended; the call's input is counted where the call was made, and nowhere else."""
    return Finish(
        reason=piece.reason,
        matched=piece.matched,
        prompt_tokens=0 if asked is None else asked.prompt_tokens,
        cached_tokens=0 if asked is None else asked.cached_tokens,
        completion_tokens=piece.tokens,
    )
