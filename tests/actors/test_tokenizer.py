"""Text to ids and back; long texts leave the loop free; a sequence begins once."""

from __future__ import annotations

import anyio
import numpy as np
import pytest
from tokenizers import Tokenizer as Vocabulary
from tokenizers.processors import TemplateProcessing

from callboard.actors.core import Supervisor
from callboard.actors.errors import InvalidRequest
from callboard.actors.messages import Decode, Encode
from callboard.actors.tokenizer import Tokenizer, load_vocabulary

from .vocabularies import TEXT, byte_level

pytestmark = pytest.mark.anyio


def ids(packed: bytes) -> list[int]:
    return np.frombuffer(packed, np.int32).tolist()


def with_beginning() -> Vocabulary:
    vocabulary = byte_level()
    start = vocabulary.token_to_id("<|im_start|>")
    vocabulary.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)])
    return vocabulary


async def test_short_and_long_texts_come_back_as_the_tokenizer_has_them() -> None:
    vocabulary = byte_level()
    async with Supervisor("test") as supervisor:
        tokenizer = await supervisor.spawn(lambda: Tokenizer(vocabulary), name="tokenizer")
        for text in (*TEXT, "long " * 1000, ""):
            (packed,) = await tokenizer.ask(Encode((text,)))
            assert ids(packed) == vocabulary.encode(text, add_special_tokens=False).ids
            assert await tokenizer.ask(Decode((packed,))) == [text]
        assert len(await tokenizer.ask(Encode(tuple(TEXT)))) == len(TEXT)


async def test_a_short_text_does_not_wait_behind_a_long_one() -> None:
    vocabulary = byte_level()
    order: list[str] = []
    async with Supervisor("test") as supervisor:
        tokenizer = await supervisor.spawn(lambda: Tokenizer(vocabulary), name="tokenizer")

        async def ask(name: str, text: str) -> None:
            await tokenizer.ask(Encode((text,)))
            order.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "long", "long " * 200_000)
            group.start_soon(ask, "short", "short")
    assert order == ["short", "long"]


@pytest.mark.parametrize("length", [1, 600])
async def test_half_a_character_is_refused_and_harms_nobody_else(length: int) -> None:
    crashed: list[object] = []
    async with Supervisor("test", restarts=0, dead_letter=crashed.append) as supervisor:
        tokenizer = await supervisor.spawn(lambda: Tokenizer(byte_level()), name="tokenizer")
        for texts in (("a" * length + "\ud83d",), ("whole", "a" * length + "\ud83d")):
            with pytest.raises(InvalidRequest, match=rf"text: it holds half a character, '\\ud83d' at {length}"):
                await tokenizer.ask(Encode(texts))
        assert await tokenizer.ask(Encode(("whole",))), "it is the same actor: none was started anew"
    assert crashed == []


async def test_a_beginning_token_stands_at_the_beginning_of_a_sequence_and_only_once() -> None:
    vocabulary = with_beginning()
    start = vocabulary.token_to_id("<|im_start|>")
    async with Supervisor("test") as supervisor:
        tokenizer = await supervisor.spawn(lambda: Tokenizer(vocabulary), name="tokenizer")
        (begun,) = await tokenizer.ask(Encode(("Paris",), beginning=True))
        (written,) = await tokenizer.ask(Encode(("<|im_start|>Paris",), beginning=True))
        (later,) = await tokenizer.ask(Encode(("Paris",)))
    assert ids(begun) == ids(written) == [start, *ids(later)]
    assert start not in ids(later)


def test_a_folder_without_a_tokenizer_says_what_to_do(tmp_path) -> None:
    with pytest.raises(ValueError, match="model: .* has no tokenizer.json; save"):
        load_vocabulary(tmp_path)
