"""With how many rows a decode step runs, and which sizes become graphs; nothing is captured here without a GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch
from torch import Tensor

from .driver import read
from .test_device_runner import WARM, make_device_driver

if TYPE_CHECKING:
    from callboard.actors.worker.graphs import DecodeGraphs, Shape


class Replays:
    """Stands in for a CUDA graph of a decode step: computes it again from what its inputs hold then."""

    def __init__(self, graphs: DecodeGraphs, inputs: Tensor, shape: Shape) -> None:
        self.graph, self.read, self.inputs = self, None, inputs
        self.compute = partial(graphs._pass, inputs, shape, [256] * shape.size)
        sent = inputs.clone()  # a capture runs nothing: here it runs for rows that are nobody's
        rows, slots, positions, lengths = inputs[: 4 * shape.size].view(4, shape.size).unbind(0)
        rows.fill_(8), slots.fill_(512), positions.fill_(0), lengths.fill_(1)
        self.outputs = self.compute()
        inputs.copy_(sent)

    def replay(self) -> None:
        found = self.compute()
        if found is None:  # it only writes
            return
        for name in ("rows_B", "positions_B", "logits_BV", "packed_2B"):
            getattr(self.outputs, name).copy_(getattr(found, name))


def test_a_size_that_is_seldom_met_runs_as_the_next_larger_one(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    with torch.inference_mode():
        for captured in (True, False):
            driver = make_device_driver(tiny, captured=True)
            graphs = driver.runner.graphs
            graphs.patience = 2
            monkeypatch.setattr(graphs, "_capture", captured)
            monkeypatch.setattr(graphs, "_record", partial(Replays, graphs))
            for row in range(8):
                driver.runner.run(driver.make(driver.extend(row, [5, 9 + row], WARM)))
            sizes, tokens = [], []
            for count in (8, 5, 6, 3, 6, 8, 5):
                tokens.append(read(driver.runner.run(driver.make(decode=tuple(range(count)))).tokens))
                sizes.append([shape.size for shape in graphs.captured])
            told.append(tokens)
            assert sizes == ([[8], [8], [8], [8, 3], [8, 3, 6], [8, 3, 6], [8, 3, 6]] if captured else [[]] * 7)
    assert told[0] == told[1]


def test_rows_that_only_write_draw_once_before_they_have_a_graph(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, found = [], []
    with torch.inference_mode():
        for captured in (True, False):
            driver = make_device_driver(tiny, captured=True)
            graphs = driver.runner.graphs
            monkeypatch.setattr(graphs, "_capture", captured)
            monkeypatch.setattr(graphs, "_record", partial(Replays, graphs))
            for row in range(4):
                driver.runner.run(driver.make(driver.extend(row, [5, 9 + row], WARM)))
            driver.runner.run(driver.make(decode=(0, 1, 2, 3)))
            tokens = []
            for row in (0, 1, 2):
                done = driver.runner.run(msgspec.structs.replace(driver.make(decode=(row,)), writes=True))
                assert (done.rows, done.tokens) == (b"", b"")
                found += [[tuple(shape) for shape in graphs.captured]]
                prefix, begun = list(driver.slots[row]), row + 5
                branch = driver.extend(begun, [7], WARM, start=len(prefix), prefix_slots=prefix, seed=3)
                tokens += read(driver.runner.run(driver.make(branch)).tokens)
            tokens += read(driver.runner.run(driver.make(decode=(3,))).tokens)
            told.append(tokens)
    four, one, writing = (4, -1, False, False), (1, -1, False, False), (1, -1, False, True)
    assert found == [[four, one], [four, one, writing], [four, one, writing], [], [], []]
    assert told[0] == told[1]


def test_sizes_are_told_apart_by_what_else_a_graph_is_for(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.inference_mode():
        driver = make_device_driver(tiny, captured=True)
        graphs = driver.runner.graphs
        monkeypatch.setattr(graphs, "_capture", True)
        monkeypatch.setattr(graphs, "_record", partial(Replays, graphs))
        for row in range(8):
            driver.runner.run(driver.make(driver.extend(row, [5, 9 + row], WARM)))
        driver.runner.run(driver.make(decode=tuple(range(8))))
        assert graphs.size_for(5) == 8, "it has a graph"
        monkeypatch.setattr(graphs, "_last", (1, False))
        assert graphs.size_for(5) == 6, "rows that attend together in such groups have none"
