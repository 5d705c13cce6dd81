"""What every web framework on asyncio can share: programs that live as long as their client listens."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from starlette.responses import Response


async def while_connected(receive: Any, work: Coroutine[Any, Any, Any]) -> Any:
    """Await work; cancel it if the client leaves first, and give None then.

    receive: the request's, behind its body: it has nothing more to say but that the client is gone.
    """
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        leaving.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)  # what was cancelled has ended here


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Events(Response):
    """A reply: one variable of a program as server-sent events, in JSON strings, each as it comes.

    program: what `astream(...)` gives.  Its block is entered with the reply and left with it, and leaving it cancels
    what still runs.  Nothing is sent before the first text, so what is refused still has its own status.
    """

    media_type = "text/event-stream"

    def __init__(self, program: Any, name: str) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache"})
        self.program = program
        self.name = name

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        """Send the events while the client is there."""
        await while_connected(receive, self._send_all(send))

    async def _send_all(self, send: Any) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        async with self.program as state:
            async for text in state.text_async_iter(self.name):
                if start:
                    await send(start)
                    start = None
                event = f"data: {json.dumps(text)}\n\n".encode()
                await send({"type": "http.response.body", "body": event, "more_body": True})
            if start:
                await send(start)
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
