"""What a backend can do; whatever else is asked of it is refused by name, before anything is sent."""

from __future__ import annotations

from typing import Literal

import msgspec

from ...actors.errors import InvalidRequest
from ...actors.sampling import SamplingParams

__all__ = ["EVERYTHING", "Capabilities"]

EVERYTHING = frozenset(SamplingParams.__struct_fields__) - {"heal", "begin", "reasoning"}
"""Every field of SamplingParams that any server of /generate knows.  Healing and constraints behind reasoning are for
those that tell of it.
"""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """sampling: the fields of SamplingParams it honours.  select: whether it scores choices.

    unconditional: whether it scores them without their prompt, too.
    begun: whether an answer may begin with the program's own text.  outside: whether text may stand outside of roles.
    prefill: whether it keeps a prefix.  stops, temperature: the most it takes, None if it has no bound of its own.
    images: whether it can be shown images; image_urls: also by their http(s) URLs.
    overruns: as Backend's.
    """

    sampling: frozenset[str]
    select: bool = False
    unconditional: bool = False
    begun: bool = True
    outside: bool = False
    prefill: bool = False
    images: bool = False
    image_urls: bool = False
    overruns: Literal["text", "message"] | None = None
    stops: int | None = None
    temperature: float | None = None
    least_tokens: int = 1

    def verify(self, sampling: SamplingParams, who: str) -> None:
        """Raise InvalidRequest naming the first field that `who` cannot honour."""
        for field, default in _DEFAULTS:
            value = getattr(sampling, field)
            if field not in self.sampling and value != default:
                able = ", ".join(sorted(self.sampling))
                raise InvalidRequest(field, f"{who} has no such setting ({value!r:.80} was given); it takes {able}")
        if self.stops is not None and len(sampling.stop) > self.stops:
            raise InvalidRequest(
                "stop", f"{who} takes at most {self.stops} strings, and {len(sampling.stop)} are given"
            )
        if self.temperature is not None and sampling.temperature > self.temperature:
            raise InvalidRequest(
                "temperature", f"{who} takes 0 to {self.temperature:g}, and {sampling.temperature:g} is given"
            )
        if sampling.max_new_tokens < self.least_tokens:
            raise InvalidRequest(
                "max_new_tokens", f"{who} generates at least {self.least_tokens}, not {sampling.max_new_tokens}"
            )

    def verify_choices(self, who: str, *, unconditional: bool) -> None:
        """Raise InvalidRequest if `who` cannot score choices, or not without their prompt."""
        if not self.select:
            raise InvalidRequest("choices", f"{who} gives no log-probabilities to choose by; use gen and read its text")
        if unconditional and not self.unconditional:
            raise InvalidRequest(
                "choices_method",
                f"{who} gives no log-probabilities of choices without their prompt; "
                "token_length_normalized and greedy_token_selection need none",
            )

    def verify_image(self, url: str, who: str) -> None:
        """Raise InvalidRequest if `who` cannot be shown this image."""
        if not self.images:
            raise InvalidRequest("image", f"{who} reads text alone")
        if not self.image_urls and not url.startswith("data:"):
            raise InvalidRequest("image", f"{who} takes images and not their URLs; give the file of {url:.80}")


_DEFAULTS = tuple(msgspec.structs.asdict(SamplingParams()).items())
