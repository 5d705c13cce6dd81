"""Reasoning apart from the answer, where the operator has said what the model writes around it."""

from __future__ import annotations

import msgspec

from ..errors import InvalidRequest
from ..reasoning import Markers, ReasoningParser, markers_of, separate
from ..sampling import SamplingParams
from .exchange import Exchange
from .fields import Rules, parse
from .room import Room

__all__ = ["Parting", "behind_reasoning", "opened_by", "separate_reasoning", "served_markers"]

_LAST_TOKENS = 64  # of a prompt: enough to hold the marker that may open the reasoning


def served_markers(room: Room) -> Markers | None:
    """Give what the served model writes around its reasoning; None if the operator has named no parser."""
    name = room.options.reasoning_parser
    return None if name is None else markers_of(name)


def opened_by(markers: Markers, prompt: str) -> Markers:
    """Mind a prompt that ends with the opening marker: what follows is reasoning."""
    opened = markers.opened or prompt.rstrip().endswith(markers.begin)
    return msgspec.structs.replace(markers, opened=opened)


class Parting:
    """One choice's text on its way out, as reasoning and answer; markers None leaves all of it answer.

    streams: whether reasoning goes out as it comes, or in one piece once it is complete.
    """

    __slots__ = ("_held", "_parser", "_streams")

    def __init__(self, markers: Markers | None, *, streams: bool = True) -> None:
        self._parser = None if markers is None else ReasoningParser(markers)
        self._streams = streams
        self._held = ""

    @property
    def parts(self) -> bool:
        """Whether reasoning is told apart at all."""
        return self._parser is not None

    def feed(self, text: str, *, last: bool) -> tuple[str, str]:
        """Take the next piece, or the last; give what is new of the reasoning, and of the answer."""
        if self._parser is None:
            return "", text
        thought, answer = self._parser.feed(text)
        if last:
            more_thought, more_answer = self._parser.finish()
            thought, answer = thought + more_thought, answer + more_answer
        if not self._streams and not (last or self._parser.answering):
            self._held += thought
            return "", answer
        thought, self._held = self._held + thought, ""
        return thought, answer


async def behind_reasoning(room: Room, sampling: SamplingParams, prompt: bytes, text: str | None) -> SamplingParams:
    """Let a constraint bind only what comes behind the model's reasoning.

    prompt: its token ids, int32; text: the same as text, if that is known.  Raises InvalidRequest without a parser.
    """
    markers = served_markers(room)
    if markers is None:
        raise InvalidRequest("require_reasoning", "this server knows no reasoning: start it with --reasoning-parser")
    if sampling.constraint is None:
        return sampling
    if text is None:
        text = await room.service.decode(memoryview(prompt).cast("i").tolist()[-_LAST_TOKENS:])
    bound = msgspec.structs.replace(sampling, reasoning=opened_by(markers, text))
    room.service.verify(bound)
    return bound


class SeparateRequest(msgspec.Struct):
    """The body of /separate_reasoning; without reasoning_parser, it is the server's own."""

    text: str
    reasoning_parser: str | None = None


async def separate_reasoning(room: Room, exchange: Exchange, body: bytes) -> None:
    """Part a whole text that some model has written."""
    request = parse(body, SeparateRequest, Rules())
    if request.reasoning_parser is None:
        markers = served_markers(room)
        if markers is None:
            raise InvalidRequest("reasoning_parser", "it is needed: this server was started without one")
    else:
        try:
            markers = markers_of(request.reasoning_parser)
        except InvalidRequest as error:
            raise InvalidRequest("reasoning_parser", str(error).partition(": ")[2]) from None
    thought, answer = separate(request.text, markers)
    await exchange.reply_json({"reasoning_text": thought, "text": answer})
