"""A video as the images a model is shown: frames at even distances, decoded by PyAV."""

from __future__ import annotations

import stat
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..actors.errors import InvalidRequest
from .picture import MOST_PIXELS, data_url

__all__ = ["MOST_FRAMES", "frame_urls", "verify_film"]

MOST_FRAMES = 128


def verify_film(path: str, frames: int) -> None:
    """Raise InvalidRequest if there is no such file, or nothing here that could decode it; nothing is decoded."""
    try:
        regular = stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError) as error:
        raise InvalidRequest("video", f"{path!r:.80} cannot be read: {error}") from None
    if not regular:
        raise InvalidRequest("video", f"{path!r:.80} is no regular file")
    if find_spec("av") is None:
        raise InvalidRequest("video", f"{frames} frames of a video need a decoder: pip install 'callboard[video]'")


def frame_urls(path: str, count: int) -> list[str]:
    """Give `count` frames as data: URLs of JPEGs, the middles of as many equal parts; all of them if there are fewer.

    The whole file is decoded once, in order, so that no frame depends on where a container lets one seek; call it in
    a thread.  InvalidRequest if it cannot be decoded.
    """
    av: Any = import_module("av")
    try:
        total = sum(1 for _ in _decoded(av, path))
        if not total:
            raise InvalidRequest("video", f"{path!r:.80} has no frame")
        count = min(count, total)
        wanted = {(2 * index + 1) * total // (2 * count) for index in range(count)}
        return [data_url(_jpeg(av, frame)) for number, frame in enumerate(_decoded(av, path)) if number in wanted]
    except (av.FFmpegError, OSError) as error:
        raise InvalidRequest("video", f"{path!r:.80} cannot be decoded: {error}") from error


def _decoded(av: Any, path: str) -> Any:
    """Give the frames of the first video stream, one after the other."""
    with av.open(str(Path(path)), options={"protocol_whitelist": "file"}) as container:  # a playlist fetches nothing
        if not container.streams.video:
            raise InvalidRequest("video", f"{path!r:.80} holds no video")
        stream = container.streams.video[0]
        if stream.width * stream.height > MOST_PIXELS:
            raise InvalidRequest("video", f"{stream.width} x {stream.height} pixels, at most {MOST_PIXELS} allowed")
        yield from container.decode(stream)


def _jpeg(av: Any, frame: Any) -> bytes:
    """Write a frame as a JPEG file, with the decoder's own library."""
    from fractions import Fraction

    frame = frame.reformat(format="yuvj420p")
    frame.pts = 0
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height = frame.width, frame.height
    encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 1)
    return b"".join(bytes(packet) for packet in (*encoder.encode(frame), *encoder.encode(None)))
