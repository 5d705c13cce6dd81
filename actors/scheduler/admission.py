"""Who begins in the step at hand: waiting requests, the preferred first, as long as tokens, rows and slots last."""

from __future__ import annotations

from typing import Literal

from .assembly import known_lines
from .draft import Draft
from .node import Node
from .request import Request
from .state import State

__all__ = ["Admission"]


class Admission:
    """Give rows to requests that wait, and reserve what each is expected to need.

    A joined request begins behind all lines that stand before it, at the earliest in the step that computes the last
    of them.
    """

    def __init__(self, state: State, draft: Draft) -> None:
        self._state = state
        self._draft = draft
        self._soon: dict[Request, None] = {}  # joined ones whose last lines the step at hand computes
        self._promised: int | None = None  # what all rows are still to be given, if that is known

    def admit(self) -> None:
        """Begin whom there is room for.

        A request that does not fit ends it: nothing overtakes it for being smaller.
        """
        state, draft = self._state, self._draft
        self._soon.clear()
        self._promised = None
        held = False
        while draft.budget > 0 and state.rows.free and len(state.queue) and not held:
            for request in state.queue.candidates(state.next_step):
                if draft.budget <= 0 or not state.rows.free:
                    return
                if request.number not in state.live:  # a part of one that has just begun without it
                    continue
                if request.joined and (outcome := self._assemble(request)) != "ready":
                    if outcome == "full":
                        return
                    if outcome == "begun":  # its parts are next
                        held = False
                        break
                    held = True
                    continue
                used = self._begin(request)
                if used < 0:
                    return
                held |= not used

    def join(self) -> None:
        """Begin joined requests whose last lines the step at hand computes.

        They read them in this very step, and in time: a layer stores what is new in all rows before any attends.  No
        other request may, so they are the last to begin.
        """
        if not self._soon:
            return
        state, draft = self._state, self._draft
        self._promised = None
        draft.publish()
        for request in self._soon:
            waits = request.row < 0 and request.number in state.live
            if waits and draft.budget > 0 and state.rows.free and not state.assemblies.gather(request):
                self._begin(request)
            if request.row < 0 and request.number in state.live:
                state.queue.advance(request)

    # --- one request -----------------------------------------------------------------------------------------------

    def _begin(self, request: Request, *, waited: bool = True) -> int:
        """Begin a request; give how many tokens it takes, 0 if it had better wait, -1 if there is no room for it."""
        state = self._state
        if self._promised is None or (request.whole is not None and self._draft.room < request.length):
            self._draft.settle()  # before more is locked, of which what was decided might take its slots
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
        if waited:
            state.queue.admitted(request, expected - cached)
        else:
            state.queue.charge(request, expected - cached)
        if request.joined:
            self._disband(request)
            if request.whole is None:
                state.assemblies.crowded = False
        if request.whole is None and request.cached < 0:
            self._count(request, min(cached, request.prompt_tokens))
            if request.lease:
                state.eager.began(request.lease, request.cached)
        size = self._draft.begin(request, node, cached, expected)
        if self._promised is not None:
            self._promised += state.estimate.promise(expected, request.most_slots, cached + size)
        return size

    def _find(self, request: Request) -> tuple[Node, int]:
        """Find, and lock, what the cache has of a request; of a joined one, whose lines it holds."""
        state = self._state
        if request.joined:
            return state.assemblies.find(request, request.match_limit)
        tree = state.memory.tree
        node, cached = request.end, request.matched
        if request.matched_version != tree.version:
            node, cached = tree.find(request.tokens, request.match_limit, request.home)
        node = node or tree.root(request.home)
        tree.touch(node)
        tree.lock(node)
        return node, cached

    def _shares_soon(self, request: Request, cached: int) -> bool:
        """Tell whether the step at hand computes a good deal more of this request's prefix than the cache has.

        It cannot read it within the step, so it waits for the next one.
        """
        draft, least = self._draft, self._state.options.share_tokens
        if cached + least > request.match_limit or request.tokens[: 4 * least] not in draft.heads:
            return False
        return draft.computes(request, cached)

    def _fits(self, request: Request, cached: int) -> int:
        """Reserve: give the length to expect of a request, or -1 if others have been promised the room it needs."""
        state = self._state
        rows, estimate = state.rows, state.estimate
        limit = request.most_slots
        expected = min(limit, max(request.length, request.prompt_tokens + estimate.expect(request.max_new_tokens)))
        need = estimate.promise(expected, limit, cached)
        if self._promised is None:
            idle = rows.free == rows.max_rows
            self._promised = 0 if idle else estimate.promised(rows.expected, rows.limit, rows.length)
        promised = self._promised
        if state.assemblies:
            promised += state.assemblies.promised(but=request)
        return expected if need + promised <= self._draft.room else -1

    def _disband(self, request: Request) -> None:
        """Let go of the lines that wait for a request, and of what their rows were promised."""
        self._draft.settle()
        self._state.disband(request)
        self._promised = None

    def _count(self, request: Request, cached: int) -> None:
        """Count what the cache had of a request's prompt when it first began."""
        request.cached = cached
        self._state.counters.prompt_tokens += request.prompt_tokens
        self._state.counters.cached_tokens += cached

    # --- joins -----------------------------------------------------------------------------------------------------

    def _assemble(self, request: Request) -> Literal["ready", "waits", "begun", "full"]:
        """Look after the lines that stand before a joined request: ready if it holds them all.

        If some are missing, parts are made of them, which go ahead of it; it waits for these, and for those that are
        made for others.  If there is no room, nobody begins.
        """
        state, assemblies = self._state, self._state.assemblies
        self._draft.settle()
        if (parts := assemblies.parts(request)) and all(map(self._draft.completes, parts)):
            self._soon[request] = None
            return "waits"
        if not assemblies.is_open(request) and state.crowded_out(request):
            return "waits"
        missing = assemblies.gather(request)
        if not missing:
            return "ready"
        lines = [(line, assemblies.part(request, line)) for line in missing]
        lacking = [line for line, part in lines if part is None]
        is_open = assemblies.is_open(request)
        if request.whole is not None or not lacking or (len(lacking) < len(missing) and not is_open):
            if all(part is not None and self._draft.completes(part) for _, part in lines):
                self._soon[request] = None
            if not is_open:
                assemblies.let_go(request)
            return "waits"
        fresh = request.matched_version == state.memory.tree.version
        known = request.matched if fresh else known_lines(state.memory.tree, request)[0]
        expected = self._fits(request, known)
        if expected < 0:
            assemblies.crowded = True
            self._disband(request)
            return "full"
        if request.cached < 0:
            self._count(request, known)
        return self._send_ahead(request, assemblies.open(request, lacking, expected - known))

    def _send_ahead(self, request: Request, parts: list[Request]) -> Literal["waits", "begun"]:
        """Begin the parts that were made for a request, if they can; what cannot waits ahead of all that never ran."""
        state, draft = self._state, self._draft
        begun = True
        for part in parts:
            state.live[part.number] = part
            if part.joined or draft.budget <= 0 or not state.rows.free or not self._begin(part, waited=False):
                begun = False
                if part.row < 0:
                    state.queue.put_back(part)
        if begun and all(map(draft.completes, parts)):
            self._soon[request] = None
            return "waits"
        state.queue.advance(request)
        return "begun"
