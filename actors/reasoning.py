"""Reasoning and answer: what a thinking model writes, told apart as it comes."""

from __future__ import annotations

import msgspec

from .errors import InvalidRequest

__all__ = ["MODEL_TYPES", "Markers", "ReasoningParser", "markers_of", "separate"]


class Markers(msgspec.Struct, frozen=True):
    """What a model writes around its reasoning.  opened: its chat template has written `begin` already."""

    begin: str
    end: str
    opened: bool


_THINK = Markers("<think>", "</think>", opened=False)
_THINKING = Markers("<think>", "</think>", opened=True)
_TRIANGLES = Markers("◁think▷", "◁/think▷", opened=False)

MODEL_TYPES = {
    "deepseek-r1": _THINKING,
    "deepseek-v3": _THINK,
    "glm45": _THINK,
    "interns1": _THINK,
    "kimi": _TRIANGLES,
    "kimi_k2": _THINKING,
    "minimax": _THINKING,
    "qwen3": _THINK,
    "qwen3-thinking": _THINKING,
    "step3": _THINKING,
}
"""The markers by the names SGLang gives the models' families."""


def markers_of(model_type: str) -> Markers:
    """Give a family's markers, whatever the case of its name; InvalidRequest names those there are."""
    found = MODEL_TYPES.get(model_type.lower()) if isinstance(model_type, str) else None
    if found is None:
        known = ", ".join(MODEL_TYPES)
        raise InvalidRequest("model_type", f"{model_type!r:.80} is unknown; there are {known}")
    return found


class ReasoningParser:
    """Split one generation's text as it comes.

    # held        what may yet be a marker, or blank at an edge
    # BEFORE      nothing but blanks and the beginning of `begin` so far
    # THINKING    until `end`
    # ANSWER      all the rest; a marker in it is text

    Blanks at both ends of the reasoning, and in front of the answer behind it, are dropped.  A text that does not
    begin with `begin` is an answer as it stands, unless the marker was opened before it.  One that is cut before
    `end` is reasoning alone.
    """

    __slots__ = ("_held", "_markers", "_opened", "_phase", "_trimming")

    def __init__(self, markers: Markers, *, opened: bool = False) -> None:
        """opened: the prompt ends with `begin`."""
        self._markers = markers
        self._opened = opened or markers.opened
        self._phase = "BEFORE"
        self._held = ""
        self._trimming = False  # blanks are dropped until something else comes

    @property
    def answering(self) -> bool:
        """Whether no more reasoning can come."""
        return self._phase == "ANSWER"

    def feed(self, text: str) -> tuple[str, str]:
        """Take the next piece; give what is sure of the reasoning, and of the answer."""
        self._held += text
        if self._phase == "BEFORE":
            self._begin()
        thought = self._think() if self._phase == "THINKING" else ""
        return thought, self._answer() if self._phase == "ANSWER" else ""

    def finish(self) -> tuple[str, str]:
        """Give what was held back, once no more comes."""
        held, self._held = self._held, ""
        if self._phase == "THINKING" or (self._phase == "BEFORE" and self._opened):
            return (held.strip() if self._trimming or self._phase == "BEFORE" else held.rstrip()), ""
        return "", "" if self._trimming else held

    def _begin(self) -> None:
        begin = self._markers.begin
        text = self._held.lstrip()
        if text.startswith(begin):
            self._phase, self._held, self._trimming = "THINKING", text[len(begin) :], True
        elif not begin.startswith(text):  # the empty text is a beginning too
            if self._opened:
                self._phase, self._held, self._trimming = "THINKING", text, True
            else:
                self._phase = "ANSWER"

    def _think(self) -> str:
        end = self._markers.end
        text = self._held.lstrip() if self._trimming else self._held
        place = text.find(end)
        if place >= 0:
            self._phase, self._held, self._trimming = "ANSWER", text[place + len(end) :], True
            return text[:place].rstrip()
        kept = len(text) - _beginning(text, end)
        sure = len(text[:kept].rstrip())
        self._held = text[sure:]
        self._trimming = self._trimming and not sure
        return text[:sure]

    def _answer(self) -> str:
        text, self._held = self._held, ""
        if self._trimming:
            text = text.lstrip()
            self._trimming = not text
        return text


def separate(text: str, markers: Markers) -> tuple[str, str]:
    """Give the reasoning and the answer of a whole text."""
    parser = ReasoningParser(markers)
    (thought, answer), (last_thought, last_answer) = parser.feed(text), parser.finish()
    return thought + last_thought, answer + last_answer


def _beginning(text: str, marker: str) -> int:
    """Give the length of the longest end of `text` that `marker` begins with."""
    return next((size for size in range(len(marker) - 1, 0, -1) if text.endswith(marker[:size])), 0)
