"""From text to tokens and back, by the tokenizer of an engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .backend import Prompt
from .errors import InvalidRequest
from .healing import Healing
from .joins import read_line
from .messages import Decode, Encode, Heal
from .wires import Wires

__all__ = ["Texts"]


class Texts:
    """Ask an engine's tokenizer.  Tokens are int32 bytes."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires

    async def encode(self, text: str, *, beginning: bool) -> bytes:
        """Tokenize a text; `beginning` lets the tokenizer put its own first token there."""
        return (await self.encode_all((text,), beginning=beginning))[0]

    async def encode_all(self, texts: Sequence[str], *, beginning: bool) -> list[bytes]:
        """Tokenize texts, each by itself."""
        return await self._wires.tokenizer.ask(Encode(tuple(texts), beginning))

    async def decode(self, tokens: bytes | Sequence[int], *, skip_special_tokens: bool) -> str:
        """Turn token ids into text."""
        return (await self.decode_all((tokens,), skip_special_tokens=skip_special_tokens))[0]

    async def decode_all(
        self, arrays: Sequence[bytes | Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Turn several lines of token ids into texts."""
        packed = tuple(each if isinstance(each, bytes) else np.asarray(each, np.int32).tobytes() for each in arrays)
        return await self._wires.tokenizer.ask(Decode(packed, skip_special_tokens))

    async def read(self, prompt: Prompt | str | bytes | Sequence[int], vocabulary: int) -> bytes:
        """Give a prompt's tokens.  Raises InvalidRequest for what are no ids of a vocabulary of this size."""
        if isinstance(prompt, str):
            return await self.encode(prompt, beginning=True)
        if isinstance(prompt, Prompt):
            tail = await self.encode(prompt.tail, beginning=not prompt.tokens) if prompt.tail else b""
            return prompt.tokens + tail
        try:
            ids = np.frombuffer(prompt, np.int32) if isinstance(prompt, bytes) else np.asarray(prompt)
        except ValueError as error:
            raise InvalidRequest("prompt", f"not a sequence of token ids: {error}") from None
        if ids.size and ids.dtype.kind not in "iu":
            raise InvalidRequest("prompt", f"not a sequence of token ids: {prompt!r:.80}")
        if ids.ndim != 1 or (ids.size and not _are_below(ids, vocabulary)):
            raise InvalidRequest("prompt", f"token ids must lie in 0 to {vocabulary - 1}, in one list")
        return prompt if isinstance(prompt, bytes) else ids.astype(np.int32).tobytes()

    async def single_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        """Find those of these texts that are one token each."""
        packed = await self.encode_all(texts, beginning=False) if texts else []
        ids = {text: np.frombuffer(found, np.int32) for text, found in zip(texts, packed, strict=True)}
        return {text: int(found[0]) for text, found in ids.items() if len(found) == 1}

    async def heal(self, prompt: Prompt | str | bytes | Sequence[int], tokens: bytes) -> Healing | None:
        """Decide which of a prompt's last tokens to take back: of a program's, those of constant text."""
        limit = len(tokens) // 4
        if isinstance(prompt, Prompt):
            limit += prompt.fresh - len(prompt.tokens) // 4
            if prompt.joins:  # one is left, that sees all before it
                limit = min(limit, len(read_line(tokens, prompt.joins).tokens) // 4 - 1)
                if limit < 1:
                    return None
        taken, begin = await self._wires.tokenizer.ask(Heal(tokens, limit))
        return Healing(taken, begin, self.decode_all) if taken else None


def _are_below(ids: npt.NDArray[np.integer], bound: int) -> bool:
    """Tell whether all ids are at least 0 and below a bound."""
    if ids.dtype == np.int32:  # one look will do: without signs, what is below 0 is beyond every vocabulary
        ids = ids.view(np.uint32)
    elif ids[ids.argmin()] < 0:
        return False
    return bool(ids[ids.argmax()] < bound)  # several times as quick as `max`
