"""What a process that is an engine's alone does for it: its collector passes seldom, its threads take turns often, and
it may have as many connections as the system allows.
"""

from __future__ import annotations

import atexit
import gc
import resource
import sys

__all__ = ["keep_lasting", "open_many", "take_turns"]

# Some hundred branches that begin at once are 40,000 objects, none of which is garbage.
_YOUNG = 50_000
_TURN_S = 500e-6
_FILES = 65_536  # where there is no limit at all


def keep_lasting() -> None:
    """Keep all objects that there are out of the garbage collector's passes from now on, and let it pass seldom.

    A full pass over what torch and an engine consist of takes 80 ms and more, in which nothing is served; there are
    several a minute under load.  For a process that is the engine's alone: cycles among these objects are freed at its
    exit (where triton, on a GPU, would otherwise tell of leaks).
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def take_turns() -> None:
    """Let a thread that waits for Python's lock have it after half a millisecond instead of five.

    Every call of torch lets go of the lock, so while the event loop is busy the thread that launches a step would wait
    a whole turn of the loop's behind many of them.
    """
    sys.setswitchinterval(_TURN_S)


def open_many() -> None:
    """Let the process have as many files open as the system lets it, where it has been given fewer.

    Mostly that is 1,024: a quarter of the connections that a gateway serves at once, and beyond them none is accepted.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
