"""Workloads whose requests share prompts, or go on from one another, and what is told of that."""

from __future__ import annotations

import anyio
import numpy as np
import pytest

from callboard.__main__ import main
from callboard.actors.engine import Engine
from callboard.bench.anchors import FORKS, SHARED
from callboard.commands.bench.limits import ElementBytes, Rates, decode_seconds, ideal_seconds
from callboard.commands.bench.offline import run_workload
from callboard.commands.bench.sharing import Sharing, sharing_told
from callboard.commands.bench.workload import Request, Thoughts, parse_workload
from callboard.models.config import read_config


def test_a_tree_is_read_and_written_alike_and_one_that_cannot_be_is_refused() -> None:
    assert parse_workload("5^4*1024/128") == Thoughts(5, 4, 1024, 128)
    assert all(str(parse_workload(text)) == text for text in (*SHARED.values(), *FORKS.values()))
    for text in ("0^2*8/4", "2^0*8/4", "2^2*0/4", "2^2*8/1", "9^9*8/4"):
        with pytest.raises(ValueError, match=r"a tree has 1 branch or more, .* at most 4,096 leaves"):
            parse_workload(text)


def test_a_request_of_a_tree_stands_behind_all_above_it() -> None:
    requests = Thoughts(3, 2, 50, 8).requests(1000)
    assert [request.parent for request in requests] == [None] * 3 + [0] * 3 + [1] * 3 + [2] * 3
    assert {request.inputs for request in requests[:3]} == {51}
    assert {request.inputs for request in requests[3:]} == {51 + 7 + 1}
    assert {request.own for request in requests} == {1}
    assert {request.outputs for request in requests} == {7}
    assert len({request.prompt for request in requests[3:6]}) == 3, "siblings differ"
    assert Thoughts(5, 4, 1024, 128).requests(1000)[-1].before == 1024 + 3 * 128
    assert len(Thoughts(5, 4, 1024, 128).requests(1000)) == 5 + 25 + 125 + 625


def test_a_trees_limit_reads_what_stands_above_once() -> None:
    config = read_config(Engine("embedded").folder)
    rates = Rates(copy=1e9, matmul=float("inf"))
    found = ideal_seconds(config, ElementBytes(4, 4), Thoughts(2, 2, 10, 3).requests(100), rates)
    # Two tokens a request, the first with its prompt: one decode step a level.  Above the second level stand the
    # root and two nodes of 3; each row has its given token and the one it writes.
    steps = (10 + 2 * 2, 10 + 2 * 3 + 4 * 2)
    assert found == pytest.approx(sum(decode_seconds(config, ElementBytes(4, 4), tokens, rates) for tokens in steps))
    alone = [Request(bytes(4 * 10), 3), Request(bytes(4 * 20), 2)]
    steps = (10 + 1 + 20 + 1, 10 + 2)
    found = ideal_seconds(config, ElementBytes(4, 4), alone, rates)
    assert found == pytest.approx(sum(decode_seconds(config, ElementBytes(4, 4), tokens, rates) for tokens in steps))


def test_a_smaller_cache_is_read_sooner_and_weights_as_ever() -> None:
    config = read_config(Engine("embedded").folder)
    rates = Rates(copy=1e9, matmul=1.0)
    wide, narrow = (
        [decode_seconds(config, ElementBytes(4, cached), tokens, rates) for tokens in (0, 100)] for cached in (4, 1)
    )
    assert wide[0] == narrow[0]
    assert wide[1] - wide[0] == pytest.approx(4 * (narrow[1] - narrow[0]))


@pytest.mark.anyio
async def test_a_tree_runs_level_by_level_and_its_prompts_are_computed_once() -> None:
    with anyio.fail_after(60):
        async with Engine("embedded", threads=1, max_rows=8) as engine:
            requests = Thoughts(2, 3, 40, 5).requests(engine.limits.vocabulary)
            done = await run_workload(engine, requests)
            assert done.requests == 14
            assert done.outputs == 14 * 4
            whole = 40 + 2 * 5 + 4 * 5 + 8 * 5  # every token of the tree once
            assert done.inputs - done.sharing.cached_tokens <= whole
            said = sharing_told(done.sharing.figures())
            assert "of prompt tokens saved" in said
            assert "KV" not in said, "a CPU's rows read each for itself"
            assert "groups" not in said
            alone = await run_workload(engine, [Request(np.arange(9, dtype=np.int32).tobytes(), 2)])
            assert sharing_told(alone.sharing.figures()) == ""


def test_what_was_shared_is_told_in_a_line() -> None:
    before = {
        "scheduler": {
            "requests": 10, "prompt_tokens": 1000, "cached_tokens": 0, "groups": 1, "group_members": 2,
            "largest_group": 0, "leases": 0, "slots_leased": 0,
        },
        "worker": {"kv_bytes_read": 0, "kv_bytes_unshared": 0},
    }  # fmt: skip
    after = {
        "scheduler": {
            "requests": 30, "prompt_tokens": 3000, "cached_tokens": 1500, "groups": 5, "group_members": 26,
            "largest_group": 8, "leases": 3, "slots_leased": 4000,
        },
        "worker": {"kv_bytes_read": 2_500_000_000, "kv_bytes_unshared": 10_000_000_000},
    }  # fmt: skip
    figures = Sharing.between(before, after).figures()
    assert figures["prompts_saved"] == 15
    assert sharing_told(figures) == (
        "75% of prompt tokens saved (15.0 prompts); KV read 2.5 GB instead of 10 GB, 4.0x less; "
        "groups of 6.0 rows, at most 8; 3 leases of 4,000 slots"
    )
    silent = Sharing.between(before, before).figures()
    assert silent["kv_bytes_read"] is None, "this device does not count"
    assert sharing_told(silent) == ""


def test_a_tree_cannot_be_sent_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--workload", "2^2*8/4"]) == 2
    assert "a tree is measured in process" in capsys.readouterr().err
