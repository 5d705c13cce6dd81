"""What goes into the next step."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from ..messages import Extend, Generate, Step
from ..sampling import SamplingParams
from .assembly import known_lines
from .node import Node
from .request import Request
from .slot_pool import Slots
from .state import Flight, State

__all__ = ["Planner"]

_FILL = SamplingParams(max_new_tokens=0)

# Rows with a grammar are not sent ahead while they are forced once in so many tokens, or more often.  A JSON document
# is at every seventh; a pause costs about a tenth of a small model's step.
_OFTEN = 16


class Planner:
    """Compose steps: decode every row that can, then go on with prompts, then admit.

    Decode rows cost one token each of `chunk_tokens`, prompts share the rest (at least a quarter of it), older ones
    first, in chunks if they are longer.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._extends: list[Extend] = []
        self._computing: list[Request] = []
        self._begun: list[int] = []
        self._filled: list[int] = []
        self._soon: list[Request] = []
        self._yields = 0  # joined requests that have yielded since something ran

    def plan(self) -> Step | None:
        """Decide one step and count it as in flight, or give None if nothing can run now."""
        while True:
            step = self._compose()
            if step is not None or self._state.flights or not self._unlock():
                return step

    def _compose(self) -> Step | None:
        state, options = self._state, self._state.options
        self._extends, self._computing, self._begun, self._filled = [], [], [], []
        self._soon.clear()
        decode_rows, decode_slots = self._decode()
        budget = max(options.chunk_tokens - len(decode_rows), options.chunk_tokens // 4, 1)
        for row in tuple(state.prefilling):
            budget -= self._extend(row, budget)
        budget = self._admit(budget)
        if self._soon:
            self._join(budget)
        if not (self._extends or len(decode_rows)):
            self._foresee()
        if not (self._extends or len(decode_rows)):
            return None
        self._yields = 0
        self._publish()
        number = state.next_step
        state.next_step += 1
        state.counters.steps += 1
        decoding = decode_rows.astype(np.int32).tobytes()
        groups = self._group(decoding, decode_rows)
        beginning = np.array(self._begun, np.int32).tobytes() if self._begun else b""
        sampled = np.concatenate((self._begun, decode_rows), dtype=np.int64) if self._begun else decode_rows
        state.flights.append(Flight(number, sampled, beginning + decoding, self._begun, self._filled))
        retired, state.retired = state.retired, []
        return Step(
            number,
            tuple(self._extends),
            decoding,
            decode_slots.tobytes(),
            np.array(retired, np.int32).tobytes() if retired else b"",
            groups,
            state.groups.describe_extends(self._extends) if len(self._extends) > 1 else b"",
        )

    def _publish(self) -> None:
        """Put what this step computes of prompts into the tree, for those that read it later."""
        if self._state.options.prefix_cache:
            for request in self._computing:
                self._state.publish(request.row)

    def _group(self, decoding: bytes, decode_rows: npt.NDArray[np.int64]) -> bytes:
        """Describe which of the rows that decode attend together, and count what that saves."""
        state = self._state
        counters, groups = state.counters, state.groups
        packed = groups.describe(decoding, decode_rows)
        counters.decode_kv_tokens += groups.attended
        if packed:
            counters.saved_kv_tokens += groups.saved
            counters.grouped_steps += 1
            counters.groups += groups.count
            counters.group_members += groups.members
            counters.largest_group = max(counters.largest_group, groups.largest)
        return packed

    # --- decode ----------------------------------------------------------------------------------------------------

    def _decode(self) -> tuple[npt.NDArray[np.int64], Slots]:
        """Give a slot to every row that decodes; if there are too few, to the oldest, and retract the youngest."""
        state = self._state
        rows, memory = state.rows, state.memory
        chosen = self._ready()
        if len(chosen) > memory.pool.free and len(chosen) > memory.room:
            self._retract()
            chosen = self._ready()
            if len(chosen) > memory.room:
                chosen = np.sort(chosen[np.argsort(rows.arrival[chosen])][: memory.room])
        slots = memory.take(len(chosen))
        if len(chosen):
            length = rows.length[chosen]
            rows.slots[chosen, length] = slots
            length += 1
            rows.length[chosen] = length
            rows.last_step[chosen] = state.next_step
            rows.decoding[chosen] = length < rows.limit[chosen]
        return chosen, slots

    def _ready(self) -> npt.NDArray[np.int64]:
        """Name the rows that decode in this step."""
        state = self._state
        chosen = state.rows.decoding.nonzero()[0]
        return self._hold_back(chosen) if state.flights and state.rows.bound[chosen].any() else chosen

    def _hold_back(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Leave out, of rows that decode, some with a grammar that a step in flight may send on another way.

        One that has two steps in flight: what is forced behind the first one's token could find a later one written in
        its place.  And all of them, if they are often forced and a step would have nothing but them: it would be
        surplus too often to be worth more than the pause without it.
        """
        state = self._state
        rows = state.rows
        bound = rows.bound[chosen]
        waits = state.prefilling or (len(state.queue) and rows.free)
        if bound.all() and not waits:
            stretches, outputs = int(rows.stretches[chosen].sum()), int(rows.outputs[chosen].sum())
            if stretches * _OFTEN >= outputs:
                return chosen[:0]
        return chosen[~bound | (rows.length[chosen] <= rows.prompt[chosen] + rows.outputs[chosen])]

    # --- prompts ---------------------------------------------------------------------------------------------------

    def _extend(self, row: int, budget: int) -> int:
        """Compute the next chunk of a row's tokens, as far as the budget and the slots reach; tell its size."""
        state = self._state
        rows, memory = state.rows, state.memory
        request = rows.request[row]
        assert request is not None
        start, target = int(rows.length[row]), int(rows.target[row])
        size = min(target - start, budget, memory.room)
        if size <= 0:
            return 0
        end = start + size
        slots = memory.take(size)
        first = rows.last_step[row] < 0
        if first and state.recorded.tracks:
            state.recorded.phase(request.number, "prefill")
        complete = end == target
        sample = complete and request.max_new_tokens > 0
        targets_start, targets = _targets(request, start, end)
        self._extends.append(
            Extend(
                row,
                start,
                rows.tokens[row, start:end].tobytes(),
                slots.tobytes(),
                sample,
                request.begin() if first else None,
                rows.slots[row, :start].tobytes() if first else b"",
                targets,
                targets_start,
                complete and request.next_logprobs,
                request.positions(start, end),
            )
        )
        if start < request.base:  # the tree's token before its own line, read once more for its logits
            rows.shared[row], rows.spare[row], rows.duplicates[row] = request.base, slots[:1], 1
        if start < request.length:  # what is forced behind it is the row's own
            self._computing.append(request)
        rows.slots[row, start:end] = slots
        rows.length[row] = end
        rows.last_step[row] = state.next_step
        state.counters.computed_tokens += size
        if complete:
            state.prefilling.remove(row)
            if sample:
                rows.decoding[row] = end < rows.limit[row]
                self._begun.append(row)
            else:
                self._filled.append(row)
        return size

    # --- admission -------------------------------------------------------------------------------------------------

    def _admit(self, budget: int) -> int:
        """Begin waiting requests, the preferred first, until tokens, rows or slots run out; give the tokens left.

        A request that does not fit ends it: nothing overtakes it for being smaller.
        """
        state = self._state
        held = False
        while budget > 0 and state.rows.free and len(state.queue) and not held:
            for request in state.queue.candidates(state.next_step):
                if budget <= 0 or not state.rows.free:
                    return budget
                if request.joined and (outcome := self._assemble(request)) != "ready":
                    if outcome == "full":
                        return budget
                    if outcome == "begun":  # its parts are next
                        held = False
                        break
                    held = True
                    continue
                used = self._begin(request, budget)
                if used < 0:
                    return budget
                held |= not used
                budget -= used
        return budget

    def _begin(self, request: Request, budget: int) -> int:
        """Begin a request; give how many tokens it takes, 0 if it had better wait, -1 if there is no room for it."""
        state = self._state
        node, cached = self._find(request)
        if self._shares_soon(request, cached):
            state.memory.tree.unlock(node)
            return 0
        expected = request.length if request.whole is not None else self._fits(request, cached)
        if expected < 0:
            state.memory.tree.unlock(node)
            return -1
        if request.whole is not None:
            state.assemblies.began(request, request.length - cached)
        request.expected = expected
        state.queue.admitted(request, expected - cached)
        if request.joined:
            state.disband(request)
        row = state.rows.take(request, node, state.memory.tree.slots(node)[:cached], expected)
        state.prefilling.append(row)
        if request.whole is None and request.cached < 0:
            request.cached = min(cached, request.prompt_tokens)
            state.counters.prompt_tokens += request.prompt_tokens
            state.counters.cached_tokens += request.cached
            if request.lease:
                state.eager.began(request.lease, request.cached)
        return self._extend(row, budget)

    def _shares_soon(self, request: Request, cached: int) -> bool:
        """Tell whether the step at hand computes a good deal more of this request's prefix than the cache has.

        It cannot read it within the step, so it waits for the next one.
        """
        reach = cached + self._state.options.share_tokens
        if reach > request.match_limit or not self._computing or not self._state.options.prefix_cache:
            return False
        head, namespace = request.tokens[: 4 * reach], request.namespace
        return any(other.tokens.startswith(head) and other.namespace == namespace for other in self._computing)

    def _fits(self, request: Request, cached: int) -> int:
        """Reserve: give the length to expect of a request, or -1 if others have been promised the room it needs."""
        state = self._state
        rows, estimate = state.rows, state.estimate
        limit = request.most_slots
        expected = min(limit, max(request.length, request.prompt_tokens + estimate.expect(request.max_new_tokens)))
        need = min(limit - cached, max(expected - cached, state.options.reserve_least))
        promised = estimate.promised(rows.expected, rows.limit, rows.length) + state.assemblies.promised(but=request)
        return expected if need + promised <= state.memory.room else -1

    # --- joins -----------------------------------------------------------------------------------------------------

    def _find(self, request: Request) -> tuple[Node, int]:
        """Find, and lock, what the cache has of a request; of a joined one, whose lines it holds."""
        state = self._state
        if request.joined:
            return state.assemblies.find(request)
        node, cached = state.memory.tree.match(request.tokens, request.match_limit, request.home)
        state.memory.tree.lock(node)
        return node, cached

    def _assemble(self, request: Request) -> Literal["ready", "waits", "begun", "full"]:
        """Look after the lines that stand before a joined request: ready if it holds them all.

        If some are missing, parts are made of them, which go ahead of it; it waits for these, and for those that are
        made for others.  If there is no room, nobody begins.
        """
        state, assemblies = self._state, self._state.assemblies
        if (parts := assemblies.parts(request)) and all(self._completes(part) for part in parts):
            self._soon.append(request)
            return "waits"
        missing = assemblies.gather(request)
        if not missing:
            return "ready"
        lines = [(line, assemblies.part(request, line)) for line in missing]
        lacking = [line for line, part in lines if part is None]
        is_open = assemblies.is_open(request)
        if request.whole is not None or not lacking or (len(lacking) < len(missing) and not is_open):
            if all(part is not None and self._completes(part) for _, part in lines):
                self._soon.append(request)
            if not is_open:
                assemblies.let_go(request)
            return "waits"
        fresh = request.matched_version == state.memory.tree.version
        known = request.matched if fresh else known_lines(state.memory.tree, request)[0]
        expected = self._fits(request, known)
        if expected < 0:
            state.disband(request)
            return "full"
        if request.cached < 0:
            request.cached = known
            state.counters.prompt_tokens += request.prompt_tokens
            state.counters.cached_tokens += known
        state.queue.remove(request)
        for part in assemblies.open(request, lacking, expected - known):
            state.live[part.number] = part
            state.queue.put_back(part)
        state.queue.put_back(request)
        return "begun"

    def _completes(self, part: Request) -> bool:
        """Whether the step at hand computes the last of a part."""
        rows, row = self._state.rows, part.row
        return row >= 0 and rows.length[row] == rows.target[row] and rows.last_step[row] == self._state.next_step

    def _join(self, budget: int) -> None:
        """Begin joined requests whose last lines the step at hand computes.

        They read them in this very step, and in time: a layer stores what is new in all rows before any attends.  No
        other request may, so they are the last to begin.
        """
        self._publish()
        for request in dict.fromkeys(self._soon):
            waits = request.row < 0 and request.number in self._state.live
            if not waits or budget <= 0 or not self._state.rows.free:
                continue
            if not self._state.assemblies.gather(request):
                budget -= max(0, self._begin(request, budget))

    # --- ahead -----------------------------------------------------------------------------------------------------

    def _foresee(self) -> None:
        """Compute a little of what a paused program will need, if no request is live and no step on its way.

        Whoever comes meanwhile waits for that little and no more: each chunk is a row's whole life, and between two
        nothing is held.  It takes free slots, and those of what nobody leases; if there are none, no more is computed.
        """
        state = self._state
        if state.live or state.flights:
            return
        memory, eager = state.memory, state.eager
        while not self._extends and (ahead := eager.first()) is not None:
            program, tokens, namespace = ahead
            node, start = memory.tree.match(tokens, namespace=namespace)
            memory.tree.lock(node)  # its beginning makes no room for its end
            size = memory.spare(min((len(tokens) >> 2) - start, state.options.eager_tokens))
            if not size or program not in state.leases:
                memory.tree.unlock(node)
                eager.withdraw(program)
                continue
            chunk = tokens[: 4 * (start + size)]
            message = Generate(-program, chunk, _FILL, lease=program, namespace=namespace)
            request = Request(message, -1, 0)
            request.expected = request.length  # what nobody else wanted to have computed is charged to nobody
            row = state.rows.take(request, node, memory.tree.slots(node), 0)
            state.prefilling.append(row)
            self._extend(row, size)
            self._computing.clear()  # it is published as an answer is:
            state.rows.ended[row] = True
            state.leave(row)
            eager.reached(program, start, start + size)

    # --- shortage --------------------------------------------------------------------------------------------------

    def _victims(self) -> list[int]:
        """Name the rows that could be retracted, the youngest first; the oldest request always goes on."""
        rows = self._state.rows
        running = np.flatnonzero(rows.taken & ~rows.leaving)
        by_age = running[np.argsort(rows.arrival[running])][1:]
        prefilling = set(self._state.prefilling)
        return [row for row in by_age[::-1].tolist() if rows.decoding[row] or row in prefilling]

    def _retract(self) -> None:
        """Retract the youngest rows until those that go on find room, now or when the leaving ones are done."""
        state = self._state
        rows, memory = state.rows, state.memory
        while int(rows.decoding.sum()) > memory.room and (youngest := state.assemblies.youngest()) is not None:
            state.disband(youngest)
        coming = sum(self._frees(row) for row in state.leaving)
        for row in self._victims():
            if int(rows.decoding.sum()) <= memory.room + coming:
                return
            if rows.last_step[row] > state.settled:
                coming += self._frees(row)
            state.retract(row)

    def _frees(self, row: int) -> int:
        """Estimate the room a leaving row makes: its own slots, and the end of its path if nobody else holds it."""
        rows = self._state.rows
        node = rows.node[row]
        alone = len(node.slots) if node is not None and node.locks == 1 else 0
        return int(rows.length[row] - rows.shared[row] + rows.duplicates[row]) + alone

    def _unlock(self) -> bool:
        """Retract the youngest row when nothing can run and nothing is in flight; tell whether there was one.

        One request alone always fits, so a scheduler that still cannot go on has lost count: RuntimeError.
        """
        state = self._state
        if (youngest := state.assemblies.youngest()) is not None and self._yields < 2 * len(state.live):
            self._yields += 1
            state.disband(youngest)
            return True
        if victims := self._victims():
            state.retract(victims[0])
            return True
        if state.live:
            raise RuntimeError(
                f"nothing can run: {len(state.live)} requests live, {len(state.queue)} waiting, "
                f"{state.memory.room} of {state.memory.total} slots to be had"
            )
        return False


def _targets(request: Request, start: int, end: int) -> tuple[int, bytes]:
    """Name the tokens whose log-probabilities a chunk [start, end) yields: those behind its positions."""
    first = max(start, request.first_target - 1)
    last = min(end, request.prompt_tokens - 1)
    return (0, b"") if first >= last else (first, request.prompt[4 * (first + 1) : 4 * (last + 1)])
