"""What every test shares."""

import pytest

from .kernels import triton_device  # noqa: F401  (first of all: it says where Triton's kernels run)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
