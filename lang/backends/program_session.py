"""Telling a callboard server of which programs requests are, and which are over, so that it can keep what they need."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio.abc import TaskStatus

from ...actors.backend import Prompt

if TYPE_CHECKING:
    import httpx

__all__ = ["ProgramSession"]

_LOG = logging.getLogger("callboard.backends")
_SILENT_S = 45.0  # the server says every 15 s that it is there
_LATER = frozenset({408, 429, 500, 502, 503, 504})  # statuses behind which another attempt may help
_FIRST_S, _LONGEST_S = 1.0, 30.0  # between attempts
_AT_ONCE = 65_536  # ends in one request: the server's cap


class ProgramSession:
    """Hold a stream of `/programs` open: as long as it is, programs have leases at the server (`gateway/sessions.py`).

    If it breaks, it is opened again; meanwhile, and if the server does not want it, requests are of no program.  What
    is sent here is never worth a program's failure.
    """

    def __init__(self, http: httpx.AsyncClient, who: str) -> None:
        self._http = http
        self._who = who
        self._token = ""
        self._numbers = itertools.count(1)
        self._ended: list[int] = []
        self._wake = anyio.Event()

    def lease(self) -> int:
        """Give a program, or a branch, a number."""
        return next(self._numbers)

    def release(self, number: int) -> None:
        """Let the server know that it is over."""
        if self._token:
            self._ended.append(number)
            self._wake.set()

    def name(self, prompt: Prompt, *, kept: bool = True) -> dict[str, Any] | None:
        """Say of which program a prompt is, as /generate takes it; None if there is nothing to say.

        kept: whether the program goes on from it, so that its KV is worth keeping.
        """
        if not self._token or not prompt.lease:
            return None
        return {"session": self._token, "number": prompt.program or prompt.lease, "branch": prompt.lease if kept else 0}

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Keep the session until cancelled; started once the first attempt has succeeded, or has not."""
        tried = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep, tried)
            group.start_soon(self._tell_ends)
            await tried.wait()
            task_status.started()

    async def _keep(self, tried: anyio.Event) -> None:
        """Open streams, one behind the other, unless the server wants none."""
        import httpx

        pause_s = _FIRST_S
        while True:
            again = True
            try:
                again = await self._stay(tried)
            except httpx.HTTPError as error:
                _LOG.info("%s: the stream of programs broke: %r", self._who, error)
            tried.set()
            pause_s = _FIRST_S if self._token else min(2 * pause_s, _LONGEST_S)
            self._token = ""
            if not again:
                return
            await anyio.sleep(pause_s)

    async def _stay(self, tried: anyio.Event) -> bool:
        """Hold a stream to its end; tell whether another may be opened."""
        import httpx

        timeout = httpx.Timeout(_SILENT_S, pool=None)
        async with self._http.stream("POST", "/programs", json={}, timeout=timeout) as response:
            if response.status_code != 200:
                _LOG.info("%s takes no programs: status %d", self._who, response.status_code)
                return response.status_code in _LATER
            async for line in response.aiter_lines():
                if not self._token and (token := _token(line)):
                    self._token, self._ended = token, []
                    tried.set()
        return True

    async def _tell_ends(self) -> None:
        """Send what has ended, all that has gathered in one request at a time."""
        import httpx

        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._ended and (session := self._token):
                told, self._ended = self._ended[:_AT_ONCE], self._ended[_AT_ONCE:]
                try:
                    reply = await self._http.post("/programs/end", json={"session": session, "numbers": told})
                    lost = reply.status_code in _LATER
                except httpx.HTTPError:
                    lost = True
                if lost:
                    if session == self._token:  # they go with the next, or with the session
                        self._ended += told
                    break


def _token(line: str) -> str:
    if not line.startswith("data: {"):
        return ""
    try:
        return msgspec.json.decode(line[6:], type=_Opened).session
    except msgspec.DecodeError:
        return ""


class _Opened(msgspec.Struct):
    """The first event of the stream."""

    session: str
