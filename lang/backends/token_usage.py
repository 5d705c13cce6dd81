"""What a backend's generations have read and written, in tokens, as the service counts them."""

from __future__ import annotations

from ...actors.messages import Finish

__all__ = ["TokenUsage"]


class TokenUsage:
    """Add up finished generations; what a service does not tell counts as nothing."""

    __slots__ = ("completion_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def reset(self) -> None:
        """Begin again at nothing."""
        self.prompt_tokens = self.completion_tokens = 0

    def add(self, finish: Finish) -> None:
        """Count one more generation."""
        self.prompt_tokens += finish.prompt_tokens
        self.completion_tokens += finish.completion_tokens
