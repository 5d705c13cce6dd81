r"""Regexes that bind a generation: compiled once, off the loop, and shared by the actor and the worker.

The automata are llguidance's.  A regex is matched whole, as by `re.fullmatch`; `.` is any character but a newline;
`\d`, `\w`, `\s` and their complements are ASCII, as in SGLang's grammar backends.  Look-around, word boundaries and
back-references are refused: no automaton has them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from ..models.config import read_config
from .core import Actor, Inbox, Reply
from .errors import InvalidRequest
from .messages import Compile, ToGrammar

__all__ = ["Grammar", "GrammarCache", "GrammarLimits"]


class GrammarLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what regexes may cost.

    entries and regex_bytes: how many compiled regexes are kept, and how long they may be together.  states: automaton
    states of one regex, each 1 to 2 kB, made as they are reached.  compile_fuel and step_fuel: work to compile one, and
    to compute one mask, in llguidance's units (about 50,000 and 14,000 a millisecond).
    """

    entries: int = 256
    regex_bytes: int = 1 << 20
    states: int = 50_000
    compile_fuel: int = 1_000_000
    step_fuel: int = 200_000


class GrammarCache:
    """Compile regexes to matchers and keep the latest used; safe to share between threads.

    folder: the model's; its tokenizer.json, the width of its logits and the token ids that may end a match are read on
    first use, in whichever thread that is.
    """

    def __init__(self, folder: Path, limits: GrammarLimits | None = None) -> None:
        self._folder = folder
        self._limits = limits or GrammarLimits()
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._compiled)

    def __contains__(self, regex: str) -> bool:
        return regex in self._compiled

    @property
    def mask_words(self) -> int:
        """How many int32 words a matcher's mask has."""
        return (self._tokenizer().vocab_size + 31) // 32

    def matcher(self, regex: str) -> LLMatcher:
        """Give a fresh matcher at the regex's start, compiling it if it is not kept.

        Raises InvalidRequest with llguidance's reason.
        """
        with self._lock:
            matcher = self._compiled.get(regex)
            if matcher is not None:
                self._compiled.move_to_end(regex)
                return matcher.deep_copy()
        matcher = self._compile(regex)  # outside the lock: others need not wait; made twice, the second is dropped
        with self._lock:
            self._keep(regex, matcher)
            return matcher.deep_copy()

    def _compile(self, regex: str) -> LLMatcher:
        if (len(regex) - len(regex.rstrip("\\"))) % 2:  # it would escape the grammar's own delimiter
            raise InvalidRequest("regex", f"{regex!r:.80} cannot be compiled: it ends in a lone backslash")
        limits = LLParserLimits(
            max_lexer_states=self._limits.states,
            initial_lexer_fuel=self._limits.compile_fuel,
            step_lexer_fuel=self._limits.step_fuel,
            verbose_errors=False,
        )
        try:
            source = LLMatcher.grammar_from_regex(regex_to_lark(regex, "dws"))
        except ValueError as error:
            raise InvalidRequest("regex", str(error)) from error
        matcher = LLMatcher(self._tokenizer(), source, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # a regex that nothing matches, or one too heavy, shows at the first mask
        if matcher.is_error():
            raise InvalidRequest("regex", _reason(matcher.get_error(), regex))
        return matcher

    def _tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._tokens is None:
                self._tokens = _read_tokenizer(self._folder)
            return self._tokens

    def _keep(self, regex: str, matcher: LLMatcher) -> None:
        if regex not in self._compiled:
            self._bytes += len(regex.encode())
        self._compiled[regex] = matcher
        self._compiled.move_to_end(regex)
        while len(self._compiled) > self._limits.entries or self._bytes > self._limits.regex_bytes:
            dropped, _ = self._compiled.popitem(last=False)
            self._bytes -= len(dropped.encode())


class Grammar(Actor[ToGrammar]):
    """Compile regexes off the loop, a few at a time; an error goes to who asked, nobody else notices."""

    def __init__(self, cache: GrammarCache, *, threads: int = 2) -> None:
        self._cache = cache
        self._limiter = anyio.CapacityLimiter(threads)

    async def run(self, inbox: Inbox[ToGrammar]) -> None:
        """Take what waits; compiles run side by side, in tasks that end with this actor."""
        async with anyio.create_task_group() as group:
            while True:
                for message, reply in await inbox.batch():
                    match message:
                        case Compile(regex) if reply is not None:
                            if regex in self._cache:
                                reply.answer(None)
                            else:
                                group.start_soon(self._compile, regex, reply)

    async def _compile(self, regex: str, reply: Reply) -> None:
        try:
            await anyio.to_thread.run_sync(self._cache.matcher, regex, limiter=self._limiter)
        except InvalidRequest as error:
            reply.fail(error)
        else:
            reply.answer(None)


def _read_tokenizer(folder: Path) -> LLTokenizer:
    config = read_config(folder)
    if not config.eos_ids:
        raise InvalidRequest("regex", "this model has no end-of-sequence token, so no match could end")
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    eos = list(config.eos_ids)
    try:
        return LLTokenizer(text, n_vocab=config.vocabulary, eos_token=eos)
    except ValueError:
        try:
            return LLTokenizer(text, eos_token=eos)  # more tokens than logits: the mask's surplus is cut off
        except ValueError as error:
            raise InvalidRequest("regex", f"this model's tokenizer cannot be used with grammars: {error}") from error


def _reason(error: str, regex: str) -> str:
    """Cut llguidance's report down to its reason; it speaks of the grammar it wrapped around the regex."""
    reason = " ".join(error.split("<non-verbose/>", maxsplit=1)[0].split())
    if "NoExtension" in reason:
        reason = "no text that the tokenizer can write matches"
    elif "error:" in reason:
        reason = reason.rsplit("error:", 1)[1].split(" 1 | start:")[0].strip()
    else:
        reason = reason.split(" 1 | start:")[0]
    return f"{regex!r:.80} cannot be compiled: {reason[:400]}"
