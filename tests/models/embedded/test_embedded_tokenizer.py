"""The shipped tokenizer: any text comes back, digits stand alone, chats are laid out in ChatML."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from callboard.models.embedded import path
from callboard.models.embedded.documents import Turn, chat
from callboard.models.embedded.tokenizer import CHAT_TEMPLATE, build


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(path() / "tokenizer.json"))


TOKENIZER = Tokenizer.from_file(str(path() / "tokenizer.json"))


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_comes_back(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_have_the_first_ids_and_are_never_split(tokenizer):
    assert tokenizer.get_vocab_size() == 4096
    for number, token in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>")):
        assert tokenizer.token_to_id(token) == number
        assert tokenizer.encode(f"a{token}b", add_special_tokens=False).ids.count(number) == 1


def test_digits_stand_alone(tokenizer):
    assert tokenizer.encode("12 + 345", add_special_tokens=False).tokens == ["1", "2", "Ġ+", "Ġ", "3", "4", "5"]


def test_nothing_is_added_to_a_text(tokenizer):
    assert tokenizer.encode("Hello").ids == tokenizer.encode("Hello", add_special_tokens=False).ids


def test_text_cut_before_a_newline_has_the_same_tokens(tokenizer):
    whole = tokenizer.encode("Q: Why?\nA: So.\nQ: And?", add_special_tokens=False).ids
    parts = [tokenizer.encode(part, add_special_tokens=False).ids for part in ("Q: Why?\nA:", " So.", "\nQ: And?")]
    assert [token for part in parts for token in part] == whole


def test_the_chat_template_writes_chatml_without_a_system_prompt_of_its_own():
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(path())
    said = [{"role": "user", "content": "Hi"}]
    text = loaded.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    said = [{"role": "system", "content": "Be brief."}, *said, {"role": "assistant", "content": "Hello."}]
    assert loaded.apply_chat_template(said, tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
    )
    assert loaded.eos_token == "<|im_end|>"
    assert (path() / "chat_template.jinja").read_text() == CHAT_TEMPLATE


def test_training_chats_are_laid_out_as_the_template_lays_them_out():
    from random import Random

    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(path())
    turn = Turn("Hi", "Hello!", "Hello!")
    expected = loaded.apply_chat_template(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}], tokenize=False
    )
    written = {"".join(piece.text for piece in chat(Random(i), [turn])) + "\n" for i in range(40)}
    assert expected in written


def test_a_small_tokenizer_trains_to_the_size_asked_for():
    built = build(documents_read=200, vocabulary=400)
    assert built.get_vocab_size() == 400
    assert built.decode(built.encode("Grüße, 東京!").ids, skip_special_tokens=False) == "Grüße, 東京!"
