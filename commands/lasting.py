"""What lasts as long as the process: modules, an engine, a model."""

from __future__ import annotations

import gc

__all__ = ["keep_lasting"]


def keep_lasting() -> None:
    """Keep all objects that there are out of the garbage collector's passes from now on.

    A full pass over what torch and an engine consist of takes 80 ms and more, in which nothing is served; there are
    several a minute under load.  For a process that is the engine's alone: cycles among these objects are never freed.
    """
    gc.collect()
    gc.freeze()
