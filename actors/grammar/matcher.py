"""Compile a grammar against a tokenizer, with bounds, and say in the user's words why one cannot be."""

from __future__ import annotations

from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ..errors import InvalidRequest
from ..sampling import Constraint
from .limits import GrammarLimits
from .reasoning import behind_reasoning

__all__ = ["TokenizerFile", "compile_matcher", "read_tokenizer"]


class TokenizerFile(msgspec.Struct, frozen=True):
    """A tokenizer.json, the width of the logits its tokens meet, and the ids that may end a text."""

    path: str
    vocabulary: int
    eos: tuple[int, ...]


def read_tokenizer(file: TokenizerFile) -> LLTokenizer:
    """Read a tokenizer for grammars; ValueError if llguidance cannot use it."""
    if not file.eos:
        raise ValueError("this model has no end-of-sequence token, so no constrained text could end")
    text, eos = Path(file.path).read_text(encoding="utf-8"), list(file.eos)
    try:
        return LLTokenizer(text, n_vocab=file.vocabulary, eos_token=eos)
    except ValueError:
        try:
            return LLTokenizer(text, eos_token=eos)  # more tokens than logits: the mask's surplus is cut off
        except ValueError as error:
            raise ValueError(f"this model's tokenizer cannot be used with grammars: {error}") from error


def compile_matcher(tokens: LLTokenizer, constraint: Constraint, grammar: str, limits: GrammarLimits) -> LLMatcher:
    """Compile the grammar of a constraint.  Raises InvalidRequest with llguidance's reason."""
    if constraint.reasoning is not None:
        grammar = behind_reasoning(grammar, constraint.reasoning, tokens)
    bounds = LLParserLimits(
        max_lexer_states=limits.states,
        initial_lexer_fuel=limits.compile_fuel,
        step_lexer_fuel=limits.step_fuel,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=bounds)
    if not matcher.is_error():
        matcher.compute_bitmask()  # one that nothing matches, or one too heavy, shows at the first mask
    if matcher.is_error():
        raise InvalidRequest(constraint.kind, _reason(matcher.get_error(), constraint))
    return matcher


def _reason(error: str, constraint: Constraint) -> str:
    """Cut llguidance's report down to its reason; it speaks of the grammar it wrapped around a regex."""
    error = error.split("<non-verbose/>", maxsplit=1)[0]
    reason = " ".join(error.split())
    if "NoExtension" in reason:
        reason = "no text that the tokenizer can write matches"
    elif reason.startswith("oneOf constraints are not supported"):
        reason = "oneOf is supported only where no two alternatives can match the same document; use anyOf"
    elif "Default retriever" in reason:
        reason = f"$ref {reason.split(chr(39))[1]!r} lies outside the schema, and nothing is fetched"
    elif "error:" in reason and constraint.kind != "ebnf":
        reason = reason.rsplit("error:", 1)[1].split(" 1 | start:")[0].strip()
    elif constraint.kind == "ebnf":
        reason = " ".join(error.split("\n   1 | ", maxsplit=1)[0].split())
    else:
        reason = reason.split(" 1 | start:")[0]
    return f"{constraint.source!r:.80} cannot be compiled: {reason[:400]}"
