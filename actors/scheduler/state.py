"""What the scheduler knows, and the ways in which a request comes and goes."""

from __future__ import annotations

from collections import deque
from itertools import count

import msgspec
import numpy as np
import numpy.typing as npt

from ..messages import Finished, FinishReason, Flushed, Generate, Paused
from ..recorded import Recorded
from .assembly import Assemblies
from .counters import Counters
from .eager import Ahead, Eager
from .estimate import OutputEstimate
from .fair_share import FairShare
from .groups import Groups
from .leases import Leases
from .memory import Memory
from .news import News
from .options import SchedulerOptions
from .request import Request
from .rows import Rows

__all__ = ["Flight", "State"]


class Flight(msgspec.Struct):
    """A step that was sent and is not done.

    sampled: the rows it samples, first those of `begun`, which sample their first token; packed: the same, int32.
    filled: its rows that were only to be prefilled and are with this step.
    """

    number: int
    sampled: npt.NDArray[np.int64]
    packed: bytes
    begun: list[int]
    filled: list[int]


class State:
    """Waiting, running and leaving requests, their memory, and the steps in flight.

    leaving: rows that are over but still in flight.  retired: rows the worker is to forget with the next step.
    prefilling: rows whose tokens are not all sent, those with forced ones first, prompts in order of admission; also
    ended ones that a join waits for.
    surplus: the last step with a token that nobody wants of a row that goes on.  settled: the last step that is done;
    settling: the one whose end is being taken in, and else the same.
    recorded: the requests that somebody records.
    """

    def __init__(self, options: SchedulerOptions, first_step: int, recorded: Recorded | None = None) -> None:
        options.verify()
        self.recorded = Recorded() if recorded is None else recorded
        self.options = options
        self.memory = Memory(options.slots)
        self.rows = Rows(options.rows)
        self.queue = FairShare(options, self.memory.tree)
        self.memory.before_evicting = self.queue.lease
        self.assemblies = Assemblies(self.memory.tree, self.rows)
        self.leases = Leases(self.memory.tree, options.slots * 3 // 4)
        self.eager = Eager()
        self.estimate = OutputEstimate(options)
        self.groups = Groups(options.groups if options.share_attention else None, self.memory.tree, self.rows)
        self.news = News()
        self.counters = Counters()
        self.live: dict[int, Request] = {}
        self.flights: deque[Flight] = deque()
        self.prefilling: list[int] = []
        self.leaving: list[int] = []
        self.retired: list[int] = []
        self.next_step = first_step
        self.settled = self.settling = self.surplus = first_step - 1
        self._arrivals = count()

    # --- requests come ---------------------------------------------------------------------------------------------

    def admit(self, message: Generate) -> None:
        """Let a request wait for its turn, or end it at once if there is nothing to run.

        A request that is live already is the same one sent twice (around a restart) and is ignored.
        """
        self.release(message.released)
        if message.request in self.live:
            return
        if message.lease:
            self.resume(message.lease)
            self.leases.open(message.lease)
        try:
            request = Request(message, next(self._arrivals), self.next_step)
        except ValueError as error:
            self.news.finished.append(Finished(message.request, "error", message=f"joins: {error}"))
            return
        self.live[request.number] = request
        self.counters.requests += 1
        if self.recorded.tracks:
            self.recorded.phase(request.number, "queued")  # again, if the scheduler was restarted
        total = self.memory.total
        if request.prompt_tokens + request.max_new_tokens + request.joined > total:
            request.joining = False  # it has to do without the slot of its last token
        if not request.prompt_tokens or len(request.prompt) % 4:
            self.finish(request, "error", message=f"prompt: {len(request.prompt)} bytes are no int32 tokens")
        elif request.joined and (refusal := request.refusal if self.options.prefix_cache else "joins: no cache"):
            self.finish(request, "error", message=refusal)
        elif request.prompt_tokens + max(request.max_new_tokens, request.joined) > total:
            self.finish(
                request,
                "error",
                message=f"{request.prompt_tokens} prompt tokens and max_new_tokens {request.max_new_tokens} "
                f"need more than the {total} slots there are",
            )
        elif request.output and (last := int(np.frombuffer(request.output, np.int32)[-1])) in request.stops:
            self.finish(request, "stop", matched=last, drop=1)
        elif request.outputs and request.outputs >= request.max_new_tokens:
            self.finish(request, "length")
        else:
            self.queue.append(request)
            if not self.rows.free:  # it waits for sure
                self.queue.lease()

    def release(self, programs: tuple[int, ...]) -> None:
        """Keep nothing for programs any more; unknown ones are ignored."""
        for program in programs:
            self.leases.release(program)
            self.eager.release(program)
        self.queue.release(programs)

    def pause(self, message: Paused) -> None:
        """Know that a program waits on the outside world, and what it will need."""
        self.leases.pause(message.program)
        if self.options.prefix_cache and self.options.eager_tokens:
            self.eager.foresee(Ahead(message.program, message.tokens, message.namespace, message.joins))

    def resume(self, program: int) -> None:
        """Know that it waits no more; unknown programs are ignored."""
        self.leases.resume(program)
        self.eager.withdraw(program)

    def forward(self, row: int, step: int) -> None:
        """Let a row go on behind tokens it did not sample, as `step` tells; what later steps sample of it is surplus.

        A step on its way has the row's last sampled token in it, and no further one: [0, length) is right as it is.
        """
        rows = self.rows
        known = int(rows.prompt[row] + rows.outputs[row])
        if rows.last_step[row] > step:
            rows.surplus[row] = int(rows.last_step[row])
            self.surplus = max(self.surplus, int(rows.last_step[row]))
        if not rows.leaving[row]:
            rows.decoding[row] = False
            rows.target[row] = known
            self.prefilling.insert(0, row)

    # --- requests go -----------------------------------------------------------------------------------------------

    def abort(self, number: int, message: str = "") -> None:
        """End a live request early; any other is ignored."""
        if (request := self.live.get(number)) is not None:
            self.finish(request, "abort", message=message)

    def abort_all(self) -> None:
        """End every live request."""
        self.eager.clear()
        for number in tuple(self.live):
            self.abort(number)

    def stop(self, number: int) -> None:
        """Retire a request that has its terminal event already; one that is not live is ignored."""
        if (request := self.live.pop(number, None)) is not None:
            self._end(request)

    def reconcile(self, numbers: tuple[int, ...]) -> None:
        """End those that are not live: their ends were told, and lost on the way."""
        message = "its end was lost when the detokenizer restarted"
        self.news.finished += [
            Finished(number, "error", message=message) for number in numbers if number not in self.live
        ]

    def finish(
        self, request: Request, reason: FinishReason, *, matched: int | None = None, message: str = "", drop: int = 0
    ) -> None:
        """Give a request its terminal event and retire it."""
        del self.live[request.number]
        if request.whole is not None:  # nobody has asked for it
            self._end(request)
            return
        outputs = int(self.rows.outputs[request.row]) if request.row >= 0 else request.outputs
        self.news.finished.append(
            Finished(
                request.number, reason, matched, message, max(request.cached, 0), outputs, request.retractions, drop
            )
        )
        reach = 0
        if reason in {"stop", "length"}:
            self.estimate.finished(outputs, request.max_new_tokens)
            reach = request.prompt_tokens + outputs - drop if request.joining else 0
        request.failed = reason == "error"
        self._end(request, reach)

    def _end(self, request: Request, reach: int = 0) -> None:
        """Retire a request; reach: how many of its tokens a join waits for."""
        if request.whole is not None:
            self.assemblies.over(request)
        if request.joined:
            self.disband(request)
        if (row := request.row) >= 0:
            self.rows.ended[row] = True
            if self.rows.length[row] < reach and not self.rows.leaving[row]:
                self._write_on(row, reach)
            else:
                self.leave(row)
        elif request in self.queue:
            self.queue.remove(request)
        if request.rank >= 0:
            self.queue.ended(request)

    def _write_on(self, row: int, reach: int) -> None:
        """Let an ended row compute what is missing up to `reach`, the last it does (`Draft.extend`).

        Mostly nothing is: a step on its way writes the last token.  But none does of what a grammar has forced.
        """
        rows = self.rows
        rows.decoding[row] = False
        rows.target[row] = rows.limit[row] = rows.expected[row] = reach
        if row not in self.prefilling:
            self.prefilling.insert(0, row)

    def disband(self, request: Request) -> None:
        """Let go of the lines that wait for a joined request, and compute no more of them for it."""
        for part in self.assemblies.close(request):
            self.abort(part.number)

    def yield_lines(self, request: Request) -> None:
        """Disband what waits for a joined request for want of room: the oldest one is next, and alone."""
        self.assemblies.crowded = True
        self.disband(request)

    def crowded_out(self, request: Request) -> bool:
        """Whether a joined request's lines had better not be gathered before an older one has begun.

        Else each of several could take, whenever its turn comes, what the others have just given up.
        """
        waiting = self.live.values() if self.assemblies.crowded else ()
        return any(one.joined and one.row < 0 and one.arrival < request.arrival for one in waiting)

    def retract(self, row: int) -> None:
        """Take a running request's row from it; it keeps its output and waits ahead of all that never ran."""
        assert not self.rows.ended[row], "what is over leaves, and does not come again"
        self.counters.retractions += 1
        self.estimate.retracted()
        if self.recorded.tracks:
            self.recorded.phase(int(self.rows.number[row]), "retracted")
        self.leave(row)

    # --- rows are freed in one place -------------------------------------------------------------------------------

    def leave(self, row: int) -> None:
        """Let a row take part in no further step, and free it as soon as none is in flight."""
        rows = self.rows
        if row in self.prefilling:
            self.prefilling.remove(row)
        rows.decoding[row] = False
        rows.limit[row] = rows.expected[row] = rows.length[row]  # nothing is reserved for it any more
        if not rows.leaving[row]:
            rows.leaving[row] = True
            self.leaving.append(row)
        if rows.last_step[row] <= self.settled:
            self.release_done()
        elif rows.last_step[row] > self.settling and rows.ended[row] and self.options.prefix_cache:
            self._publish_answer(row)

    def release_done(self) -> None:
        """Free every leaving row whose last step is done."""
        done = [row for row in self.leaving if self.rows.last_step[row] <= self.settled]
        if done:
            self.leaving = [row for row in self.leaving if self.rows.last_step[row] > self.settled]
            for row in done:
                self._release(row)

    def _release(self, row: int) -> None:
        """Free a row: what is known goes into the tree, the rest into the pool; a retracted request waits again."""
        rows, memory = self.rows, self.memory
        request, node = rows.request[row], rows.node[row]
        assert request is not None
        assert node is not None
        shared, length = int(rows.shared[row]), int(rows.length[row])
        # [0, shared) the tree's  [shared, known) written, its tokens known  [known, length) surplus
        known = min(length, int(rows.prompt[row] + rows.outputs[row]))
        end = node
        if known > shared and not request.failed and self.options.prefix_cache:
            end, duplicates = memory.tree.insert(
                rows.tokens[row, shared:known].tobytes(), rows.slots[row, shared:known], node
            )
            memory.give(duplicates)
            memory.give(rows.slots[row, known:length])
        else:
            memory.give(rows.slots[row, shared:length])
        memory.give(rows.spare[row])
        self.queue.correct(request, length - request.expected)
        ended = bool(rows.ended[row])
        if request.lease and ended and not request.failed:
            self.leases.hold(request.lease, end)
        memory.tree.unlock(node)
        if request.failed:  # what it had published is in doubt too, and would fail whoever shares it next
            memory.give(memory.tree.prune(node))
        if not ended:
            request.continue_with(rows.output(row))
            self.queue.put_back(request)
        if rows.last_step[row] >= 0:  # the worker has heard of it
            self.retired.append(row)
        rows.give(row)

    # --- the cache -------------------------------------------------------------------------------------------------

    def flush(self) -> Flushed:
        """Empty the cache of everything no request holds."""
        self.eager.clear()
        freed = self.memory.flush()
        self.counters.largest_group = 0
        return Flushed(freed, self.memory.tree.tokens)

    def publish(self, row: int) -> None:
        """Put what a row has sent of its prompt into the tree, for steps behind this one to share."""
        request = self.rows.request[row]
        assert request is not None
        shared, length = int(self.rows.shared[row]), int(self.rows.length[row])
        self._publish(row, shared, length, request.tokens[4 * shared : 4 * length])

    def _publish_answer(self, row: int) -> None:
        """Put what an ended row has written into the tree at once: who goes on from it need not wait until it is freed.

        The last token is there if a step in flight writes it, which runs before any that reads it.
        """
        rows = self.rows
        request = rows.request[row]
        assert request is not None
        shared = int(rows.shared[row])
        known = min(int(rows.length[row]), int(rows.prompt[row] + rows.outputs[row]))
        if known > shared and not request.failed:
            self._publish(row, shared, known, rows.tokens[row, shared:known].tobytes())

    def _publish(self, row: int, shared: int, length: int, tokens: bytes) -> None:
        """Put a row's `tokens`, at [shared, length), into the tree.

        Where the tree knows some of it by other slots, the row keeps its own for these until it is freed: the worker
        reads them.  It then holds more than its share, so it does not publish if it could then run out of slots
        alone, nor if there is nothing new to publish.
        """
        rows, tree, node = self.rows, self.memory.tree, self.rows.node[row]
        assert node is not None
        if tokens[:4] in node.children:
            known = tree.known(tokens, below=node)
            if known == length - shared or rows.limit[row] + rows.duplicates[row] + known > self.memory.total:
                return
        below, duplicates = tree.insert(tokens, rows.slots[row, shared:length], node)
        tree.lock(below, instead=node)
        rows.node[row] = below
        rows.shared[row] = length
        if rows.agreed[row] == shared:
            differ = (rows.slots[row, shared:length] == duplicates[0]).argmax() if len(duplicates) else length - shared
            rows.agreed[row] = shared + differ
        if len(duplicates):
            rows.spare[row] = np.concatenate((rows.spare[row], duplicates))
            rows.duplicates[row] = len(rows.spare[row])

    # --- the invariant ---------------------------------------------------------------------------------------------

    def count(self) -> None:
        """Raise RuntimeError unless free + tree + private = total.  Cheap: run every step, in production too."""
        free, tree, private = self.memory.pool.free, self.memory.tree.tokens, self.rows.private()
        if free + tree + private != self.memory.total:
            raise RuntimeError(f"slots: {free} free + {tree} in the tree + {private} private != {self.memory.total}")
