"""The dispatcher: admits requests, keeps the ledger of the live ones, and gives each exactly one terminal event."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from .core import Actor, MailboxFull
from .errors import GenerationFailed, InvalidRequest, Overloaded
from .ledger_entry import LedgerEntry, reach
from .messages import (
    Abort,
    AbortAll,
    AbortTag,
    Close,
    CoreStarted,
    CoreStopped,
    Delta,
    Deltas,
    DispatcherStatistics,
    Emptied,
    Finish,
    LiveRequests,
    Open,
    Paused,
    Reconcile,
    Released,
    Resumed,
    Submit,
    ToDispatcher,
)
from .outputs import Outputs
from .placing import Placing
from .reader import Reader
from .wires import Wires

__all__ = ["Dispatcher", "DispatcherOptions"]


class DispatcherOptions(msgspec.Struct, frozen=True, kw_only=True):
    """live: how many requests may be admitted at once; of a tenant with a name, no more than others then still may.

    context_length: tokens, prompt and output together.
    replays: how often a request is sent again after Core died under it, before it is taken for the cause.
    eos: int32 ids that end a generation.  seed: where the seeds of requests that bring none come from.
    replicas: how many schedulers there are to place requests at; slots: how many tokens the cache of each holds.
    """

    live: int = 4096
    context_length: int
    replays: int = 2
    eos: bytes = b""
    seed: int = 0
    replicas: int = 1
    slots: int = 1 << 20


_UNTOLD = 64
"""How many programs may be over before a replica is told that is sent no request."""


class Dispatcher(Actor[ToDispatcher]):
    """Hold the ledger, and place requests.  If a Core dies, its live requests are sent again from it; if this actor
    dies, its readers fail.

    It never waits for room: tokens come round to it from those it sends to, and a ring of waits would stand still.
    Their mailboxes are several times `live` deep.
    """

    def __init__(self, wires: Wires, options: DispatcherOptions) -> None:
        self._wires = wires
        self._options = options
        self._live: dict[int, LedgerEntry] = {}
        self._readers: dict[int, Reader] = {}  # of the live ones
        self._outputs = Outputs()  # of the live ones
        self._tags: dict[tuple[str, str], set[int]] = {}  # by tenant and tag
        self._tenants: Counter[str] = Counter()  # how many of the live ones are whose
        self._counts: Counter[str] = Counter()
        self._placing = Placing(options.replicas, options.slots)
        # By replica: programs that are over, until its scheduler is told with a request.
        self._released: list[tuple[int, ...]] = [()] * options.replicas

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers.values():
            failure = GenerationFailed("the dispatcher ended while the request was live")
            failure.__cause__ = error
            reader.fail(failure)
        self._live.clear()
        self._readers.clear()
        if error is not None:  # the next ledger knows nothing of what still runs
            for scheduler in self._wires.schedulers:
                scheduler.post(AbortAll())

    async def receive(self, message: ToDispatcher) -> Any:
        match message:
            case Deltas():
                self._news(message)
            case Submit():
                self._submit(message)
            case Abort(request, reason):
                self._abort(request, reason)
            case AbortTag(tag, tenant):
                for request in tuple(self._tags.get((tenant, tag), ())):
                    self._abort(request, f"aborted by name, {tag!r}")
            case Paused() | Resumed():
                self._hint(message)
            case LiveRequests():
                return self._live_requests()
            case CoreStarted(replica):
                self._placing.started(replica)
                self._replay(replica)
            case CoreStopped(replica):
                self._placing.stopped(replica)
            case Emptied():
                self._placing.emptied()
            case DispatcherStatistics():
                return self._statistics()
        return None

    def _submit(self, submit: Submit) -> None:
        if submit.released:
            self._release(submit.released)  # also those that come with one that is refused
        try:
            reached = self._verify(submit)
        except (InvalidRequest, Overloaded) as refusal:
            self._counts["refused"] += 1
            self.reply().fail(refusal)
            return
        sampling = submit.sampling
        room = self._options.context_length - reached
        seed = self._options.seed + submit.request if sampling.seed is None else sampling.seed
        sampling = msgspec.structs.replace(
            sampling, max_new_tokens=min(sampling.max_new_tokens, room), seed=seed & 0x7FFF_FFFF_FFFF_FFFF
        )
        place = self._placing.place(
            submit.prompt, submit.namespace, program=submit.program, lease=submit.lease, outputs=sampling.max_new_tokens
        )
        entry = self._live[submit.request] = LedgerEntry(submit, sampling, place)
        self._readers[submit.request] = submit.reader
        self._outputs.open(submit.request)
        self._tenants[submit.tenant] += 1
        if submit.tag:
            self._tags.setdefault((submit.tenant, submit.tag), set()).add(submit.request)
        try:
            self._wires.detokenizer.post(entry.opened())
            released = self._released[place.replica]
            self._wires.schedulers[place.replica].post(entry.generate(self._options.eos, released=released))
        except MailboxFull:
            self._forget(submit.request, "refused")
            with suppress(MailboxFull):  # the detokenizer may have been told before the scheduler had no room
                self._wires.detokenizer.post(Close(submit.request))
            self.reply().fail(Overloaded("the scheduler is behind with its mail"))
            return
        self._released[place.replica] = ()
        self._counts["admitted"] += 1

    def _release(self, programs: tuple[int, ...]) -> None:
        """Know that programs are over; a replica is told with its next request, or once they are many."""
        self._placing.release(programs)
        for replica, told in enumerate(self._released):
            self._released[replica] = released = told + programs
            if len(released) >= _UNTOLD:
                with suppress(MailboxFull):
                    self._wires.schedulers[replica].post(Released(released))
                    self._released[replica] = ()

    def _hint(self, message: Paused | Resumed) -> None:
        """Pass on what may be lost: a program that can say no more in this context will not be computed."""
        if isinstance(message, Resumed):
            replica = self._placing.home(message.program)
            if replica is None:  # nobody was told of a pause
                return
        else:
            if not self._can_go_on(message):
                message = Paused(message.program)
            replica = self._placing.pause(message.program, message.tokens, message.namespace)
        try:
            self._wires.schedulers[replica].post(message)
        except MailboxFull:
            self._counts["hints_lost"] += 1

    def _can_go_on(self, message: Paused) -> bool:
        try:
            return reach(message.tokens, message.joins) < self._options.context_length
        except ValueError:  # its next generation would be refused, too
            return False

    def _live_requests(self) -> list[Open]:
        live: dict[int, list[int]] = {}
        for request, entry in self._live.items():
            live.setdefault(entry.place.replica, []).append(request)
        for replica, requests in live.items():  # an end in the message that was lost would never be told again
            self._wires.schedulers[replica].post(Reconcile(tuple(requests)))
        return [entry.opened(self._outputs.packed(request)) for request, entry in self._live.items()]

    def _verify(self, submit: Submit) -> int:
        """Tell how far a prompt reaches; raises InvalidRequest or Overloaded for what is refused."""
        prompt_tokens, context = len(submit.prompt) // 4, self._options.context_length
        if not prompt_tokens:
            raise InvalidRequest("prompt", "it has no tokens; at least one is needed")
        try:
            reached = reach(submit.prompt, submit.joins)
        except ValueError as error:
            raise InvalidRequest("joins", str(error)) from None
        if prompt_tokens < reached and reached + (submit.sampling.max_new_tokens > 0) > context:
            raise InvalidRequest("prompt", f"it reaches to position {reached}; the context holds {context}")
        if prompt_tokens + (submit.sampling.max_new_tokens > 0) > context:
            raise InvalidRequest(
                "prompt", f"it has {prompt_tokens} tokens; the context holds {context}, output included"
            )
        if len(self._live) >= self._options.live:
            raise Overloaded(f"{len(self._live)} requests are live, at most {self._options.live} may be")
        free = self._options.live - len(self._live)
        if submit.tenant and self._tenants[submit.tenant] >= free:  # so that one alone leaves half to the others
            raise Overloaded(f"{self._tenants[submit.tenant]} of your requests are live; {free} are left for everybody")
        if submit.request in self._live:
            raise InvalidRequest("request", f"{submit.request} is already live")
        return reached

    def _news(self, news: Deltas) -> None:
        self._outputs.add(news.whose, news.tokens)
        readers = map(self._readers.get, news.requests)
        for request, reader, delta in zip(news.requests, readers, news.deltas, strict=True):
            if reader is None:
                continue  # aborted meanwhile: its terminal event has been given
            reader.push(delta)
            if delta.finish is not None:
                self._forget(request, delta.finish.reason)

    def _forget(self, request: int, reason: str) -> Reader:
        entry, reader = self._live.pop(request), self._readers.pop(request)
        self._placing.over(entry.place)
        self._outputs.close(request)
        self._counts[f"ended_{reason}"] += 1
        self._tenants[entry.tenant] -= 1
        if not self._tenants[entry.tenant]:
            del self._tenants[entry.tenant]
        name = entry.tenant, entry.tag
        if entry.tag and (tagged := self._tags.get(name)) is not None:
            tagged.discard(request)
            if not tagged:
                del self._tags[name]
        return reader

    def _abort(self, request: int, reason: str) -> None:
        if (entry := self._live.get(request)) is None:
            return
        self._forget(request, "abort").push(Delta(finish=Finish(reason="abort", message=reason)))
        self._wires.schedulers[entry.place.replica].post(Abort(request, reason))
        self._wires.detokenizer.post(Close(request))

    def _replay(self, replica: int) -> None:
        """Send a replica's requests again, to itself."""
        for request, entry in tuple(self._live.items()):
            if entry.place.replica != replica:
                continue
            entry.replays += 1
            if entry.replays > self._options.replays:
                message = f"the model worker failed {entry.replays} times while this request ran; it is not tried again"
                self._forget(request, "error").push(Delta(finish=Finish(reason="error", message=message)))
                self._wires.detokenizer.post(Close(request))
            else:
                self._counts["replayed"] += 1
                scheduler = self._wires.schedulers[replica]
                scheduler.post(entry.generate(self._options.eos, self._outputs.packed(request)))

    def _statistics(self) -> dict[str, Any]:
        told: dict[str, Any] = {"live": len(self._live), **self._counts}
        if self._placing.replicas > 1:
            told["replicas"] = [
                {"up": load.up, "live": load.requests, "tokens": load.tokens} for load in self._placing.loads
            ]
        return told
