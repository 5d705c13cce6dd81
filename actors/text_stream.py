"""Text from tokens as they come: incomplete UTF-8 held back, stops found and mapped to token offsets."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import Protocol

from tokenizers import Tokenizer, decoders

from .stop_regex import StopSearch

__all__ = ["Behind", "TextStream", "TokenText", "byte_table", "first_characters", "is_byte_level", "token_text"]


class TokenText(Protocol):
    """The text of one request's tokens, fed in order."""

    def follow(self, tokens: Sequence[int]) -> None:
        """Take what stands before the first token; called once, before anything is fed."""
        ...

    def feed(self, token: int) -> str:
        """Give the text that `token` completes; "" while a character is incomplete."""
        ...

    def clean(self) -> bool:
        """Tell whether no byte is held back."""
        ...

    def flush(self) -> str:
        """Give what is held back, incomplete bytes as U+FFFD, as decoding the whole would."""
        ...

    def alone(self, token: int) -> str | None:
        """Give the text that `token` has wherever it stands, unless something is held back; None if that depends."""
        ...

    def is_settled(self) -> bool:
        """Tell whether nothing is held back, so that the next token may be one that stands alone."""
        ...


def token_text(tokenizer: Tokenizer) -> Callable[[bool], TokenText]:
    """Give a maker of TokenText for this tokenizer; its argument is skip_special_tokens.

    A byte-level tokenizer's token is a fixed run of bytes, so decoding is one table look-up; any other kind is decoded
    in a moving window of its own tokens.
    """
    special = frozenset(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)
    if is_byte_level(tokenizer):
        table = byte_table(tokenizer)
        return lambda skip: _ByteLevelText(table, special if skip else frozenset())
    raw = frozenset(token for byte in range(256) if (token := tokenizer.token_to_id(f"<0x{byte:02X}>")) is not None)
    return lambda skip: _WindowText(tokenizer, special if skip else frozenset(), raw)


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether each token is a fixed run of bytes."""
    return isinstance(tokenizer.decoder, decoders.ByteLevel)


def first_characters(stops: Sequence[str]) -> frozenset[str]:
    """Give the characters that a stop may begin with."""
    return frozenset([stop[0] for stop in stops])


class Behind:
    """The text of tokens behind its first `skip` characters."""

    __slots__ = ("_skip", "_text")

    def __init__(self, text: TokenText, skip: int) -> None:
        self._text = text
        self._skip = skip

    def follow(self, tokens: Sequence[int]) -> None:
        self._text.follow(tokens)

    def feed(self, token: int) -> str:
        return self._behind(self._text.feed(token))

    def clean(self) -> bool:
        return self._text.clean()

    def flush(self) -> str:
        return self._behind(self._text.flush())

    def alone(self, token: int) -> str | None:
        return self._text.alone(token)

    def is_settled(self) -> bool:
        return not self._skip and self._text.is_settled()

    def _behind(self, new: str) -> str:
        if not self._skip:
            return new
        gone = min(self._skip, len(new))
        self._skip -= gone
        return new[gone:]


class TextStream:
    """One request's text.  Holds back what may yet become a stop or is half a character.

    # text:   [0, boundary)          of whole tokens the client has: `whole` of them
    #         [boundary, emitted)    `tail`: with the client, but its token is not over yet
    #         [emitted, ...)         `_held`: may begin a stop
    # _ends:  of each token behind the boundary, the length of the text once it is in, from the boundary on; None if a
    #         character of it is not over yet.  Without stops nothing is behind the boundary

    matched: the stop string, or expression, that has ended the stream; None until then.  seen: how many tokens are in.
    """

    __slots__ = (
        "_emitted", "_ends", "_firsts", "_held", "_hold", "_search", "_stops", "_text", "matched", "seen", "tail",
    )  # fmt: skip

    def __init__(self, text: TokenText, stops: Sequence[str] = (), expressions: Sequence[str] = ()) -> None:
        """stops: strings.  expressions: regular expressions, as `stop_regex` takes them."""
        self._text = text
        self._stops = tuple(stops)
        self._firsts = first_characters(self._stops)
        self._search = StopSearch(expressions) if expressions else None
        self._hold = max((len(stop) for stop in self._stops), default=1) - 1
        self._held = ""
        self._emitted = 0
        self._ends: list[int | None] = []
        self.tail = ""
        self.seen = 0
        self.matched: str | None = None

    @property
    def whole(self) -> int:
        """How many tokens lie wholly inside the text let go so far."""
        return self.seen - len(self._ends)

    def is_quiet(self) -> bool:
        """Tell whether nothing is held back, so that a token that has its text wherever it stands need not be fed.

        Unless a stop may begin in it.  It comes to the same, if it is counted in `seen`.
        """
        return self._search is None and not self._ends and self._text.is_settled()

    def feed(self, token: int) -> str:
        """Take the next token; give what is safe to show.  After a match the stream is over."""
        self.seen += 1
        new = self._text.feed(token)
        if not self._stops and self._search is None:
            return new
        held = self._held + new
        self._ends.append(len(self.tail) + len(held) if self._text.clean() else None)
        if new and (found := self._find(held, len(new))) is not None:
            return self._cut(held, *found)
        safe = len(held) - self._possible(held)
        self._held = held[safe:]
        return self._let_go(held[:safe])

    def finish(self) -> str:
        """Let go of the rest, incomplete bytes as U+FFFD."""
        new = self._text.flush()
        rest = self._held + new
        if new and (found := self._find(rest, len(new))) is not None:
            return self._cut(rest, *found)
        self._held = self.tail = ""
        self._ends.clear()
        return rest

    def _find(self, held: str, new: int) -> tuple[int, str] | None:
        """Find the earliest stop that ends in the new part; of two at one place, a string, and the longer."""
        start = max(0, len(held) - new - self._hold)
        found = [(at, -len(stop), stop) for stop in self._stops if (at := held.find(stop, start)) >= 0]
        if self._search is not None and (match := self._search.feed(held[len(held) - new :])) is not None:
            found.append((match.start - self._emitted, 0, match.pattern))
        return None if not found else (min(found)[0], min(found)[2])

    def _possible(self, held: str) -> int:
        """Give the length of the longest end of `held` that a stop may begin with."""
        least = 0 if self._search is None else self._search.held
        for length in range(min(self._hold, len(held)), least, -1):
            if held[-length] in self._firsts and any(stop.startswith(held[-length:]) for stop in self._stops):
                return length
        return least

    def _cut(self, held: str, at: int, stop: str) -> str:
        self._held = ""
        self.matched = stop
        return self._let_go(held[:at])

    def _let_go(self, text: str) -> str:
        """Note `text` as shown, and which tokens lie wholly in what is shown, no byte missing."""
        self._emitted += len(text)
        self.tail += text
        shown, count, boundary = len(self.tail), 0, 0  # count: of the tokens that are whole by this
        for index, end in enumerate(self._ends):
            if end is not None and end <= shown:
                count, boundary = index + 1, end
        if count:
            self.tail = self.tail[boundary:]
            self._ends = [None if end is None else end - boundary for end in self._ends[count:]]
        return text


class _ByteLevelText:
    __slots__ = ("_held", "_skipped", "_table")

    def __init__(self, table: dict[int, bytes], skipped: frozenset[int]) -> None:
        self._table = table
        self._skipped = skipped
        self._held = b""  # of a character that is not over yet

    def follow(self, tokens: Sequence[int]) -> None:
        """Every token's bytes are its own."""

    def feed(self, token: int) -> str:
        data = self._bytes(token)
        if self._held:
            data = self._held + data
        text, used = utf_8_decode(data, "replace")
        self._held = data[used:]
        return text

    def clean(self) -> bool:
        return not self._held

    def flush(self) -> str:
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")

    def alone(self, token: int) -> str | None:
        try:
            return self._bytes(token).decode()
        except UnicodeDecodeError:
            return None

    def is_settled(self) -> bool:
        return not self._held

    def _bytes(self, token: int) -> bytes:
        return b"" if token in self._skipped else self._table.get(token, b"")


