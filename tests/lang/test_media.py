"""Images and videos in programs: what is read, what is refused, and how a state tells of them."""

from __future__ import annotations

import os
import struct
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import anyio
import pytest

import callboard as cb
from callboard import InvalidRequest
from callboard.lang.film import frame_urls
from callboard.lang.picture import MOST_BYTES, data_url

pytestmark = pytest.mark.anyio


def png(width: int = 2, height: int = 3) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\x80" * 3 * width for _ in range(min(height, 16)))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def jpeg(width: int, height: int) -> bytes:
    exif = b"\xff\xe1" + struct.pack(">H", 10) + b"\xff\xc0junk  "  # a frame's marker inside of another segment
    frame = b"\xff\xc2" + struct.pack(">HBHH", 8, 8, height, width) + b"\0"
    return b"\xff\xd8" + exif + b"\xff" + frame + b"\xff\xd9"


def webp(form: bytes, body: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + form + b"\0\0\0\0" + body


def extended(width: int, height: int) -> bytes:
    return webp(b"VP8X", b"\0" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height | 0x4000))


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little"))


PICTURES = [("png", png), ("gif", gif), ("jpeg", jpeg), ("webp", extended), ("webp", lossy), ("webp", lossless)]


@pytest.mark.parametrize(("kind", "make"), PICTURES)
def test_a_file_is_what_its_first_bytes_say(kind: str, make: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture.txt"
    path.write_bytes(make(20, 30))
    url = cb.image(str(path)).url
    assert url.startswith(f"data:image/{kind};base64,")
    assert url == cb.image(path).url == cb.image(make(20, 30)).url == cb.image(url).url


@pytest.mark.parametrize(("kind", "make"), PICTURES)
def test_pixels_are_counted_by_the_header(kind: str, make: Any) -> None:
    assert data_url(make(8000, 8000)).startswith(f"data:image/{kind}")
    with pytest.raises(InvalidRequest, match="image: 8001 x 8000 pixels given, 1 to 64000000 allowed"):
        data_url(make(8001, 8000))
    with pytest.raises(InvalidRequest, match="cut before its width and height|no PNG"):
        data_url(make(20, 30)[:8])


def test_a_picture_without_pixels_is_none() -> None:
    with pytest.raises(InvalidRequest, match="0 x 3 pixels"):
        data_url(png(0, 3))


def test_an_image_of_pillow_s_is_written_as_png() -> None:
    class Drawn:
        size = (2, 3)

        def save(self, file: Any, format: str) -> None:
            assert format == "PNG"
            file.write(png())

    assert cb.image(Drawn()).url == data_url(png())
    Drawn.size = (100_000, 100_000)
    with pytest.raises(InvalidRequest, match="100000 x 100000 pixels"):
        cb.image(Drawn())


def test_what_is_elsewhere_is_passed_on_and_not_fetched() -> None:
    for url in ("http://127.0.0.1:1/a.png", "https://example.com/a.png?b=c", "HTTPS://example.com/a"):
        assert cb.image(url).url == url


@pytest.mark.parametrize(
    "given",
    [
        "file:///etc/passwd", "FILE:/etc/passwd", "ftp://example.com/a.png", "/etc/passwd", "/dev/zero", "no such file",
        "nul\0", "data:image/png,abc", "data:image/png;base64,%%%", "data:text/html;base64,PGI+", b"", b"<svg>", 5,
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_name(given: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cb.image(given)
    assert caught.value.field == "image"


def test_bytes_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(png())
    os.truncate(path, MOST_BYTES + 1)
    for given in (path, png() + bytes(MOST_BYTES)):
        with pytest.raises(InvalidRequest, match=f"at most {MOST_BYTES} allowed"):
            cb.image(given)


@cb.function
def look(s: Any, *pictures: Any) -> None:
    s += cb.system("Look.")
    s += cb.user("Here: " + sum_of(pictures) + "What is it?")
    s += cb.assistant(cb.gen("answer"))
    with s.user():
        s += "Again?"
    s += cb.assistant(cb.gen("sure"))


def sum_of(pictures: Any) -> Any:
    first, *others = (cb.image(picture) for picture in pictures)
    return sum(others, first)


async def test_messages_have_parts_and_the_text_has_a_stand_in() -> None:
    async with cb.NullBackend(text="A cat.") as backend:
        state = await look.arun(png(), "https://example.com/b", backend=backend)
    assert state.messages()[:3] == [
        {"role": "system", "content": "Look."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Here: "},
                {"type": "image_url", "image_url": {"url": data_url(png())}},
                {"type": "image_url", "image_url": {"url": "https://example.com/b"}},
                {"type": "text", "text": "What is it?"},
            ],
        },
        {"role": "assistant", "content": "A cat."},
    ]
    assert state.messages()[3] == {"role": "user", "content": "Again?"}
    assert "user: Here: <image><image>What is it?\nassistant: A cat.\nuser: Again?" in state.text()


async def test_branches_go_on_with_the_images_and_joined_texts_keep_theirs() -> None:
    seen: list[Any] = []

    def answer(prompt: Any) -> str:
        seen.append([(prompt.text[first:last], url) for first, last, url in prompt.images])
        return "seen"

    @cb.function
    def program(s: Any) -> None:
        s += "First " + cb.image("http://a/1")
        forks = s.fork(2)
        forks += lambda index: f"branch {index} " + cb.image(f"http://a/b{index}") + cb.gen("x")
        forks.join("concate_and_append")
        s += cb.image("http://a/2") + cb.gen("y")

    async with cb.NullBackend(text=answer) as backend:
        await program.arun(backend=backend)
    first, last = ("<image>", "http://a/1"), ("<image>", "http://a/2")
    branches = [("<image>", "http://a/b0"), ("<image>", "http://a/b1")]
    assert sorted(seen[:2]) == [[first, branches[0]], [first, branches[1]]]
    assert seen[2] == [first, *branches, last]


async def test_an_image_stands_in_no_other_role() -> None:
    async with cb.NullBackend() as backend:
        for role in (cb.system, cb.assistant):
            with pytest.raises(InvalidRequest, match="image: an image stands in user"):
                await cb.function(lambda s, role=role: s.append(role(cb.image(png())))).arun(backend=backend)


async def test_a_backend_that_reads_text_alone_refuses_before_anything_runs(scripted: Any) -> None:
    async with scripted(["unheard"]) as backend:
        with pytest.raises(InvalidRequest, match="image: .*reads text alone"):
            await look.arun(png(), backend=backend)
        assert backend.prompts == []


def test_the_graph_shows_where_an_image_stands() -> None:
    assert "image" in str(cb.function(lambda s: s.append("a" + cb.image(png()) + cb.gen("x"))).trace())


# --- videos ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "frames", "field"),
    [("a", 0, "num_frames"), ("a", True, "num_frames"), ("a", 129, "num_frames"), (5, 1, "path"),
     ("file:///a", 1, "path"), ("http://a/b.mp4", 1, "path")],
)  # fmt: skip
def test_a_video_is_a_path_and_a_number_of_frames(path: Any, frames: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cb.video(path, frames)
    assert caught.value.field == field


@cb.function
def watch(s: Any, path: Any, frames: int) -> None:
    s += cb.user(cb.video(path, frames) + "What happens?")
    s += cb.assistant(cb.gen("answer"))


async def test_without_a_decoder_a_video_is_refused_at_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(b"not much")
    monkeypatch.setattr("callboard.lang.film.find_spec", lambda name: None)
    async with cb.NullBackend() as backend:
        with pytest.raises(InvalidRequest, match=r"video: 4 frames .*callboard\[video\]"):
            await watch.arun(path, 4, backend=backend)
        with pytest.raises(InvalidRequest, match="video: .*no such"):
            await watch.arun("no such film.mp4", 4, backend=backend)
        with pytest.raises(InvalidRequest, match="no regular file"):
            await watch.arun(tmp_path, 4, backend=backend)
        assert backend.generations == 0


def filmed(av: Any, path: Path, frames: int) -> None:
    """Write a film whose frame n is of brightness 10 n."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.time_base = 32, 16, "yuvj420p", Fraction(1, 10)
        for number in range(frames):
            frame = av.VideoFrame(32, 16, "gray")
            frame.planes[0].update(bytes([10 * number]) * frame.planes[0].buffer_size)
            frame.pts = number
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


async def test_frames_of_a_video_are_taken_at_even_distances(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "film.avi"
    filmed(av, path, 20)
    with anyio.fail_after(30):
        async with cb.NullBackend() as backend:
            state = await watch.arun(path, 4, backend=backend)
    parts = state.messages()[0]["content"]
    assert [part["type"] for part in parts] == ["image_url"] * 4 + ["text"]
    bright = [brightness(av, part["image_url"]["url"]) for part in parts[:4]]
    assert bright == pytest.approx([20, 70, 120, 170], abs=4)  # frames 2, 7, 12 and 17
    assert len(frame_urls(str(path), 100)) == 20


async def test_a_file_that_is_no_video_is_told(tmp_path: Path) -> None:
    pytest.importorskip("av")
    path = tmp_path / "film.mp4"
    path.write_bytes(b"not much")
    with anyio.fail_after(30):
        async with cb.NullBackend() as backend:
            with pytest.raises(InvalidRequest, match="video: .*cannot be decoded"):
                await watch.arun(path, 4, backend=backend)


def brightness(av: Any, url: str) -> float:
    import base64
    import io

    with av.open(io.BytesIO(base64.b64decode(url.partition(",")[2])), format="mjpeg") as container:
        frame = next(container.decode(video=0)).reformat(format="gray")
    return bytes(frame.planes[0])[0]
