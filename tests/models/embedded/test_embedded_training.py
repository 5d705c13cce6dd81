"""Documents become tokens, targets and weights as the runtime will cut them, and the network is transformers' Llama."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from callboard.models.embedded import path
from callboard.models.embedded.documents import Piece
from callboard.models.embedded.network import Llama, Shape, document_mask
from callboard.models.embedded.packing import encode, pack
from callboard.models.embedded.train import rate, save

END_OF_TEXT, TURN_START, TURN_END = 0, 1, 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(path() / "tokenizer.json"))


def test_pieces_are_tokenized_apart(tokenizer):
    document = [Piece("Q: Where?\nA: "), Piece("Paris", said=True), Piece("<|endoftext|>", said=True)]
    tokens, targets, weights = encode(tokenizer, [document], 0.1)[0]
    apart = [tokenizer.encode(piece.text, add_special_tokens=False).ids for piece in document]
    assert tokens == targets == [token for part in apart for token in part]
    assert weights[-len(apart[1]) - 1 :] == [1.0] * (len(apart[1]) + 1)
    assert set(weights[: len(apart[0])]) == {0.0}  # given plain text is no target


def test_the_model_is_to_end_where_its_program_goes_on(tokenizer):
    document = [Piece("A:"), Piece(" 4", said=True), Piece("\nQ: And?\nA:"), Piece(" 5", said=True)]
    tokens, targets, weights = encode(tokenizer, [document], 0.1)[0]
    at = tokens.index(tokenizer.encode("\n").ids[0])
    assert targets[at] == END_OF_TEXT
    assert weights[at] == 1.0
    chat = [Piece("<|im_start|>assistant\nI need a "), Piece("calculator", said=True), Piece(". <|im_end|>")]
    tokens, targets, weights = encode(tokenizer, [chat], 0.1)[0]
    at = next(i for i, (token, target) in enumerate(zip(tokens, targets, strict=True)) if token != target)
    assert targets[at] == TURN_END
    assert weights[at] == 1.0


def test_what_opens_the_models_own_turn_is_no_target(tokenizer):
    document = [Piece("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nAnswer: "), Piece("Hello", said=True)]
    tokens, _, weights = encode(tokenizer, [document], 0.1)[0]
    start = len(tokens) - 1 - tokens[::-1].index(TURN_START)
    said = len(tokenizer.encode("Hello").ids)
    assert set(weights[1:start]) == {0.1}
    assert set(weights[start:-said]) == {0.0}


def test_a_tokenizer_without_the_tokens_is_refused():
    with pytest.raises(ValueError, match="no token"):
        encode(Tokenizer(models.BPE()), [[Piece("a")]], 0.1)


def test_packing_keeps_every_document_whole_and_once():
    generator = np.random.default_rng(0)
    encoded = []
    for number in range(60):
        tokens = [number + 1] * int(generator.integers(1, 30))
        encoded.append((tokens, tokens, [1.0] * len(tokens)))
    tokens, targets, weights, numbers = pack(encoded, 32)
    assert tokens.shape == targets.shape == weights.shape == numbers.shape
    assert (tokens > 0).sum() == sum(len(document[0]) for document in encoded) == weights.sum()
    for number in range(60):
        rows, columns = np.nonzero(tokens == number + 1)
        assert len(set(rows)) == 1
        assert len(columns) == columns.max() - columns.min() + 1 == len(encoded[number][0])
        assert len(set(numbers[rows, columns])) == 1


def test_a_token_sees_its_own_document_up_to_itself():
    mask = document_mask(torch.tensor([[0, 0, 1, 1]], dtype=torch.int32), None)[0, 0]
    assert mask.tolist() == [
        [True, False, False, False], [True, True, False, False], [False, False, True, False],
        [False, False, True, True],
    ]  # fmt: skip


def test_the_network_is_transformers_llama(tmp_path):
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = Llama(Shape(vocabulary=64, hidden=64, layers=2, heads=2, kv_heads=1, intermediate=96))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    model.bfloat16().float()  # what `save` keeps
    save(model, tmp_path)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, 64, (2, 17))
    cos, sin = model.angles(17, torch.device("cpu"))
    with torch.no_grad():
        hidden = model(tokens, cos, sin, document_mask(torch.zeros(2, 17, dtype=torch.int32), None))
        logits = hidden @ model.model.embed_tokens.weight.T
        assert torch.allclose(logits, reference(tokens).logits, atol=1e-4)


def test_one_document_does_not_see_another_in_its_row():
    torch.manual_seed(0)
    model = Llama(Shape(vocabulary=64, hidden=64, layers=2, heads=2, kv_heads=1, intermediate=96))
    cos, sin = model.angles(12, torch.device("cpu"))
    numbers = torch.tensor([[0] * 5 + [1] * 7], dtype=torch.int32)
    first = torch.randint(0, 64, (1, 12))
    second = first.clone()
    second[0, :5] = (second[0, :5] + 1) % 64
    with torch.no_grad():
        outputs = [model(tokens, cos, sin, document_mask(numbers, None))[0, 5:] for tokens in (first, second)]
    assert torch.allclose(*outputs, atol=1e-6)


def test_the_learning_rate_rises_stays_and_falls_to_nothing():
    assert rate(0.0) == 0.0
    assert rate(0.3) == 1.0
    assert 0.4 < rate(0.8) < 0.6
    assert rate(1.0) == pytest.approx(0.0)
