"""What a request has said is there whole and in order, whenever somebody asks, and of others nothing is kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.outputs import Outputs

STEPS = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 99), max_size=3)), max_size=6), max_size=60
)


@given(steps=STEPS, asked=st.integers(0, 60), closed=st.integers(0, 60))
def test_each_open_request_has_all_that_it_was_told_in_order(
    steps: list[list[tuple[int, list[int]]]], asked: int, closed: int
) -> None:
    outputs = Outputs()
    for request in (1, 2, 3):
        outputs.open(request)
    said: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for index, step in enumerate(steps):
        if index == asked:
            assert np.frombuffer(outputs.packed(2), np.int32).tolist() == said[2]
        if index == closed:
            outputs.close(3)
            del said[3]
        whose = [request for request, tokens in step for _ in tokens]
        told = [token for _, tokens in step for token in tokens]
        outputs.add(np.array(whose, np.int64).tobytes(), np.array(told, np.int32).tobytes())
        for request, tokens in step:
            if request in said:
                said[request] += tokens
    for request, tokens in said.items():
        assert np.frombuffer(outputs.packed(request), np.int32).tolist() == tokens