class _WindowText:
    """Decode the tokens since the last clean cut, and compare with the text already given.

    A decoder may look at its neighbours (a leading space stripped at the start), so one token of context stays in
    the window.  A run of single-byte tokens is one thing to the decoder: it is held until the run is over.
    """

    __slots__ = ("_given", "_pending", "_raw", "_skipped", "_tokenizer", "_window")

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], raw: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._raw = raw
        self._window: list[int] = []
        self._given = ""  # the text of the window that was given out
        self._pending = False

    def follow(self, tokens: Sequence[int]) -> None:
        plain = [token for token in tokens if token not in self._skipped and token not in self._raw]
        self._window = plain[-1:]
        self._given = self._decode()

    def feed(self, token: int) -> str:
        if token in self._skipped:
            return ""
        self._window.append(token)
        self._pending = token in self._raw
        if self._pending:
            return ""
        text = self._decode()
        new, self._given = text[len(self._given) :], text
        if len(self._window) >= _WINDOW:
            self._window = self._window[-1:]
            self._given = self._decode()
        return new

    def clean(self) -> bool:
        return not self._pending

    def flush(self) -> str:
        text = self._decode()
        new, self._given, self._pending = text[len(self._given) :], text, False
        return new

    def alone(self, token: int) -> str | None:  # noqa: ARG002  # its neighbours may matter
        return None

    def is_settled(self) -> bool:
        return False

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)


_WINDOW = 24  # tokens; a cut costs one decode, the window's length is what every feed decodes


def byte_table(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Map each token id to its bytes, undoing the printable alphabet of byte-level BPE."""
    alphabet = _byte_alphabet()
    added = tokenizer.get_added_tokens_decoder()
    table: dict[int, bytes] = {}
    for text, token in tokenizer.get_vocab(with_added_tokens=True).items():
        if token in added or any(character not in alphabet for character in text):
            table[token] = text.encode()
        else:
            table[token] = bytes(alphabet[character] for character in text)
    return table


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself where it has one, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}
