"""What a program has said: tokens are the state, text is a view."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ..actors.backend import Prompt
from ..actors.chat_template import ChatTemplate
from ..actors.joins import pack_joins
from .parts import content_of, in_text

__all__ = ["Mark", "Transcript"]


class Mark(NamedTuple):
    """A place in a transcript: where branches begin."""

    length: int = 0  # characters
    token_bytes: int = 0
    messages: int = 0
    joins: tuple[tuple[int, ...], ...] = ()


class Transcript(msgspec.Struct, eq=False, gc=False):
    """Hold the text, its tokens and its chat messages.

    # text = what tokens say + tail     tail: constant text nobody has tokenized yet
    # a generated token is kept as it came; constant text is tokenized once, when a generation needs it
    length: characters.  fresh: how many of the last tokens are constant text.  joins: forks whose branches stand side
    by side, as `joins.py` has them.  suffix: what stands behind the open message.  images: as Prompt's.
    written: where the open message's content begins.
    """

    _said: str = ""
    _pieces: list[str] | None = None
    length: int = 0
    tokens: bytes = b""
    fresh: int = 0
    joins: tuple[tuple[int, ...], ...] = ()
    tail: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    role: str | None = None
    suffix: str = ""
    images: tuple[tuple[int, int, str], ...] = ()
    written: int = 0

    @property
    def text(self) -> str:
        if self._pieces is not None:  # behind what was said when somebody looked last
            self._said = "".join((self._said, *self._pieces))
            self._pieces = None
        return self._said

    def say(self, text: str) -> None:
        """Append constant text."""
        if self._pieces is None:
            self._pieces = [text]
        else:
            self._pieces.append(text)
        self.length += len(text)
        self.tail += text

    def hear(self, text: str) -> None:
        """Append text that a generation gives; its tokens follow in `settle_output`."""
        if self._pieces is None:
            self._pieces = [text]
        else:
            self._pieces.append(text)
        self.length += len(text)

    def settle(self, tokens: bytes) -> None:
        """Replace the tail by its tokens."""
        self.tokens += tokens
        self.fresh += len(tokens) // 4
        self.tail = ""

    def settle_output(self, tokens: array[int], kept: int, tail: str, taken: int = 0) -> None:
        """Take a generation's tokens that lie wholly inside its text; `tail` is the text behind them.

        taken: how many of the last tokens they stand for, too.
        """
        self.tokens = self.tokens[: len(self.tokens) - 4 * taken] + tokens[:kept].tobytes()
        self.fresh = 0
        self.tail = tail

    def say_message(self, role: str, text: str, template: ChatTemplate) -> None:
        """Append a whole chat message of constant text."""
        messages = self._plain_messages(template) if self.images else self.messages
        prefix, suffix = template.role(role, messages)
        self.say(prefix + text + suffix)
        self.messages += ({"role": role, "content": text},)

    def begin_role(self, role: str, template: ChatTemplate) -> None:
        messages = self._plain_messages(template) if self.images else self.messages
        prefix, self.suffix = template.role(role, messages)
        self.say(prefix)
        self.role = role
        self.written = self.length

    def end_role(self) -> None:
        assert self.role is not None
        content = content_of(self.text, self.images, self.written)
        self.say(self.suffix)
        self.messages += ({"role": self.role, "content": content},)
        self.role = None

    def show(self, url: str, token: str) -> None:
        """Append an image; `token` stands for it in the text."""
        start = self.length
        self.say(token)
        self.images += ((start, self.length, url),)

    def _plain_messages(self, template: ChatTemplate) -> tuple[dict[str, Any], ...]:
        """Give the messages as text alone, for templates that know no parts."""
        token = template.image_token
        return tuple({**message, "content": in_text(message["content"], token)} for message in self.messages)

    def prompt(self, lease: int = 0, program: int = 0, *, joining: bool = False) -> Prompt:
        return Prompt(
            tokens=self.tokens, tail=self.tail, text=self.text, messages=self.messages, role=self.role,
            fresh=self.fresh, lease=lease, program=program, images=self.images,
            joins=pack_joins(self.joins) if self.joins else b"", joining=joining,
        )  # fmt: skip

    def take(self, other: Transcript, length: int, token_bytes: int, messages: int) -> None:
        """Append what a copy has said since it had so many characters, bytes of tokens and messages.

        If it has tokens since then, this one's tail must be settled: they go on from its tokens.  Tokens that begin a
        sequence (some tokenizers put one of their own there) cannot stand behind others: then its text is taken.
        """
        text = self._take_text(other, length, messages)
        if len(other.tokens) > token_bytes and (token_bytes or not self.tokens):
            self.tokens += other.tokens[token_bytes:]
            self.fresh = 0
            self.tail = other.tail
        else:
            self.tail += text

    def _take_text(self, other: Transcript, length: int, messages: int) -> str:
        text = other.text[length:]
        moved = self.length - length
        self.images += tuple((a + moved, b + moved, url) for a, b, url in other.images if a >= length)
        self.hear(text)
        self.messages += other.messages[messages:]
        return text

    def jump(self, offset: int) -> None:
        """Let positions be so much higher from here on; everything so far is settled."""
        if offset:
            self.joins += ((len(self.tokens) // 4, 0, offset),)

    def mark(self) -> Mark:
        """Name the place where branches begin that go on from here."""
        return Mark(self.length, len(self.tokens), len(self.messages), self.joins)

    def join(self, branches: Sequence[tuple[Transcript, Mark, int]]) -> None:
        """Append what copies have said since their mark, side by side; of each the offset that its positions had.

        Their tails, and this one's, are settled.  What this one has said itself since the mark stands before them.
        """
        mark = branches[0][1]
        start, known = mark.token_bytes // 4, len(mark.joins)
        lines = [(self.tokens[mark.token_bytes :], self.joins[known:], 0)]
        for other, _, offset in branches:
            self._take_text(other, mark.length, mark.messages)
            lines.append((other.tokens[mark.token_bytes :], other.joins[known + bool(offset) :], offset))
        parts: list[int] = []
        inner: list[tuple[int, ...]] = []
        tokens, length = [self.tokens[: mark.token_bytes]], start
        for line, forks, offset in lines:
            if not line:
                continue
            parts += (len(line) // 4, offset)
            inner += ((fork[0] + length - start, *fork[1:]) for fork in forks)
            tokens.append(line)
            length += len(line) // 4
        if parts:
            self.joins = (*self.joins[:known], (start, len(parts) // 2, *parts), *inner)
        self.tokens, self.fresh = b"".join(tokens), 0

    @property
    def ends_in_join(self) -> bool:
        """Whether nothing is settled behind the last join, so that no token sees all of its branches."""
        if not self.joins:
            return False
        columns = len(self.tokens) // 4
        return any(fork[1] > 1 and fork[0] + sum(fork[2::2]) == columns for fork in self.joins)

    def close_join(self) -> None:
        """Let the last token see all branches of a join behind which nothing stands, as if it stood there itself."""
        if self.ends_in_join:
            columns = len(self.tokens) // 4
            shorter = (_before(fork, columns - 1) for fork in self.joins)
            self.joins = tuple(fork for fork in shorter if fork is not None)

    def copy(self) -> Transcript:
        """Give one that goes on from here by itself."""
        other = Transcript()
        other._said = self.text
        other.length, other.tokens, other.tail = self.length, self.tokens, self.tail
        other.fresh, other.joins = self.fresh, self.joins
        other.messages, other.images = self.messages, self.images
        other.role, other.suffix, other.written = self.role, self.suffix, self.written
        return other


def _before(fork: tuple[int, ...], end: int) -> tuple[int, ...] | None:
    """Give a fork whose last branch reaches to column `end` at most, or None if nothing is left of it."""
    start, count, *parts = fork
    if not count or start + sum(parts[::2]) <= end:
        return fork
    parts[-2] -= 1
    if not parts[-2]:
        del parts[-2:]
    return (start, len(parts) // 2, *parts) if parts else None
