"""The ledger over several schedulers: what is placed where, and who is told of what becomes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np
import pytest

from callboard.actors.core import Message, Ref, Supervisor
from callboard.actors.dispatcher import Dispatcher, DispatcherOptions
from callboard.actors.errors import Aborted, GenerationFailed, Overloaded
from callboard.actors.messages import (
    Abort,
    AbortAll,
    AbortTag,
    CoreStarted,
    CoreStopped,
    Delta,
    Deltas,
    DispatcherStatistics,
    Emptied,
    Finish,
    Generate,
    LiveRequests,
    Paused,
    Reconcile,
    Released,
    Resumed,
    Submit,
)
from callboard.actors.reader import Reader
from callboard.actors.sampling import SamplingParams
from callboard.actors.wires import Wires

from .collector import Collector, Full, until

pytestmark = pytest.mark.anyio


def prompt(number: int, tokens: int = 100) -> bytes:
    return np.arange(1000 * number, 1000 * number + tokens, dtype=np.int32).tobytes()


class Stage:
    """A dispatcher, and what each scheduler hears."""

    def __init__(self, replicas: int) -> None:
        self.wires = Wires()
        self.heard: list[list[Message]] = [[] for _ in range(replicas)]
        self.detokenizer: list[Message] = []

    async def submit(self, request: int, tokens: bytes = b"", **more: Any) -> Reader:
        reader = Reader(request)
        sampling = SamplingParams(max_new_tokens=more.pop("outputs", 10))
        more.setdefault("lease", more.get("program", 0))
        await self.wires.dispatcher.ask(Submit(request, tokens or prompt(request), sampling, reader, **more))
        return reader

    async def tell(self, *messages: Message) -> None:
        """Tell the dispatcher, and wait until it has heard and everybody has what it said."""
        for message in messages:
            await self.wires.dispatcher.tell(message)
        await self.wires.dispatcher.ask(DispatcherStatistics())
        await until(lambda: not any(ref.statistics().queued for ref in self.wires.schedulers))

    async def told(self) -> list[dict[str, Any]]:
        return (await self.wires.dispatcher.ask(DispatcherStatistics()))["replicas"]

    def where(self, request: int) -> list[int]:
        """Tell where a request was sent, as often as it was."""
        return [
            replica
            for replica, heard in enumerate(self.heard)
            for message in heard
            if isinstance(message, Generate) and message.request == request
        ]

    def of(self, *kinds: type[Message]) -> list[list[Message]]:
        """Give what each scheduler heard of some kinds."""
        return [[message for message in heard if isinstance(message, kinds)] for heard in self.heard]


@asynccontextmanager
async def stage(replicas: int = 2, **options: Any) -> AsyncIterator[Stage]:
    made = Stage(replicas)
    settings = DispatcherOptions(**({"live": 200, "context_length": 4096, "replicas": replicas} | options))
    async with Supervisor("test", restarts=10) as supervisor:
        for replica, heard in enumerate(made.heard):
            made.wires.schedulers.append(
                await supervisor.spawn(lambda heard=heard: Collector(heard), name=f"scheduler {replica}")
            )
        made.wires.detokenizer = await supervisor.spawn(lambda: Collector(made.detokenizer), name="detokenizer")
        made.wires.dispatcher = await supervisor.spawn(lambda: Dispatcher(made.wires, settings), name="dispatcher")
        yield made


async def test_each_request_goes_to_one_replica_and_branches_of_a_program_to_the_same() -> None:
    async with stage() as made:
        for program in (1, 2, 3, 4):
            for branch in range(5):
                request = 10 * program + branch
                await made.submit(request, program=program, lease=request)
        await made.tell()
        homes = {program: {made.where(10 * program + branch)[0] for branch in range(5)} for program in (1, 2, 3, 4)}
        assert all(len(homes[program]) == 1 for program in homes)
        assert sorted(home for found in homes.values() for home in found) == [0, 0, 1, 1]
        assert all(len(made.where(10 * program + branch)) == 1 for program in homes for branch in range(5))


async def test_aborts_go_where_the_request_is_and_nowhere_else() -> None:
    async with stage() as made:
        readers = [await made.submit(request, tag=f"tag {request % 2}") for request in range(4)]
        await made.tell(Abort(0, "enough"), Abort(0, "again"), AbortTag("tag 1"))
        told = [[cast("Abort", message).request for message in heard] for heard in made.of(Abort)]
        assert [sorted({made.where(request)[0] for request in heard}) for heard in told] == [[0], [1]]
        assert sorted(told[0] + told[1]) == [0, 1, 3]
        for reader in (readers[0], readers[1], readers[3]):
            with pytest.raises(Aborted):
                await anext(reader)
        assert not readers[2].over


async def test_what_a_replica_has_before_it_is_undone_however_a_request_ends() -> None:
    async with stage(replays=1) as made:
        assert await made.told() == [{"up": True, "live": 0, "tokens": 0}] * 2
        for request in range(8):
            await made.submit(request)
        assert await made.told() == [{"up": True, "live": 4, "tokens": 440}] * 2
        there = next(request for request in range(8) if made.where(request) == [1])
        await made.tell(Abort(there))
        assert (await made.told())[1] == {"up": True, "live": 3, "tokens": 330}
        rest = [request for request in range(8) if request != there]
        finish = Finish(reason="length")
        await made.tell(Deltas((rest[0], rest[1]), (Delta(finish=finish), Delta(finish=finish))))
        assert sum(one["live"] for one in await made.told()) == 5
        await made.tell(CoreStarted(0), CoreStarted(0), CoreStarted(1), CoreStarted(1))  # twice: none is tried again
        assert await made.told() == [{"up": True, "live": 0, "tokens": 0}] * 2


async def test_a_request_that_a_full_mailbox_refuses_counts_nowhere() -> None:
    async with stage() as made:
        schedulers = made.wires.schedulers
        made.wires.schedulers = [cast("Ref[Any]", Full())] * 2
        with pytest.raises(Overloaded):
            await made.submit(1, program=1, released=(5,))
        assert await made.told() == [{"up": True, "live": 0, "tokens": 0}] * 2
        made.wires.schedulers = schedulers
        await made.submit(2, program=1)
        await made.tell()
        ((sent,),) = [heard for heard in made.of(Generate) if heard]
        assert cast("Generate", sent).released == (5,)


async def test_when_one_core_comes_back_its_requests_alone_are_sent_again_and_to_itself() -> None:
    async with stage() as made:
        readers = {request: await made.submit(request) for request in range(6)}
        await made.tell()
        homes = {request: made.where(request)[0] for request in readers}
        whose = np.full(2, 3, np.int64).tobytes()
        said = np.array((7, 8), np.int32).tobytes()
        await made.tell(Deltas((3,), (Delta(text="ab", tokens=(7, 8)),), whose, said))
        await made.tell(CoreStopped(homes[3]), CoreStarted(homes[3]))
        assert {request: made.where(request) for request in readers} == {
            request: [home] * (2 if home == homes[3] else 1) for request, home in homes.items()
        }
        again = [message for message in made.of(Generate)[homes[3]] if cast("Generate", message).request == 3][1]
        assert cast("Generate", again).output == said
        assert not any(reader.over for reader in readers.values())


async def test_while_a_core_is_down_new_requests_go_elsewhere_and_its_programs_wait_for_it() -> None:
    async with stage() as made:
        await made.submit(1, program=1)
        await made.tell(CoreStopped(made.where(1)[0]))
        down = made.where(1)[0]
        for request in range(10, 20):
            await made.submit(request)
        await made.submit(2, program=1)
        await made.tell()
        assert {made.where(request)[0] for request in range(10, 20)} == {1 - down}
        assert made.where(2) == [down]
        assert [one["up"] for one in await made.told()] == [replica != down for replica in range(2)]
        await made.tell(CoreStarted(down))
        await made.submit(30)
        await made.tell()
        assert made.where(30) == [down], "the least busy"


async def test_a_request_under_which_one_core_dies_again_and_again_fails_and_the_others_go_on() -> None:
    async with stage(replays=1) as made:
        readers = [await made.submit(request) for request in range(2)]
        await made.tell(CoreStarted(0), CoreStarted(0))
        await made.tell()
        failed = made.where(0)[0]
        assert (failed, made.where(1)) == (0, [1])
        with pytest.raises(GenerationFailed, match="failed 2 times"):
            await anext(readers[0])
        assert not readers[1].over


async def test_all_schedulers_start_clean_behind_a_dispatcher_that_died() -> None:
    async with stage() as made:
        readers = [await made.submit(request) for request in range(2)]
        await made.wires.dispatcher.tell(Deltas((1,), ()))  # unequal lengths: a crash
        for reader in readers:
            with pytest.raises(GenerationFailed, match="the dispatcher ended"):
                await anext(reader)
        await until(lambda: made.of(AbortAll) == [[AbortAll()], [AbortAll()]])
        assert await made.told() == [{"up": True, "live": 0, "tokens": 0}] * 2


async def test_a_restarted_detokenizer_has_each_scheduler_asked_for_its_own_requests() -> None:
    async with stage() as made:
        for request in range(5):
            await made.submit(request)
        opened = await made.wires.dispatcher.ask(LiveRequests())
        await made.tell()
        assert sorted(one.request for one in opened) == [0, 1, 2, 3, 4]
        asked = [[cast("Reconcile", message).requests for message in heard] for heard in made.of(Reconcile)]
        assert asked == [
            [tuple(request for request in range(5) if made.where(request) == [replica])] for replica in range(2)
        ]


async def test_every_replica_is_told_of_programs_that_are_over_with_its_next_request() -> None:
    async with stage() as made:
        await made.submit(1, program=1)
        await made.submit(2, program=2)
        await made.submit(3, program=1, released=(2, 77))
        await made.submit(4, program=4, released=(78,))
        await made.tell()
        assert made.where(1) == made.where(3) != made.where(2)
        assert made.where(4) == made.where(2), "nothing of its programs is live"
        released = {
            cast("Generate", message).request: cast("Generate", message).released
            for heard in made.of(Generate)
            for message in heard
        }
        assert released == {1: (), 2: (), 3: (2, 77), 4: (2, 77, 78)}
        await made.submit(5, program=1)
        await made.tell()
        last = cast("Generate", made.of(Generate)[made.where(1)[0]][-1])
        assert (last.request, last.released) == (5, (78,))


async def test_a_replica_that_is_sent_nothing_is_told_of_many_at_once() -> None:
    async with stage() as made:
        await made.submit(1, program=1)
        for request in range(2, 200):
            await made.submit(request, program=1, released=(1000 + request,))
        await made.tell()
        home = made.where(1)[0]
        told = [cast("Released", message).programs for message in made.of(Released)[1 - home]]
        assert [len(programs) for programs in told] == [64, 64, 64]
        assert sum(told, ()) == tuple(range(1002, 1194))
        assert made.of(Released)[home] == []


async def test_a_program_s_pauses_go_where_it_is_and_those_of_unknown_ones_are_placed() -> None:
    async with stage() as made:
        await made.submit(1, program=5, lease=5)
        await made.submit(2, program=6, lease=7)
        await made.tell(Paused(7), Resumed(7), Paused(5), Resumed(5), Resumed(99))
        hints = made.of(Paused, Resumed)
        assert hints[made.where(1)[0]] == [Paused(5), Resumed(5)]
        assert hints[made.where(2)[0]] == [Paused(7), Resumed(7)]
        ahead = Paused(8, prompt(8))
        await made.tell(ahead)
        await made.submit(3, prompt(8), program=8, lease=8)
        await made.tell(Resumed(8))
        assert made.of(Paused, Resumed)[made.where(3)[0]][-2:] == [ahead, Resumed(8)]


async def test_in_emptied_caches_nothing_is_looked_for() -> None:
    async with stage() as made:
        await made.submit(1, prompt(1), outputs=1)
        await made.submit(2, prompt(1), outputs=1)
        await made.tell(Emptied())
        await made.submit(3, prompt(1), outputs=1)
        await made.tell()
        assert made.where(1) == made.where(2) != made.where(3)
