"""The tokenizer: text to ids and back, once, in batches, long texts off the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
from anyio.abc import TaskGroup
from tokenizers import Tokenizer as Vocabulary

from .core import Actor, Inbox, Reply
from .errors import InvalidRequest
from .healing import Healer
from .messages import Decode, Encode, Heal, ToTokenizer
from .text_stream import byte_table, is_byte_level
from .whole_text import verify_whole

__all__ = ["Tokenizer", "load_vocabulary"]

_INLINE_CHARACTERS = 500
"""Texts up to here are tokenized on the loop: that takes about as long as the hop to a thread and back would."""


def load_vocabulary(folder: Path) -> Vocabulary:
    """Read tokenizer.json from a model folder; ValueError says what is missing."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"model: {folder} has no tokenizer.json; save the model's fast tokenizer there")
    vocabulary = Vocabulary.from_file(str(path))
    vocabulary.no_truncation()
    vocabulary.no_padding()
    return vocabulary


_ANCHOR = "\n"
"""Text that the tokenizers of `_encode_inside` merge with nothing."""

_SPACES = "\u2581\u0120"
"""How tokenizers write a space."""


class Tokenizer(Actor[ToTokenizer]):
    """Answer Encode and Decode.  Short batches on the loop, long ones on at most `threads` threads, side by side."""

    def __init__(self, vocabulary: Vocabulary, *, threads: int = 2) -> None:
        self._vocabulary = vocabulary
        self._threads = threads
        self._healer: Healer | None = None
        first = vocabulary.encode("a", add_special_tokens=False).tokens[:1]
        self._opens = bool(first) and first[0][:1] in _SPACES  # Llama 2's and Mistral's put a space before every text
        self._beginning = [vocabulary.encode("").ids, []]  # what the tokenizer puts around an empty sequence

    async def run(self, inbox: Inbox[ToTokenizer]) -> None:
        """Take what waits; nothing long may hold up what is short behind it."""
        limiter = anyio.CapacityLimiter(self._threads)
        async with anyio.create_task_group() as group:
            while True:
                for message, reply in await inbox.batch():
                    if reply is not None and not reply.cancelled:
                        self._take(message, reply, group, limiter)

    def _take(self, message: Any, reply: Reply, group: TaskGroup, limiter: anyio.CapacityLimiter) -> None:
        match message:
            case Encode(texts, beginning):
                if sum(map(len, texts)) <= _INLINE_CHARACTERS:
                    try:
                        reply.answer(self.encode(texts, beginning))
                    except InvalidRequest as error:
                        reply.fail(error)
                else:
                    group.start_soon(self._off_loop, reply, limiter, self.encode, texts, beginning)
            case Decode(tokens, skip):
                if sum(map(len, tokens)) <= 4 * _INLINE_CHARACTERS:
                    reply.answer(self.decode(tokens, skip))
                else:
                    group.start_soon(self._off_loop, reply, limiter, self.decode, tokens, skip)
            case Heal(tokens, limit):
                if not is_byte_level(self._vocabulary):
                    reply.fail(InvalidRequest("heal", "this model's tokens are no fixed runs of bytes; leave it out"))
                elif self._healer is not None:
                    reply.answer(self.heal(tokens, limit))
                else:  # sorting a vocabulary takes a while
                    group.start_soon(self._off_loop, reply, limiter, self.heal, tokens, limit)

    async def _off_loop(self, reply: Reply, limiter: anyio.CapacityLimiter, work: Any, *arguments: Any) -> None:
        try:
            reply.answer(await anyio.to_thread.run_sync(work, *arguments, limiter=limiter, abandon_on_cancel=True))
        except InvalidRequest as error:
            reply.fail(error)

    def encode(self, texts: tuple[str, ...], beginning: bool) -> list[bytes]:
        """Tokenize each text to int32 bytes; InvalidRequest for half a character (a lone surrogate)."""
        try:
            return self._encode(texts, beginning)
        except TypeError:  # what the library says of such a text
            for text in texts:
                verify_whole(text)
            raise

    def _encode(self, texts: tuple[str, ...], beginning: bool) -> list[bytes]:
        if self._opens and not beginning:
            return [self._encode_inside(text) for text in texts]
        if len(texts) == 1:
            encodings = [self._vocabulary.encode(texts[0], add_special_tokens=beginning)]
        else:
            encodings = self._vocabulary.encode_batch_fast(list(texts), add_special_tokens=beginning)
        return [np.asarray(self._ids(encoding.ids, beginning), np.int32).tobytes() for encoding in encodings]

    def _encode_inside(self, text: str) -> bytes:
        """Tokenize text that begins nothing, with a tokenizer that takes every text for a beginning, and spaces it."""
        opening = self._vocabulary.encode(_ANCHOR, add_special_tokens=False).ids
        ids = self._vocabulary.encode(_ANCHOR + text, add_special_tokens=False).ids
        if ids[: len(opening)] != opening:  # it merges with the anchor: then as a beginning
            return np.asarray(self._vocabulary.encode(text, add_special_tokens=False).ids, np.int32).tobytes()
        return np.asarray(ids[len(opening) :], np.int32).tobytes()

    def _ids(self, ids: list[int], beginning: bool) -> list[int]:
        # A chat template writes the beginning token itself; then the tokenizer's own is one too many.
        opening = self._beginning[0][:1]
        if beginning and opening and ids[:2] == opening * 2:
            return ids[1:]
        return ids

    def decode(self, tokens: tuple[bytes, ...], skip_special_tokens: bool) -> list[str]:
        """Turn int32 arrays into text."""
        arrays = [np.frombuffer(ids, np.int32).tolist() for ids in tokens]
        return self._vocabulary.decode_batch(arrays, skip_special_tokens=skip_special_tokens)

    def heal(self, tokens: bytes, limit: int) -> tuple[int, str]:
        """Tell how many of the last tokens to take back, and their text."""
        if self._healer is None:
            added = self._vocabulary.get_added_tokens_decoder()
            table = byte_table(self._vocabulary)
            self._healer = Healer({token: data for token, data in table.items() if token not in added and data})
        return self._healer.take_back(np.frombuffer(tokens, np.int32).tolist(), limit)
