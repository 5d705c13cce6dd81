"""What a stream is told: the steps of a program, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..actors.reasoning import Markers
from ..actors.sampling import SamplingParams
from .choices import ChoicesMethod
from .expression import RoleBegin, RoleEnd, RoleText
from .variable import Variable

__all__ = [
    "Branches",
    "Choose",
    "Concatenate",
    "Generate",
    "ScopeClose",
    "ScopeOpen",
    "ShowImage",
    "ShowVideo",
    "Step",
]


class Generate(msgspec.Struct, frozen=True, gc=False):
    """Generate into a variable, or into each of its parts; the parameters are whole and verified.  parse: as Gen's.

    texts: whether log-probabilities come with their tokens' texts.  markers: of the reasoning that goes to `thought`,
    which has parts if `variable` has, and not into the variable.  behind: what its message says up to its last gen, and
    closed: whether that is all, where one call is to serve them together.
    """

    variable: Variable
    sampling: SamplingParams
    parse: Callable[[str], Any] | None = None
    texts: bool = False
    markers: Markers | None = None
    thought: Variable | None = None
    behind: tuple[Any, ...] = ()  # of str and Generate
    closed: bool = False


class Choose(msgspec.Struct, frozen=True, gc=False):
    """Choose among texts into a variable."""

    variable: Variable
    choices: tuple[str, ...]
    method: ChoicesMethod


class ShowImage(msgspec.Struct, frozen=True, gc=False):
    """Show an image, by its URL."""

    url: str


class ShowVideo(msgspec.Struct, frozen=True, gc=False):
    """Show frames of a video file, which is there."""

    path: str
    frames: int


class ScopeOpen(msgspec.Struct, frozen=True, gc=False):
    """From here on, what is said goes into a variable too."""

    variable: Variable


class ScopeClose(msgspec.Struct, frozen=True, gc=False):
    """The variable of a scope is complete."""

    variable: Variable


class Branches(msgspec.Struct, frozen=True, gc=False):
    """Start these branches from what has been said up to here."""

    kin: Any  # Kin, whose module imports this one


class Concatenate(msgspec.Struct, frozen=True, gc=False):
    """Say what these branches have said, one behind the other; they have come to their end.

    side_by_side: each stays as it was computed, without those before it; else all of it is computed as one text.
    """

    branches: list[Any]  # of Branch, whose module imports this one
    side_by_side: bool = False


Step = (
    str | Generate | Choose | ShowImage | ShowVideo | RoleText | RoleBegin | RoleEnd | ScopeOpen | ScopeClose | Branches
    | Concatenate
)  # fmt: skip
