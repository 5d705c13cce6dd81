"""The small language model that ships with callboard, and all it was made from."""

from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """Return the folder with the model's files, in the Hugging Face layout."""
    return Path(__file__).parent / "weights"
