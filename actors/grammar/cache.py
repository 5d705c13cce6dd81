"""Compiled constraints, kept for one model and shared by the grammar actor and the worker."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from ..errors import InvalidRequest
from ..sampling import Constraint
from .limits import GrammarLimits
from .matcher import TokenizerFile, compile_matcher, read_tokenizer
from .source import to_grammar

__all__ = ["GrammarCache"]


class GrammarCache:
    """Compile constraints to matchers and keep the latest used; safe to share between threads.

    folder: the model's; its tokenizer.json, the width of its logits and the token ids that may end a text are read on
    first use, in whichever thread that is.
    """

    def __init__(self, folder: Path, limits: GrammarLimits | None = None) -> None:
        self.limits = limits or GrammarLimits()
        self._folder = folder
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._compiled)

    def __contains__(self, constraint: Constraint) -> bool:
        return constraint in self._compiled

    @property
    def mask_words(self) -> int:
        """How many int32 words a matcher's mask has."""
        return (self._tokenizer(None).vocab_size + 31) // 32

    def matcher(self, constraint: Constraint, grammar: str | None = None) -> LLMatcher:
        """Give a fresh matcher at the constraint's start, compiling it if it is not kept.

        grammar: what `to_grammar` makes of it, if that is known.  Raises InvalidRequest with llguidance's reason.
        """
        with self._lock:
            matcher = self._compiled.get(constraint)
            if matcher is not None:
                self._compiled.move_to_end(constraint)
                return matcher.deep_copy()
        if grammar is None:
            grammar = to_grammar(constraint, self.limits.depth)
        # outside the lock: others need not wait; made twice, the second is dropped
        matcher = compile_matcher(self._tokenizer(constraint), constraint, grammar, self.limits)
        with self._lock:
            self._keep(constraint, matcher)
            return matcher.deep_copy()

    def tokenizer_file(self) -> TokenizerFile:
        """Tell what another process needs to read the same tokenizer.  It reads files: call it in a thread."""
        from ...models.config import read_config  # it imports torch, which a process that proves must not

        config = read_config(self._folder)
        return TokenizerFile(str(self._folder / "tokenizer.json"), config.vocabulary, tuple(config.eos_ids))

    def _tokenizer(self, constraint: Constraint | None) -> LLTokenizer:
        with self._lock:
            if self._tokens is None:
                try:
                    self._tokens = read_tokenizer(self.tokenizer_file())
                except ValueError as error:
                    raise InvalidRequest("grammar" if constraint is None else constraint.kind, str(error)) from error
            return self._tokens

    def _keep(self, constraint: Constraint, matcher: LLMatcher) -> None:
        if constraint not in self._compiled:
            self._bytes += constraint.size_bytes
        self._compiled[constraint] = matcher
        self._compiled.move_to_end(constraint)
        while len(self._compiled) > self.limits.entries or self._bytes > self.limits.source_bytes:
            dropped, _ = self._compiled.popitem(last=False)
            self._bytes -= dropped.size_bytes
