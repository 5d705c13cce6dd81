"""What a process that lasts sets for itself: the garbage collector, turns of threads, open files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def printed(code: str) -> str:
    """Run code in a process of its own, and give what it prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True, timeout=60).stdout


def test_what_lasts_is_out_of_the_garbage_collectors_way_and_a_level_of_branches_brings_no_pass():
    """In a process of its own: what is frozen stays so."""
    code = (
        "import gc; from callboard.commands.lasting import keep_lasting; keep_lasting(); left = gc.get_objects();"
        "frozen = gc.get_freeze_count() > 1_000, len(left) < 100;"
        "before = gc.get_stats()[0]['collections']; kept = [[] for _ in range(40_000)];"
        "print(*frozen, gc.get_stats()[0]['collections'] == before)"
    )
    assert printed(code).split() == ["True", "True", "True"]


def test_a_process_that_keeps_what_lasts_ends_without_a_word():
    """In which triton would complain of what is not freed at the end."""
    pytest.importorskip("triton")
    code = "import triton; from callboard.commands.lasting import keep_lasting; keep_lasting()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stderr == ""


def test_threads_that_wait_for_pythons_lock_have_it_within_a_millisecond():
    """In a process of its own, for all its threads."""
    code = "import sys; from callboard.commands.lasting import take_turns; take_turns(); print(sys.getswitchinterval())"
    assert float(printed(code)) <= 1e-3


def test_a_server_may_have_as_many_files_open_as_the_system_lets_it():
    code = (
        "import resource as r; from callboard.commands.lasting import open_many\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; hard = 300 if hard == r.RLIM_INFINITY else min(hard, 300)\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (hard - 100, hard)); open_many()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE) == (hard, hard))"
    )
    assert printed(code) == "True\n"
