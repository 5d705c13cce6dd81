"""Constraints on what a generation may say: proven in a process of their own, then shared by actor and worker."""

from .cache import GrammarCache
from .compiler import Grammar
from .limits import GrammarLimits, ProofLimits

__all__ = ["Grammar", "GrammarCache", "GrammarLimits", "ProofLimits"]
