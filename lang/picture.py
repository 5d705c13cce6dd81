"""What an image is given as, and the URL it travels as: read, told by its first bytes, and held to bounds."""

from __future__ import annotations

import binascii
import io
import os
import stat
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from ..actors.errors import InvalidRequest

__all__ = ["MOST_BYTES", "MOST_PIXELS", "data_url", "picture_url"]

MOST_BYTES = 20 << 20
"""The largest file that is sent."""
MOST_PIXELS = 64_000_000
"""The most pixels, as the file's header tells them: whoever decodes it needs memory for all of them."""

_KINDS = "PNG, JPEG, WebP or GIF"


def picture_url(given: Any) -> str:
    """Give the URL of an image: a data: URL of what was read, or an http(s) URL as it is, which is not fetched here.

    given: a path, the file's bytes, an image of Pillow's, a data: URL, an http: or https: URL.  InvalidRequest for
    anything else, for a file that is no PNG, JPEG, WebP or GIF, whatever its name says, and for one that is too large.
    """
    if isinstance(given, (bytes, bytearray, memoryview)):
        return data_url(bytes(given))
    if isinstance(given, str):
        scheme, colon, _ = given.partition(":")
        if scheme.lower() in ("http", "https") and given[len(scheme) :].startswith("://"):
            return given
        if scheme.lower() == "data" and colon:
            return data_url(_of_data_url(given))
        if scheme.lower() == "file" or "://" in given:
            raise InvalidRequest(
                "image", f"{given!r:.80}: of URLs, data:, http: and https: are taken; give a file by its path"
            )
    if isinstance(given, (str, os.PathLike)):
        return data_url(_of_file(Path(given)))
    if callable(getattr(given, "save", None)) and isinstance(getattr(given, "size", None), tuple):
        return data_url(_of_drawn(given))
    raise InvalidRequest("image", f"{given!r:.80} is no path, bytes, Pillow image, data: URL or http(s) URL")


def data_url(data: bytes) -> str:
    """Give an image file as a data: URL; InvalidRequest if it is none, or too large."""
    if len(data) > MOST_BYTES:
        raise InvalidRequest("image", f"{len(data)} bytes given, at most {MOST_BYTES} allowed")
    kind, size = _look(data)
    _verify_size(size)
    return f"data:image/{kind};base64,{b64encode(data).decode()}"


def _of_data_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidRequest("image", f"{url[:40]!r} is no data: URL in base64 (data:image/png;base64,...)")
    if len(body) > MOST_BYTES // 3 * 4 + 4:
        raise InvalidRequest("image", f"{len(body)} characters of base64 are more than {MOST_BYTES} bytes")
    try:
        return b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("image", f"{url[:40]!r} holds no base64: {error}") from None


def _of_file(path: Path) -> bytes:
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES:
            return path.read_bytes()
    except OSError as error:
        raise InvalidRequest("image", f"{str(path)!r:.80} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a name that no file can have
        raise InvalidRequest("image", f"{str(path)!r:.80} cannot be read: {error}") from None
    if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
        raise InvalidRequest("image", f"{str(path)!r:.80} is no regular file")
    raise InvalidRequest("image", f"{found.st_size} bytes in {str(path)!r:.80}, at most {MOST_BYTES} allowed")


def _of_drawn(image: Any) -> bytes:
    _verify_size(tuple(image.size))
    file = io.BytesIO()
    try:
        image.save(file, format="PNG")
    except (OSError, ValueError, KeyError) as error:
        raise InvalidRequest("image", f"{image!r:.80} cannot be written as PNG: {error}") from None
    return file.getvalue()


def _verify_size(size: tuple[int, ...]) -> None:
    width, height = size
    if width < 1 or height < 1 or width * height > MOST_PIXELS:
        raise InvalidRequest("image", f"{width} x {height} pixels given, 1 to {MOST_PIXELS} allowed")


def _look(data: bytes) -> tuple[str, tuple[int, int]]:
    """Tell a file's kind by its first bytes, and its width and height by its header; nothing is decoded."""
    kind, size = "", None
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        kind, size = "png", _two(data, 16, 4, "big") if data[12:16] == b"IHDR" else None
    elif data.startswith((b"GIF87a", b"GIF89a")):
        kind, size = "gif", _two(data, 6, 2, "little")
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind, size = "webp", _webp_size(data)
    elif data.startswith(b"\xff\xd8\xff"):
        kind, size = "jpeg", _jpeg_size(data)
    if not kind:
        raise InvalidRequest("image", f"what begins with {data[:8]!r} is no {_KINDS} file")
    if size is None:
        raise InvalidRequest("image", f"the {kind} file is cut before its width and height, or broken")
    return kind, size


def _two(data: bytes, place: int, width: int, order: Any) -> tuple[int, int] | None:
    if len(data) < place + 2 * width:
        return None
    first, second = data[place : place + width], data[place + width : place + 2 * width]
    return int.from_bytes(first, order), int.from_bytes(second, order)


def _webp_size(data: bytes) -> tuple[int, int] | None:
    form = data[12:16]
    if form == b"VP8X":  # 24 bits each, less one
        size = _two(data, 24, 3, "little")
        return None if size is None else (size[0] + 1, size[1] + 1)
    if form == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":  # 14 bits each; two bits of scale above
        size = _two(data, 26, 2, "little")
        return None if size is None else (size[0] & 0x3FFF, size[1] & 0x3FFF)
    if form == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:  # 14 bits each, less one, packed
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start-of-frame markers
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a segment


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walk from segment to segment until one that begins a frame."""
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF or marker in _BARE:
            place += 1 if marker == 0xFF else 2
            continue
        if marker in _FRAMES:
            size = _two(data, place + 5, 2, "big")
            return None if size is None else (size[1], size[0])
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        if length < 2:
            return None
        place += 2 + length
    return None
