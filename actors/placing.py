"""Which replica does a request: where its program is, else where least is to be computed and waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .sent_prefixes import SentPrefixes, block_digests

__all__ = ["Load", "Place", "Placing"]

_OUTPUTS = 512
"""How many tokens an output counts at most: who allows thousands mostly stops long before."""
_WORTH = 2
"""How many tokens of waiting a known token is worth: it is not computed, and who has had it computed waits, too."""
_SLACK = 1.25
"""How much busier than the least busy replica one may be without being avoided."""


class Place(NamedTuple):
    """Where a request is, and for how many tokens it counts there until it is over."""

    replica: int
    tokens: int


_ALONE = Place(0, 0)


class Load:
    """What a replica has to do: live requests, and the tokens they were placed for; and whether it is up."""

    __slots__ = ("requests", "tokens", "up")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.up = True


class _Home:
    """A program's replica, and the longest prompt it has sent: what that holds is computed for it once."""

    __slots__ = ("reach", "replica")

    def __init__(self, replica: int, reach: int) -> None:
        self.replica = replica
        self.reach = reach


class Placing:
    """Place requests, and know how many tokens each replica has before it.

    A program stays where its first request went until it is released: its branches' KV is there, what is joined could
    be computed nowhere else without computing the branches anew, and what it will say is behind what it has said.  It
    is one by its leases: requests that have a number in common and none of these, as several prompts that a client
    sends at once, are placed one by one.

    A request of no program, and a program's first, goes where this is least; if several are alike, to the least busy,
    then to who has the fewest programs, then to who was sent the least:

        the tokens before a replica, beyond 1.25 times those before the least busy
        - 2 * the tokens of the prompt that it was sent before

    As long as loads are nearly alike nobody is idle before the others, and a prompt that is computed twice costs
    everybody: then only the second term counts.  Beyond, whoever is sent elsewhere has its prompt computed there, which
    others have to wait for, too; so a known token is worth two of waiting.  `bench/replicas.py` tells what that gains.
    A replica that is down is passed over if another is up.

    A request counts the tokens of its prompt that its replica has not, and those it may say, at most 512, from its
    placing until it is over.  slots: how many tokens a replica's cache holds.
    """

    def __init__(self, replicas: int = 1, slots: int = 1 << 20) -> None:
        self.replicas = replicas
        self.loads = tuple(Load() for _ in range(replicas))
        self._sent = tuple(SentPrefixes(slots) for _ in range(replicas))
        self._homes: dict[int, _Home] = {}  # by the numbers of programs and of their streams
        self._homed = [0] * replicas  # how many of these are where

    # --- requests --------------------------------------------------------------------------------------------------

    def place(self, prompt: bytes, namespace: str, *, program: int = 0, lease: int = 0, outputs: int) -> Place:
        """Place a request.  prompt: int32.  program, lease: see Submit.  outputs: tokens it may say."""
        if self.replicas == 1:
            return _ALONE
        length = len(prompt) // 4
        home = self._homes.get(program) or self._homes.get(lease)
        if home is None:
            replica, known = self._choose(prompt, namespace)
        else:
            replica, known = home.replica, min(home.reach, length)
            home.reach = max(home.reach, length)
        if lease:
            home = home or _Home(replica, length)
            self._settle(program, home)
            self._settle(lease, home)
        place = Place(replica, length - known + min(outputs, _OUTPUTS))
        load = self.loads[replica]
        load.requests += 1
        load.tokens += place.tokens
        return place

    def over(self, place: Place) -> None:
        """Know that a request is over, however it ended."""
        if self.replicas > 1:
            load = self.loads[place.replica]
            load.requests -= 1
            load.tokens -= place.tokens

    # --- programs --------------------------------------------------------------------------------------------------

    def pause(self, number: int, tokens: bytes, namespace: str) -> int:
        """Tell where a program is that waits on the outside world; one that has asked for nothing yet is placed."""
        if self.replicas == 1:
            return 0
        home = self._homes.get(number)
        if home is None:
            home = _Home(self._choose(tokens, namespace)[0], 0)
            self._settle(number, home)
        return home.replica

    def home(self, number: int) -> int | None:
        """Tell where a program or a stream is; None if it is nowhere yet."""
        if self.replicas == 1:
            return 0
        home = self._homes.get(number)
        return None if home is None else home.replica

    def release(self, numbers: Sequence[int]) -> None:
        """Forget programs that are over."""
        for number in numbers:
            if (home := self._homes.pop(number, None)) is not None:
                self._homed[home.replica] -= 1

    def _settle(self, number: int, home: _Home) -> None:
        if not number or (before := self._homes.get(number)) is home:
            return
        if before is not None:  # a branch that paused before it asked: it is where its program is
            self._homed[before.replica] -= 1
        self._homes[number] = home
        self._homed[home.replica] += 1

    # --- replicas --------------------------------------------------------------------------------------------------

    def started(self, replica: int) -> None:
        """Know that a replica is up, with an empty cache."""
        self.loads[replica].up = True
        self._sent[replica].forget()

    def stopped(self, replica: int) -> None:
        """Know that a replica is down."""
        self.loads[replica].up = False

    def emptied(self) -> None:
        """Know that all caches were emptied."""
        for sent in self._sent:
            sent.forget()

    def _choose(self, prompt: bytes, namespace: str) -> tuple[int, int]:
        """Choose a replica for a prompt that none is bound to; tell also how many of its tokens were sent there."""
        digests = block_digests(prompt, namespace)
        loads, homed = self.loads, self._homed
        able = [replica for replica in range(self.replicas) if loads[replica].up] or range(self.replicas)
        free = _SLACK * min([loads[replica].tokens for replica in able])
        known = {replica: self._sent[replica].known(digests) for replica in able}

        def cost(replica: int) -> tuple[float, int, int, int]:
            tokens = loads[replica].tokens
            return max(0.0, tokens - free) - _WORTH * known[replica], tokens, homed[replica], len(self._sent[replica])

        replica = min(able, key=cost)
        self._sent[replica].add(digests)
        return replica, known[replica]
