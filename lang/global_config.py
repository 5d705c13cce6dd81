"""`global_config`: SGLang's name for the settings a process shares."""

from __future__ import annotations

from typing import Any

from ..actors.errors import InvalidRequest
from .house import HOUSE, House, set_default_backend

__all__ = ["GlobalConfig", "global_config"]


class GlobalConfig:
    """Tell and set what the house keeps.  It holds nothing itself: there is one place where a default backend stands.

    skip_special_tokens_in_output: False shows special tokens in what is generated.  enable_precache_with_tracing: what
    batches do that are not told (`precache`); SGLang's is True, but a trace enters the body once more, so here it is
    False until somebody sets it.  enable_parallel_encoding: whether branches are joined as they were computed,
    where a backend can; False joins them as text.
    verbosity: kept, and without effect, for what is logged is the `logging` module's business.
    spaces_between_special_tokens_in_out: always True, as the tokenizer says.
    """

    __slots__ = ("_house",)

    def __init__(self, house: House) -> None:
        self._house = house

    @property
    def default_backend(self) -> Any:
        """What programs run on unless they are given another, a Runtime as it was given.

        None: the embedded engine, once one needs it.
        """
        house = self._house
        runtime = house.runtime
        return house.default if runtime is None or runtime.endpoint is not house.default else runtime

    @default_backend.setter
    def default_backend(self, backend: Any) -> None:
        set_default_backend(backend)

    @property
    def skip_special_tokens_in_output(self) -> bool:
        """Whether special tokens are left out of what is generated."""
        return self._house.settings.skip_special_tokens

    @skip_special_tokens_in_output.setter
    def skip_special_tokens_in_output(self, value: bool) -> None:
        self._house.settings.skip_special_tokens = _flag("skip_special_tokens_in_output", value)

    @property
    def spaces_between_special_tokens_in_out(self) -> bool:
        """Whether the tokenizer's own spacing between special tokens is kept: it always is."""
        return True

    @spaces_between_special_tokens_in_out.setter
    def spaces_between_special_tokens_in_out(self, value: bool) -> None:
        if not _flag("spaces_between_special_tokens_in_out", value):
            raise InvalidRequest("spaces_between_special_tokens_in_out", "False is not supported; only True is")

    @property
    def enable_precache_with_tracing(self) -> bool:
        """Whether a batch that is not told computes what its programs begin with before they run."""
        return self._house.settings.precache

    @enable_precache_with_tracing.setter
    def enable_precache_with_tracing(self, value: bool) -> None:
        self._house.settings.precache = _flag("enable_precache_with_tracing", value)

    @property
    def enable_parallel_encoding(self) -> bool:
        """Whether a join may take over what its branches have computed."""
        return self._house.settings.parallel_encoding

    @enable_parallel_encoding.setter
    def enable_parallel_encoding(self, value: bool) -> None:
        self._house.settings.parallel_encoding = _flag("enable_parallel_encoding", value)

    @property
    def verbosity(self) -> int:
        """A number, 0 or more; without effect."""
        return self._house.settings.verbosity

    @verbosity.setter
    def verbosity(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidRequest("verbosity", f"{value!r:.80} is not a whole number, 0 or more")
        self._house.settings.verbosity = value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(name, f"{value!r:.80} is neither True nor False")
    return value


global_config = GlobalConfig(HOUSE)
"""A view of the one thing a process shares, under the name SGLang's users know."""
