"""What the tests of the actor library share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest


@pytest.fixture
async def no_hang() -> AsyncIterator[None]:
    """End a test that would wait forever."""
    with anyio.fail_after(30):
        yield
