"""Token ids as text, for log-probabilities; looked up once each."""

from __future__ import annotations

from collections.abc import Iterable

from ..messages import TokenLogprob
from .service import Service

__all__ = ["TokenText"]


class TokenText:
    """Remember what each token reads as.  Bounded by the vocabulary."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._texts: dict[int, str] = {}

    async def learn(self, logprobs: Iterable[TokenLogprob]) -> None:
        """Look up every token in `logprobs`, so that `of` knows it."""
        for logprob in logprobs:
            await self.learn_ids((logprob.token, *(token for token, _ in logprob.top)))

    async def learn_ids(self, tokens: Iterable[int]) -> None:
        """Look up these tokens."""
        for token in tokens:
            if token not in self._texts:
                self._texts[token] = await self._service.decode([token])

    def of(self, token: int) -> str:
        """Give a learnt token's text; a part of a character reads as U+FFFD."""
        return self._texts[token]

    def bytes_of(self, token: int) -> list[int] | None:
        """Give a learnt token's UTF-8, or None if it is only a part of a character."""
        text = self._texts[token]
        return None if "�" in text else list(text.encode())
