"""`image` and `video`: what a program shows to a model."""

from __future__ import annotations

import os
from typing import Any

from ..actors.errors import InvalidRequest
from .expression import Image, Video
from .film import MOST_FRAMES
from .picture import picture_url

__all__ = ["image", "video"]


def image(expr: Any) -> Image:
    """Show an image: a path, a file's bytes, an image of Pillow's, a data: URL, or an http(s) URL.

    A file is read now, and is PNG, JPEG, WebP or GIF by its first bytes.  A URL is passed on to backends elsewhere,
    and never fetched here.  A str is a path if it is no URL: what a stranger sent is to be given as bytes.
    """
    return Image(picture_url(expr))


def video(path: str | os.PathLike[str], num_frames: int) -> Video:
    """Show `num_frames` frames of a video file, at even distances, as images.  It needs PyAV (`callboard[video]`)."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidRequest("path", f"{path!r:.80} is no path")
    if isinstance(num_frames, bool) or not isinstance(num_frames, int) or not 1 <= num_frames <= MOST_FRAMES:
        raise InvalidRequest("num_frames", f"{num_frames!r:.80} is not a whole number of frames, 1 to {MOST_FRAMES}")
    name = os.fspath(path)
    if "://" in name or name.startswith("file:"):
        raise InvalidRequest("path", f"{name!r:.80}: a video is given by the path of its file")
    return Video(name, num_frames)
