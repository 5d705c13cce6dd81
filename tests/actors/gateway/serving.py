"""A real server on a real port, for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import msgspec

from callboard.actors.core import Ref, Supervisor
from callboard.actors.gateway import Address, Gateway, GatewayOptions, Service


class Served(NamedTuple):
    url: str
    client: httpx.AsyncClient
    ref: Ref[Address]

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)


@asynccontextmanager
async def serving(service: Service, **options: Any) -> AsyncIterator[Served]:
    options = {"port": 0, "grace_s": 0.0, **options}
    async with Supervisor("gateway", grace=20.0) as supervisor:
        ref = await supervisor.spawn(lambda: Gateway(service, GatewayOptions(**options)), name="gateway")
        url = await ref.ask(Address())
        async with httpx.AsyncClient(base_url=url, timeout=20.0, trust_env=False) as client:
            yield Served(url, client, ref)


def events(text: str) -> list[Any]:
    """Read server-sent events: JSON objects, and the word [DONE] where it stands."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if block:
            assert block.startswith("data: ")
            assert "\n" not in block
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else msgspec.json.decode(data))
    return found
