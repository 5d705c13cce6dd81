"""Next-token log-probabilities over an engine, batched by whatever waits: a researcher's door."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio
import numpy as np
import torch
from llguidance import LLTokenizer
from tokenizers import Tokenizer as Vocabulary
from torch import Tensor

from .engine import Engine
from .errors import InvalidRequest
from .messages import Delta
from .reader import failure
from .sampling import SamplingParams
from .tokenizer import load_vocabulary

__all__ = ["AsyncLM"]

T = TypeVar("T")


class AsyncLM:
    """Ask an engine for the log-probabilities of the next token; a drop-in for genlm-backend's class of this name.

    There is no timer and no batch size: what is asked while a step runs is in the next one, up to the engine's
    `max_rows`.  The same tokens asked for twice at once are computed once.  Every tensor is its caller's own, float32
    on the CPU.  Lives in the engine's loop; the `_sync` methods are for other threads.

    cache_size: how many rows of log-probabilities are kept, the latest used; 0 for none.  A row takes 4 bytes a token
    of the vocabulary.  Token ids: a sequence, an array or a tensor of one dimension.
    """

    def __init__(self, engine: Engine, *, cache_size: int = 0) -> None:
        if isinstance(cache_size, bool) or not isinstance(cache_size, int) or cache_size < 0:
            raise InvalidRequest("cache_size", f"{cache_size!r} is not an integer of at least 0")
        if not engine.health()["live"]:
            raise RuntimeError("the engine is not running: make the AsyncLM inside `async with Engine(...) as engine:`")
        self.engine = engine
        self._cache_size = cache_size
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._queries: dict[bytes, _Query] = {}
        # One step's rows computed, the next one's waiting: more would only hold rows that nobody has read yet.
        limits = engine.limits
        self._room = anyio.Semaphore(2 * limits.max_rows * limits.replicas, fast_acquire=True)

    @classmethod
    @asynccontextmanager
    async def from_name(
        cls, model: str | Path = "embedded", *, cache_size: int = 0, **options: Any
    ) -> AsyncGenerator[Self, None]:
        """Run an engine for the length of a block: `async with AsyncLM.from_name("embedded") as lm:`."""
        async with Engine(model, **options) as engine:
            yield cls(engine, cache_size=cache_size)

    # --- log-probabilities -----------------------------------------------------------------------------------------

    async def next_token_logprobs(self, token_ids: Sequence[int]) -> Tensor:
        """Give the log-probabilities of every token behind `token_ids`, float32 [vocabulary].

        Raises InvalidRequest if there are no ids, one is outside the vocabulary, or they are more than the context
        holds; Overloaded, GenerationFailed.  A caller that is cancelled leaves nothing behind, and disturbs nobody.
        """
        self._at_home()
        return _tensor(await self._row(self._key(token_ids)))

    async def batch_next_token_logprobs(self, token_ids_list: Sequence[Sequence[int]]) -> Tensor:
        """Give a row for each list of ids, float32 [lists, vocabulary]; one bad list is refused before any is run."""
        self._at_home()
        keys = [self._key(token_ids) for token_ids in token_ids_list]
        rows: dict[bytes, bytes] = {}

        async def fetch(key: bytes) -> None:
            rows[key] = await self._row(key)

        await _together([(fetch, key) for key in dict.fromkeys(keys)])
        return _tensor(b"".join([rows[key] for key in keys])).view(len(keys), self.engine.limits.vocabulary)

    def next_token_logprobs_sync(self, token_ids: Sequence[int]) -> Tensor:
        """Do what next_token_logprobs does, from a thread that is not the engine's."""
        return self._run(self.next_token_logprobs, token_ids)

    def batch_next_token_logprobs_sync(self, token_ids_list: Sequence[Sequence[int]]) -> Tensor:
        """Do what batch_next_token_logprobs does, from a thread that is not the engine's."""
        return self._run(self.batch_next_token_logprobs, token_ids_list)

    # --- sampling --------------------------------------------------------------------------------------------------

    async def sample(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        eos_token_ids: Sequence[int],
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> list[int]:
        """Generate up to `max_tokens` ids, as far as the context reaches, or until one of `eos_token_ids`, which is
        left out.  The engine draws them itself: no row of log-probabilities leaves it.  temperature 0 is greedy.
        """
        self._at_home()
        sampling = SamplingParams(
            max_new_tokens=max_tokens,
            temperature=temperature,
            stop_token_ids=tuple(int(token) for token in eos_token_ids),
            ignore_eos=True,
            seed=seed,
        )
        return list((await self.engine.complete(self._key(prompt_token_ids), sampling)).tokens)

    async def batch_sample(
        self,
        prompt_token_ids_list: Sequence[Sequence[int]],
        max_tokens: int,
        eos_token_ids: Sequence[int],
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> list[list[int]]:
        """Generate behind each prompt, all at once.  Prompt i is drawn with seed + i: equal prompts differ."""
        self._at_home()
        keys = [self._key(token_ids) for token_ids in prompt_token_ids_list]
        done: dict[int, list[int]] = {}

        async def run(index: int) -> None:
            prompt = np.frombuffer(keys[index], np.int32)
            own = None if seed is None else seed + index
            done[index] = await self.sample(prompt.tolist(), max_tokens, eos_token_ids, temperature, own)

        await _together([(run, index) for index in range(len(keys))])
        return [done[index] for index in range(len(keys))]

    # --- caches ----------------------------------------------------------------------------------------------------

    def clear_cache(self) -> None:
        """Forget every kept row of log-probabilities."""
        self._cache.clear()

    def clear_kv_cache(self) -> None:
        """Let the engine forget every cached token that no request holds, before it looks at whatever is asked next."""
        self.engine.flush_nowait()

    # --- vocabulary ------------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Vocabulary:
        """The model's tokenizer: `.encode(text).ids`, `.decode(ids)`."""
        return load_vocabulary(self.engine.folder)

    @cached_property
    def byte_vocab(self) -> list[bytes]:
        """The bytes of every token; empty for ids that the model has logits for and its tokenizer no token."""
        tokens = LLTokenizer((self.engine.folder / "tokenizer.json").read_text(encoding="utf-8"))
        known = range(min(tokens.vocab_size, self.engine.limits.vocabulary))
        return [tokens.decode_bytes([token]) for token in known] + [b""] * (self.engine.limits.vocabulary - len(known))

    @cached_property
    def str_vocab(self) -> list[str]:
        """The text of every token; bytes that are no whole characters as U+FFFD."""
        return [token.decode("utf-8", "replace") for token in self.byte_vocab]

    def encode(self, text: str) -> list[int]:
        """Tokenize text, as the beginning of a sequence."""
        return self.tokenizer.encode(text).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Turn token ids into text, special tokens included."""
        return self.tokenizer.decode([int(token) for token in token_ids], skip_special_tokens=False)

    # --- one row ---------------------------------------------------------------------------------------------------

    async def _row(self, key: bytes) -> bytes:
        """Give one key's row: kept, or of the query on its way, or of a query of its own."""
        while (row := self._kept(key)) is None:
            query = self._queries.get(key)
            leads = query is None
            if query is None:
                query = self._queries[key] = _Query(key, self._over)
            query.waiters += 1
            try:
                if leads:
                    await self._submit(query)
                await query.over.wait()
            finally:
                query.waiters -= 1
                if not query.waiters and not query.over.is_set():
                    query.lose()
                    if query.request is not None:
                        self.engine.leave(query.request)
            if query.error is not None:
                raise query.error
            if query.row is not None:
                return query.row
        return row

    async def _submit(self, query: _Query) -> None:
        """Hand a query to the engine once there is room.

        If it is refused, all that wait for it raise why; if this caller is cancelled here, they begin anew.
        """
        try:
            await self._room.acquire()
            query.holds_room = True
            query.request = await self.engine.look_ahead(query.key, query)
        except Exception as error:
            query.fail(error)
        except BaseException:
            query.lose()
            raise

    def _over(self, query: _Query) -> None:
        if self._queries.get(query.key) is query:
            del self._queries[query.key]
        if query.holds_room:
            self._room.release()
        if query.row is not None and self._cache_size:
            self._cache[query.key] = query.row
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)

    def _kept(self, key: bytes) -> bytes | None:
        row = self._cache.get(key)
        if row is not None:
            self._cache.move_to_end(key)
        return row

    def _key(self, token_ids: Sequence[int]) -> bytes:
        """Check token ids and pack them, int32."""
        limits = self.engine.limits
        try:
            ids = np.asarray(token_ids)
        except (ValueError, TypeError) as error:
            raise InvalidRequest("token_ids", f"not a list of token ids: {error}") from None
        if not ids.size:
            raise InvalidRequest("token_ids", "there are none; at least one is needed")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise InvalidRequest("token_ids", f"{token_ids!r:.80} is not a flat list of integers")
        if len(ids) > limits.context_length:
            raise InvalidRequest("token_ids", f"{len(ids)} given; the context holds {limits.context_length}")
        if ids.min() < 0 or ids.max() >= limits.vocabulary:
            raise InvalidRequest("token_ids", f"they must lie in 0 to {limits.vocabulary - 1}")
        return ids.astype(np.int32).tobytes()

    # --- loops and threads -----------------------------------------------------------------------------------------

    def _at_home(self) -> None:
        if asyncio.get_running_loop() is not self.engine.loop:
            raise RuntimeError("this is not the engine's loop; from another thread or loop, use the _sync methods")

    def _run(self, method: Callable[[Any], Coroutine[Any, Any, T]], argument: Any) -> T:
        loop = self.engine.loop
        try:
            inside = asyncio.get_running_loop() is loop
        except RuntimeError:  # no loop runs in this thread
            inside = False
        name = method.__name__
        if inside:
            raise RuntimeError(f"{name}_sync would wait for its own loop: `await lm.{name}(...)` here")
        if not loop.is_running() or not self.engine.health()["live"]:
            raise RuntimeError("the engine is not running any more")
        future = asyncio.run_coroutine_threadsafe(method(argument), loop)
        try:
            return future.result()
        finally:
            future.cancel()  # only if it is not done: this thread was interrupted


class _Query:
    """One request for one row, and how many wait for it.  Over, it has a row, an error, or neither: it was lost."""

    __slots__ = ("_when_over", "error", "holds_room", "key", "over", "request", "row", "waiters")

    def __init__(self, key: bytes, when_over: Callable[[_Query], None]) -> None:
        self.key = key
        self.request: int | None = None
        self.waiters = 0
        self.holds_room = False
        self.over = anyio.Event()
        self.row: bytes | None = None
        self.error: Exception | None = None
        self._when_over = when_over

    def push(self, delta: Delta) -> None:
        """Take the request's one event; told by the dispatcher."""
        if self.over.is_set() or delta.finish is None:
            return
        self.error = failure(delta.finish)
        if self.error is None:
            self.row = delta.next_logprobs
        self._end()

    def fail(self, error: Exception) -> None:
        """Raise an error at all that wait, unless it is over."""
        if not self.over.is_set():
            self.error = error
            self._end()

    def lose(self) -> None:
        """Let those that wait, if any, begin anew."""
        if not self.over.is_set():
            self._end()

    def _end(self) -> None:
        self.over.set()
        self._when_over(self)


async def _together(calls: Sequence[tuple[Callable[[Any], Coroutine[Any, Any, None]], Any]]) -> None:
    """Run calls at the same time; the first error ends the others and is raised as it is."""
    errors: list[Exception] = []

    async def run(call: Callable[[Any], Coroutine[Any, Any, None]], argument: Any) -> None:
        try:
            await call(argument)
        except Exception as error:
            errors.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for call, argument in calls:
            group.start_soon(run, call, argument)
    if errors:
        raise errors[0]


def _tensor(rows: bytes) -> Tensor:
    return torch.frombuffer(bytearray(rows), dtype=torch.float32) if rows else torch.empty(0)
