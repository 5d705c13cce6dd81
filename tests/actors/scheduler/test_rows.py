"""The rows' tables grow with what runs, and what runs keeps what it has."""

from __future__ import annotations

from callboard.actors.messages import Generate
from callboard.actors.sampling import SamplingParams
from callboard.actors.scheduler.node import Node
from callboard.actors.scheduler.radix_tree import RadixTree
from callboard.actors.scheduler.request import Request
from callboard.actors.scheduler.rows import Beginning, Rows

from ...support.schedule_driver import pack


def request(number: int, prompt: list[int], *, output: tuple[int, ...] = ()) -> Request:
    sampling = SamplingParams(max_new_tokens=8, ignore_eos=True)
    return Request(Generate(number, pack(prompt), sampling, pack(list(output))), number, 0)


def begun(rows: Rows, asked: Request, node: Node, prefix: list[int], expected: int) -> int:
    row = rows.take(asked, node)
    rows.begin([Beginning(row, asked, node, len(prefix), expected)])
    rows.slots[row, : len(prefix)] = prefix
    return row


def test_a_longer_prompt_leaves_rows_that_run_as_they_were() -> None:
    rows, root = Rows(8), RadixTree().root()
    short = begun(rows, request(1, [5, 6, 7, 8]), root, [30, 31], 12)
    gone = begun(rows, request(2, [9] * 4), root, [], 12)
    rows.give(gone)
    long = begun(rows, request(3, list(range(1000))), root, list(range(600)), 1008)
    assert long == gone
    assert rows.tokens.shape == rows.slots.shape == (8, 1024)
    assert rows.slots[short, :2].tolist() == [30, 31]
    assert rows.tokens[short, 2:4].tolist() == [7, 8]
    assert rows.slots[long, :600].tolist() == list(range(600))
    assert rows.tokens[long, 600:1000].tolist() == list(range(600, 1000))


def test_what_was_said_in_an_earlier_life_is_the_rows_output_though_all_of_it_is_cached() -> None:
    rows = Rows(2)
    row = begun(rows, request(1, [5, 6], output=(7, 8, 9)), RadixTree().root(), list(range(4)), 12)
    assert rows.output(row) == pack([7, 8, 9])
