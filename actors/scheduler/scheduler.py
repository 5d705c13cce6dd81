"""The scheduler's actor: its mailbox, drained once a step, and the steps it keeps in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio

from ..core import Actor, Inbox, MailboxFull, Ref, Reply
from ..messages import (
    Abort,
    AbortAll,
    CoreStarted,
    CoreStopped,
    Flush,
    Generate,
    Paused,
    Reconcile,
    Released,
    Reset,
    Resumed,
    SchedulerStatistics,
    StepDone,
    Stopped,
    ToDetokenizer,
    ToDispatcher,
    ToScheduler,
    ToWorker,
)
from ..recorded import Recorded
from .options import SchedulerOptions
from .planner import Planner
from .settle import settle
from .state import State

__all__ = ["Scheduler"]

Mail = list[tuple[ToScheduler, Reply | None]]

_TURNS = 16  # of the loop, in which requests of one instant come: a dispatcher passes on 256 in each
_PATIENCE_S = 0.01  # between two looks at the mailbox while the detokenizer has no room


class Scheduler(Actor[ToScheduler]):
    """Own the slots, the radix tree and the running rows; send steps, take in what they sampled.

    It starts with empty hands: it tells the worker to forget every row, and the dispatcher to send live requests again.
    clock: seconds, for the statistics.  first_step: the number of its first step; by default one that no earlier
    scheduler can have used, so that a worker's late word to that one is not taken for an answer to this one.
    recorded: the requests to tell a timeline of.
    """

    def __init__(
        self,
        options: SchedulerOptions,
        worker: Ref[ToWorker],
        detokenizer: Ref[ToDetokenizer],
        dispatcher: Ref[ToDispatcher] | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        first_step: int | None = None,
        recorded: Recorded | None = None,
    ) -> None:
        first_step = time.time_ns() // 1000 if first_step is None else first_step
        self._recorded = recorded = Recorded() if recorded is None else recorded
        self.state = State(options, first_step, recorded)
        self._planner = Planner(self.state)
        self._worker = worker
        self._detokenizer = detokenizer
        self._dispatcher = dispatcher
        self._clock = clock

    async def __aenter__(self) -> Self:
        self._worker.post(Reset())
        self._recorded.forget_steps()
        if self._dispatcher is not None:
            self._dispatcher.post(CoreStarted(self.state.options.replica))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        others = self.state.options.replicas > 1  # else there is nobody to prefer meanwhile
        if others and self._dispatcher is not None and not self._dispatcher.statistics().ended:
            self._dispatcher.post(CoreStopped(self.state.options.replica))

    async def run(self, inbox: Inbox[ToScheduler]) -> None:
        """Drain the mailbox, send the next step; wait for mail if there is none to send."""
        state, in_flight = self.state, self.state.options.in_flight
        mail = inbox.drain()
        while True:
            await self._take_all(inbox, mail)
            if len(state.flights) < in_flight:
                await self._gather(inbox, mail)
            begun = self._clock()
            step = self._planner.plan() if len(state.flights) < in_flight else None
            state.count()
            state.counters.host_seconds += self._clock() - begun
            if step is not None:
                if self._recorded.tracks:
                    self._recorded.step(step)
                await self._worker.tell(step)
            await self._tell_news(inbox)
            if step is not None and len(state.flights) < in_flight:
                await asyncio.sleep(0)  # the worker takes this step up before the next one is planned
                mail = inbox.drain()
            else:
                state.memory.tree.name_roots()  # there is time now
                mail = await inbox.batch()

    async def _gather(self, inbox: Inbox[ToScheduler], mail: Mail) -> None:
        """Take in the requests that come in the same instant as others, as far as one step computes them.

        Branches that begin in one step end in one, if they are as long, and so do theirs.  For none that comes alone:
        who runs waits a few turns at most, and mostly has a step on its way meanwhile.
        """
        state, tokens = self.state, 0
        for _ in range(_TURNS):
            came = [state.live[message.request] for message in _requests(mail) if message.request in state.live]
            if len(came) < 2:
                return
            state.queue.look_up()
            tokens += sum(request.length - request.matched for request in came)
            if tokens >= state.options.chunk_tokens or len(state.queue) >= state.rows.free:
                return
            await asyncio.sleep(0)
            mail = inbox.drain()
            await self._take_all(inbox, mail)

    async def _take_all(self, inbox: Inbox[ToScheduler], mail: Mail) -> None:
        for message, reply in mail:
            self._take(message, reply)
            if isinstance(message, StepDone):
                await self._tell_news(inbox)

    def _take(self, message: ToScheduler, reply: Reply | None) -> None:
        state = self.state
        begun = self._clock()
        match message:
            case StepDone():
                if self._recorded.sent:
                    self._recorded.step_done(message.number, message.forward_s)
                settle(state, message)
            case Generate():
                state.admit(message)
            case Abort(request, reason):
                state.abort(request, reason)
            case Stopped(requests):
                for request in requests:
                    state.stop(request)
            case Paused():
                state.pause(message)
            case Resumed(program):
                state.resume(program)
            case Reconcile(requests):
                state.reconcile(requests)
            case AbortAll():
                state.abort_all()
            case Released(programs):
                state.release(programs)
            case Flush():
                flushed = state.flush()
                if reply is not None:  # else nobody wants to know
                    reply.answer(flushed)
            case SchedulerStatistics():
                assert reply is not None, "SchedulerStatistics is an ask"
                reply.answer(self.statistics())
        state.counters.host_seconds += self._clock() - begun

    async def _tell_news(self, inbox: Inbox[ToScheduler]) -> None:
        """Send what is new to the detokenizer, waiting for room there if it must.

        It goes on emptying its own mailbox meanwhile: the detokenizer may be waiting for room in it.
        """
        news = self.state.news.take(self.state.settled, self.state.options.replica)
        if news is None:
            return
        try:
            self._detokenizer.post(news)
        except MailboxFull:
            while True:
                with anyio.move_on_after(_PATIENCE_S):
                    await self._detokenizer.tell(news)
                    return
                for message, reply in inbox.drain():
                    self._take(message, reply)

    def statistics(self) -> dict[str, Any]:
        """Tell what is held now, and what has happened since the start."""
        state = self.state
        counters, memory = state.counters, state.memory
        return {
            "waiting": len(state.queue),
            "running": len(state.live) - len(state.queue),
            "rows": state.rows.max_rows,
            "rows_free": state.rows.free,
            "steps_in_flight": len(state.flights),
            "slots": memory.total,
            "slots_free": memory.pool.free,
            "slots_tree": memory.tree.tokens,
            "slots_locked": memory.tree.locked,
            "slots_leased": memory.tree.leased,
            "leases": state.leases.count,
            "programs_paused": state.leases.paused,
            "slots_private": state.rows.private(),
            "requests": counters.requests,
            "steps": counters.steps,
            "prompt_tokens": counters.prompt_tokens,
            "cached_tokens": counters.cached_tokens,
            "hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
            "computed_tokens": counters.computed_tokens,
            "eager_tokens": state.eager.computed,
            "eager_tokens_used": state.eager.used,
            "prompts_saved": counters.prompts_saved,
            "output_tokens": counters.output_tokens,
            "decode_kv_tokens": counters.decode_kv_tokens,
            "decode_kv_tokens_read": counters.decode_kv_tokens - counters.saved_kv_tokens,
            "grouped_steps": counters.grouped_steps,
            "groups": counters.groups,
            "group_members": counters.group_members,
            "largest_group": counters.largest_group,
            "mean_group_size": counters.group_members / max(1, counters.groups),
            "surplus_tokens": counters.surplus_tokens,
            "forced_tokens": counters.forced_tokens,
            "retractions": counters.retractions,
            "evicted_tokens": memory.tree.evicted,
            "output_share": state.estimate.share,
            "host_seconds": counters.host_seconds,
            "host_seconds_a_step": counters.host_seconds / max(1, counters.steps),
        }


def _requests(mail: Mail) -> list[Generate]:
    return [message for message, _ in mail if isinstance(message, Generate)]
