"""What travels between a worker and its device arrives whole, though memory and marks take turns."""

from __future__ import annotations

import numpy as np
import torch

from callboard.actors.worker.returns import Returns
from callboard.actors.worker.staging import Staging
from callboard.actors.worker.timing import Spans

from ...kernels.triton_device import DEVICE


def test_results_under_way_at_once_do_not_mix() -> None:
    returns = Returns(DEVICE)
    for turn in range(5):
        sent = [torch.full((size,), 10 * turn + size, dtype=torch.int32, device=DEVICE) for size in (3, 1, 9000)]
        arrivals = [returns.bring(words) for words in sent]
        found = [arrival.wait() for arrival in arrivals]
        sent = [returns.bring(words + 1) for words in sent]  # over what the first ones had
        assert [(len(words), set(words.tolist())) for words in found] == [
            (size, {10 * turn + size}) for size in (3, 1, 9000)
        ]
        assert [int(arrival.wait()[-1]) for arrival in sent] == [10 * turn + size + 1 for size in (3, 1, 9000)]


def test_arrays_sent_one_behind_the_other_arrive_as_they_were() -> None:
    """More than there are buffers, some larger than one, each changed by its maker as soon as it is sent."""
    staging = Staging(DEVICE, words=16, depth=2)
    kept: list[tuple[list[int], list[torch.Tensor]]] = []
    array = np.zeros(0, np.int32)
    for size in (4, 40, 7, 100, 1, 16):
        array = np.arange(size, dtype=np.int32)
        scale = np.full(2, size / 4, np.float32)
        kept.append((array.tolist(), staging.send((array, scale))))
        array[:] = -1
    for wanted, (given, scale) in kept:
        assert given.tolist() == wanted
        assert scale.view(torch.float32).tolist() == [len(wanted) / 4] * 2


def test_room_is_filled_and_sent_to_the_front_of_what_is_larger() -> None:
    staging = Staging(DEVICE, words=4, depth=2)
    into = torch.full((6,), 7, dtype=torch.int32, device=DEVICE)
    staging.room(3)[:] = (1, 2, 3)
    staging.go(3, into)
    assert into.tolist() == [1, 2, 3, 7, 7, 7]


def test_spans_tell_their_length_and_what_lies_between_them() -> None:
    spans = Spans(DEVICE)
    before = None
    for number in range(4):
        span = spans.begin()
        assert span.after is before
        spans.end(span)
        lasted, gap = spans.read(span)
        assert lasted >= 0.0
        assert gap >= 0.0 if number else gap == 0.0
        before = span
    dropped = spans.begin()  # a step that failed: nobody ends it
    after = spans.begin()
    spans.end(after)
    assert dropped.after is after.after is before
    assert spans.read(after)[1] >= 0.0
