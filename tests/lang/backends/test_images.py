"""Images in the words of each service, and what each refuses."""

from __future__ import annotations

import struct
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard import InvalidRequest
from callboard.lang.backends.templates import template_named

from .dialects import ANTHROPIC, CHAT, COMPLETION, GOOGLE, NATIVE, Dialect, service_of
from .service import serving, stream

pytestmark = pytest.mark.anyio

GIF = b"GIF89a" + struct.pack("<HH", 2, 3) + b"\0\0\0;"
DATA = "R0lGODlhAgADAAAAADs="
ELSEWHERE = "https://example.com/a.png"


@cb.function
def look(s: Any, *pictures: Any) -> None:
    s += cb.system("Look.")
    for picture in pictures:
        s += cb.user(cb.image(picture) + "What is it?")
        s += cb.assistant(cb.gen("answer", max_tokens=9))


@cb.function
def bare(s: Any) -> None:
    s += "What is " + cb.image(GIF) + cb.gen("answer", max_tokens=9)


async def asked(dialect: Dialect, program: Any, *pictures: Any, **options: Any) -> list[dict[str, Any]]:
    told = [stream(*dialect.told("a", "b")) for _ in range(3)]
    with anyio.fail_after(20):
        async with serving(service_of(dialect, *told)) as service, dialect.make(service.url, **options) as backend:
            assert (await program.arun(*pictures, backend=backend))["answer"] == "ab"
            return [one.body for one in service.asked]


async def test_openai_is_sent_parts() -> None:
    first, second = await asked(CHAT, look, GIF, ELSEWHERE)
    question = {"type": "text", "text": "What is it?"}
    shown = [
        {"role": "system", "content": "Look."},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": f"data:image/gif;base64,{DATA}"}}, question],
        },
    ]
    assert first["messages"] == shown
    assert second["messages"] == [
        *shown,
        {"role": "assistant", "content": "ab"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": ELSEWHERE}}, question]},
    ]
    (alone,) = await asked(CHAT, bare)
    assert alone["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is "},
                {"type": "image_url", "image_url": {"url": f"data:image/gif;base64,{DATA}"}},
            ],
        }
    ]


async def test_anthropic_is_sent_blocks() -> None:
    first, second = await asked(ANTHROPIC, look, GIF, ELSEWHERE)
    question = {"type": "text", "text": "What is it?"}
    assert first["system"] == "Look."
    assert first["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": DATA}}, question
            ],
        }
    ]  # fmt: skip
    assert second["messages"][2]["content"] == [
        {"type": "image", "source": {"type": "url", "url": ELSEWHERE}}, question
    ]  # fmt: skip


async def test_google_is_sent_inline_data() -> None:
    (first,) = await asked(GOOGLE, look, GIF)
    assert first["contents"] == [
        {"role": "user", "parts": [{"inlineData": {"mime_type": "image/gif", "data": DATA}}, {"text": "What is it?"}]}
    ]


async def test_a_server_is_sent_text_and_images_beside() -> None:
    template = template_named("qwen2-vl")
    first, second = await asked(NATIVE, look, GIF, ELSEWHERE, chat_template=template)
    assert first["image_data"] == [f"data:image/gif;base64,{DATA}"]
    assert second["image_data"] == [f"data:image/gif;base64,{DATA}", ELSEWHERE]
    assert "<|vision_start|><|image_pad|><|vision_end|>What is it?" in first["text"]
    assert second["text"].count("<|image_pad|>") == 2
    (plain,) = await asked(NATIVE, cb.function(lambda s: s.append("a" + cb.gen("answer"))))
    assert "image_data" not in plain


async def test_who_reads_text_alone_refuses_before_anything_is_sent() -> None:
    with anyio.fail_after(20):
        async with serving(service_of(COMPLETION)) as service, COMPLETION.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="image: OpenAI completion model .* reads text alone"):
                await look.arun(GIF, backend=backend)
            assert service.asked == []
        async with serving(service_of(GOOGLE)) as service, GOOGLE.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="image: .* takes images and not their URLs"):
                await look.arun(ELSEWHERE, backend=backend)
            assert service.asked == []
        told = NATIVE._replace(pages={**NATIVE.pages, "/model_info": {"has_image_understanding": False}})
        async with serving(service_of(told)) as service, told.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="image: the server .* reads text alone"):
                await look.arun(GIF, backend=backend)
            assert service.asked == []


async def test_a_text_that_says_the_stand_in_is_no_image() -> None:
    @cb.function
    def says(s: Any) -> None:
        s += cb.user(cb.image(GIF) + "What does <image> mean?")
        s += cb.assistant(cb.gen("answer"))

    with anyio.fail_after(20):
        async with serving(service_of(NATIVE)) as service, NATIVE.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="'<image>' stands for an image here"):
                await says.arun(backend=backend)
            assert service.asked == []
    (body,) = await asked(CHAT, says)  # where images have places of their own, it is text
    assert body["messages"][0]["content"][1] == {"type": "text", "text": "What does <image> mean?"}


async def test_choices_are_not_scored_behind_an_image() -> None:
    @cb.function
    def choose(s: Any) -> None:
        s += cb.user(cb.image(GIF))
        s += cb.assistant(cb.select("answer", ["cat", "dog"]))

    with anyio.fail_after(20):
        async with serving(service_of(NATIVE)) as service, NATIVE.make(service.url) as backend:
            with pytest.raises(InvalidRequest, match="choices: .*not behind images"):
                await choose.arun(backend=backend)
            assert service.asked == []
