"""The client that serving is measured with reads what stands on the wire, and takes no error for a stream."""

from __future__ import annotations

import anyio
import pytest

from callboard.actors.engine import Engine
from callboard.commands.bench.client import Seen, message, run_round, summary
from callboard.commands.bench.workload import Request, Workload

from ..actors.gateway.serving import serving

pytestmark = pytest.mark.anyio


async def test_it_counts_every_token_of_every_stream_and_is_told_a_refusal() -> None:
    async with Engine("embedded", threads=1) as engine, serving(engine) as served:
        requests = Workload(3, (8, 16), (5, 9)).requests(engine.limits.vocabulary)
        with anyio.fail_after(60):
            seconds, seen = await run_round(served.url, [message(request, 0.0) for request in requests])
        assert sorted(each.outputs for each in seen) == sorted(request.outputs for request in requests)
        for each in seen:
            assert 0 < each.arrivals[0] <= each.arrivals[-1] <= seconds
        beyond = Request((1 << 20).to_bytes(4, "little"), 4)
        with anyio.fail_after(60), pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match=r"400.*prompt")):
            await run_round(served.url, [message(beyond, 0.0)])


def test_waits_are_told_from_when_writes_came() -> None:
    seen = [Seen([1.0, 1.1, 1.2, 1.5], events=4, outputs=6), Seen([3.0], events=2, outputs=1)]
    told = summary(4.0, seen)
    assert (told["seconds"], told["outputs"]) == (4.0, 7)
    assert told["first_token_s_p50"] == pytest.approx(2.0)
    assert told["between_ms_p50"] == pytest.approx(100.0)
    assert told["a_token_ms_p50"] == pytest.approx(100.0), "of the only request with more than one token"
    assert told["events_a_token"] == pytest.approx(6 / 7)
