"""Log-probabilities on a device are torch's log softmax, of the chosen token and of the most likely few."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .triton_device import DEVICE, GPU

from callboard.kernels.sampler.logprobs import log_probabilities  # isort: skip

VOCABULARY = 151_936 if GPU else 309
BLOCK = 1024 if GPU else 32


def ask(logits: Tensor, places: list[int], tokens: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ask about lines; chosen, most likely tokens and their log-probabilities."""
    count = len(places)
    words = torch.full((count * (1 + 2 * width),), -7, dtype=torch.int32, device=DEVICE)
    log_probabilities(
        logits.to(DEVICE), torch.tensor(places, device=DEVICE), tokens.to(DEVICE), width, words, block=BLOCK
    )
    chosen, top_tokens, top = words.cpu().split((count, count * width, count * width))
    return chosen.view(torch.float32), top_tokens.view(count, width), top.view(torch.float32).view(count, width)


@pytest.mark.parametrize("width", [0, 1, 5, 20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_it_tells_what_log_softmax_and_topk_tell(width: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(4, VOCABULARY) * 4).to(dtype)
    tokens = torch.randint(VOCABULARY, (4,))
    places = [3, 0, 1]
    chosen, top_tokens, top = ask(logits, places, tokens, width)
    wanted = logits.double().log_softmax(-1)[places]
    torch.testing.assert_close(chosen.double(), wanted.gather(1, tokens[places, None])[:, 0], atol=2e-5, rtol=1e-6)
    torch.testing.assert_close(top.double(), wanted.topk(width).values, atol=2e-5, rtol=1e-6)
    torch.testing.assert_close(wanted.gather(1, top_tokens.long()), top.double(), atol=2e-5, rtol=1e-6)
    assert all(len(set(line)) == width for line in top_tokens.tolist())


def test_equal_logits_are_told_in_order_of_id_wherever_they_lie() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, [1, 40, 41, 200]] = 2.0
    logits[0, [3, 4]] = -0.0  # which is no less than 0
    _, top_tokens, _ = ask(logits, [0], torch.zeros(1, dtype=torch.int32), 9)
    assert top_tokens.tolist() == [[1, 40, 41, 200, 0, 2, 3, 4, 5]]


def test_tokens_that_cannot_be_are_told_as_such_and_harm_nobody() -> None:
    logits = torch.full((2, VOCABULARY), -torch.inf)
    logits[0, [5, 99]] = torch.tensor([1.0, 0.0])
    logits[1] = torch.randn(VOCABULARY)
    logits[1, 8] = torch.nan
    chosen, top_tokens, top = ask(logits, [0, 1], torch.tensor([99, 3]), 3)
    assert chosen[0].item() == pytest.approx(-1.0 - torch.tensor(1.0 + torch.e**-1.0).log().item(), abs=1e-5)
    assert top_tokens[0].tolist() == [5, 99, 0]
    assert top[0, 2].item() == -torch.inf
    assert chosen[1].isnan()
    assert ((top_tokens >= 0) & (top_tokens < VOCABULARY)).all()
