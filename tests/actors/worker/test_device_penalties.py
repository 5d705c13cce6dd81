"""A row's line on a device tells what it has had, whatever stood there before."""

from __future__ import annotations

import numpy as np
import torch

from callboard.actors.sampling import SamplingParams
from callboard.actors.worker.device_penalties import DevicePenalties

VOCABULARY = 70
SAMPLING = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=1.5)


def array(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def told(penalties: DevicePenalties, row: int) -> dict[int, int]:
    """Read a line as the kernels do: counts of the tokens whose bits are set."""
    history, line = penalties.history(), penalties.lines([row])[0]
    words, counts = history.seen_LW[line].tolist(), history.counts_LV[line].tolist()
    return {token: counts[token] for token in range(VOCABULARY) if words[token // 32] >> (token % 32) & 1}


def test_prompt_and_output_are_seen_and_output_is_counted() -> None:
    penalties = DevicePenalties(VOCABULARY, torch.device("cpu"))
    penalties.begin(4, SAMPLING, array(31, 31, 69, 32, 70), array(0, 31, 99))  # 70 and 99 are no tokens
    assert told(penalties, 4) == {31: 2, 69: 1, 32: 1, 0: 0}
    assert penalties.history().strengths_L3[penalties.lines([4])[0]].tolist() == [0.5, 0.25, 1.5]
    assert penalties.has(4)
    assert not penalties.has(0)


def test_several_tokens_are_added_at_once() -> None:
    penalties = DevicePenalties(VOCABULARY, torch.device("cpu"))
    penalties.begin(0, SAMPLING, array(31), array(5))
    penalties.history().counts_LV[0, 40] = 12345  # rubbish: its bit is not set
    penalties.add(0, array(31, 40, 5, 63, 31, 40, 64, 70))
    assert told(penalties, 0) == {31: 3, 40: 2, 5: 1, 63: 1, 64: 1}


def test_a_line_that_changes_hands_forgets_and_others_stay() -> None:
    penalties = DevicePenalties(VOCABULARY, torch.device("cpu"))
    for row in range(5):
        penalties.begin(row, SAMPLING, array(row, row), array())
    assert [told(penalties, row) for row in range(5)] == [{row: 2} for row in range(5)]
    penalties.retire(3)
    penalties.begin(9, SAMPLING, array(), array(8))
    penalties.retire(9)  # before anybody looked
    penalties.begin(7, SAMPLING, array(60), array())
    assert penalties.lines([7]) == [3]
    assert told(penalties, 7) == {60: 1}
    assert told(penalties, 4) == {4: 2}
