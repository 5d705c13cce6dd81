"""Documents as rows of tokens: pieces tokenized apart, documents packed into rows of one length."""

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .corpus import documents
from .documents import END_OF_TEXT, TURN_END, TURN_START, Document, Piece

__all__ = ["CHUNK", "Rows", "encode", "epochs", "pack"]

Rows = tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.float16], NDArray[np.int32]]
Encoded = tuple[list[int], list[int], list[float]]

CHUNK = 2500  # documents a task
PROMPT_WEIGHT = 0.1  # what the model is given counts a little: it teaches it the words


def encode(tokenizer: Tokenizer, batch: list[Document], prompt_weight: float) -> list[Encoded]:
    """Tokenize each document piece by piece; return its tokens, what is to be predicted at each, and with what weight.

    Given text counts in chats alone: in plain text the model would learn to ask the next question itself.
    Where something given follows what the model said, the model is to end there: it cannot know what its program
    appends next.
    """
    flat = [piece for document in batch for piece in document]
    encoded = iter(tokenizer.encode_batch_fast([piece.text for piece in flat], add_special_tokens=False))
    ends = {END_OF_TEXT: _id(tokenizer, END_OF_TEXT), TURN_END: _id(tokenizer, TURN_END)}
    start = _id(tokenizer, TURN_START)
    results: list[Encoded] = []
    for document in batch:
        chat = any(TURN_START in piece.text for piece in document)
        end = ends[TURN_END if chat else END_OF_TEXT]
        tokens: list[int] = []
        targets: list[int] = []
        weights: list[float] = []
        before: Piece | None = None
        for piece in document:
            ids = next(encoded).ids
            tokens += ids
            targets += ids
            weights += [1.0] * len(ids) if piece.said else _given_weights(ids, start, prompt_weight if chat else 0.0)
            if before and before.said and not piece.said and ids:
                at = len(tokens) - len(ids)
                targets[at] = end
                weights[at] = 0.0 if before.text in ends else 1.0
            before = piece
        weights[0] = 0.0  # nothing predicts the first token
        results.append((tokens, targets, weights))
    return results


def _id(tokenizer: Tokenizer, token: str) -> int:
    """Return a special token's id; raise ValueError if the tokenizer has none."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token!r}; train it with callboard.models.embedded.tokenizer")
    return found


def _given_weights(ids: list[int], start: int, prompt_weight: float) -> list[float]:
    """Weigh given tokens lightly, and not at all those that open the model's own turn."""
    weights = [prompt_weight] * len(ids)
    last = max((at for at, token in enumerate(ids) if token == start), default=None)
    if last is not None:
        weights[last:] = [0.0] * (len(ids) - last)
    return weights


def pack(encoded: list[Encoded], length: int) -> Rows:
    """Pack documents, each whole, into rows of `length` tokens; too long ones are cut.

    Returns tokens, targets, weights and the number of each token's document in its row; padding is document -1.
    """
    # first fit among a few open rows keeps the padding near one percent
    open_rows: list[list[int]] = []
    rooms: list[int] = []
    for number, (tokens, _, _) in enumerate(encoded):
        size = min(len(tokens), length)
        for row, room in enumerate(rooms):
            if room >= size:
                open_rows[row].append(number)
                rooms[row] -= size
                break
        else:
            open_rows.append([number])
            rooms.append(length - size)
    shape = (len(open_rows), length)
    all_tokens, all_targets = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
    all_weights = np.zeros(shape, np.float16)
    numbers = np.full(shape, -1, np.int32)
    for row, members in enumerate(open_rows):
        at = 0
        for index, number in enumerate(members):
            tokens, targets, weights = encoded[number]
            end = at + min(len(tokens), length)
            all_tokens[row, at:end] = tokens[: end - at]
            all_targets[row, at:end] = targets[: end - at]
            all_weights[row, at:end] = weights[: end - at]
            numbers[row, at:end] = index
            at = end
    return all_tokens, all_targets, all_weights, numbers


def _chunk(tokenizer_file: str, seed: str, length: int) -> Rows:
    """Write, tokenize and pack one chunk of the corpus."""
    tokenizer = Tokenizer.from_file(tokenizer_file)
    return pack(encode(tokenizer, list(documents(seed, CHUNK)), PROMPT_WEIGHT), length)


def epochs(tokenizer_file: Path, *, seed: int, chunks: int, length: int, processes: int) -> Iterator[Rows]:
    """Yield fresh epochs of `chunks` chunks without end; the next is written while one is in use."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:

        def order(epoch: int) -> list[Future[Rows]]:
            return [pool.submit(_chunk, str(tokenizer_file), f"{seed}/{epoch}/{i}", length) for i in range(chunks)]

        epoch = 0
        ordered = order(epoch)
        try:
            while True:
                parts = [future.result() for future in ordered]
                epoch += 1
                ordered = order(epoch)
                tokens, targets, weights, numbers = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
                yield tokens, targets, weights, numbers
        finally:
            for future in ordered:
                future.cancel()
