"""The text of one live request, and what of it is still to be told."""

from __future__ import annotations

import numpy as np

from .messages import Delta, Finish, Finished, Open, TokenLogprob
from .passing import Passing
from .text_stream import TextStream, TokenText

__all__ = ["Output"]


class Output(TextStream):
    """The text of one live request, and what of its tokens is still to be told.

    # tokens:   [0, sent)       the client has them
    #           [sent, seen)    `_untold`: not wholly shown yet; `_logprobs` are those of its last ones

    passing: the news of tokens that need not be fed while it is quiet: they are only counted.
    place: where it stands among those that are live.
    """

    __slots__ = ("_logprobs", "_untold", "cached_tokens", "passing", "place", "prompt_tokens")

    def __init__(self, opened: Open, text: TokenText, passing: Passing) -> None:
        super().__init__(text, opened.sampling.stop, opened.sampling.stop_regex)
        self.passing = passing
        self.place = 0
        self._untold: tuple[int, ...] = ()
        self._logprobs: tuple[TokenLogprob, ...] = ()
        self.prompt_tokens = opened.prompt_tokens
        self.cached_tokens = 0
        for token in np.frombuffer(opened.output, np.int32).tolist():
            self.feed(token)

    def take(self, token: int, logprob: TokenLogprob | None) -> Delta:
        """Feed the next token; give what is new by it."""
        self.passing.learn(token)
        text = self.feed(token)
        self._untold += (token,)
        if logprob is not None:
            self._logprobs += (logprob,)
        if self.matched is None:
            return self._news(text, None)
        finish = Finish(
            reason="stop",
            matched=self.matched,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.seen,
            kept_tokens=self.whole,
            tail=self.tail,
        )
        return self._news(text, finish)

    def close(self, end: Finished, next_logprobs: bytes) -> Delta:
        """Close an output the scheduler has ended; text that was held back comes with it."""
        text = self.finish()
        finish = Finish(
            reason=end.reason,
            matched=end.matched if self.matched is None else self.matched,
            message=end.message,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=end.cached_tokens,
            completion_tokens=end.completion_tokens,
            retractions=end.retractions,
            kept_tokens=self.whole,
            tail=self.tail,
        )
        return self._news(text, finish, next_logprobs)

    def lose(self, request: int, offset: int) -> Delta:
        """End a request that the scheduler goes on with at `offset`, further than what is known of it."""
        known = self.seen
        message = f"tokens {known} to {offset - 1} of request {request} were lost when the detokenizer restarted"
        return Delta(finish=Finish(reason="error", message=message, prompt_tokens=self.prompt_tokens))

    def _news(self, text: str, finish: Finish | None, next_logprobs: bytes = b"") -> Delta:
        """Give text, and the tokens that are wholly shown and were not sent yet, with their log-probabilities."""
        tokens, logprobs = self._untold, self._logprobs
        if self._ends:
            count = max(0, len(tokens) - len(self._ends))
            told = max(0, count - (len(tokens) - len(logprobs)))  # of those that are held the last have one
            self._untold, self._logprobs = tokens[count:], logprobs[told:]
            tokens, logprobs = tokens[:count], logprobs[:told]
        else:
            self._untold = self._logprobs = ()
        return Delta(text=text, tokens=tokens, logprobs=logprobs, next_logprobs=next_logprobs, finish=finish)
