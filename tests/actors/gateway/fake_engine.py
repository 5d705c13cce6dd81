"""An engine for the gateway's tests: it echoes, one token a character, and fails when it is told to."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple, Self

import anyio

from callboard.actors.backend import Prompt
from callboard.actors.chat_template import ChatTemplate
from callboard.actors.errors import Aborted, GenerationFailed, InvalidRequest, Overloaded
from callboard.actors.messages import Delta, Finish, Flushed, TokenLogprob
from callboard.actors.sampling import SamplingParams

VOCABULARY = 300


class Limits(NamedTuple):
    context_length: int = 4096
    vocabulary: int = VOCABULARY
    architecture: str = "Echo"
    dtype: str = "bytes"
    kv_dtype: str = "bytes"
    kv_scales: str = ""
    replicas: int = 1
    device: str = "nowhere"
    kv_slots: int = 0
    max_rows: int = 1


class Completion(NamedTuple):
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    input_logprobs: tuple[TokenLogprob, ...]
    finish: Finish


class FakeEngine:
    """A token is a byte.  It answers `prompt` with `prompt`, a token a delta, `delay` seconds apart.

    A prompt with a word of these does otherwise: OVERLOAD is refused, FAIL fails at once, BREAK fails after three
    tokens, BUG raises what nobody has named, HANG waits for ever after three tokens, SILENT before any.
    """

    def __init__(self, *, delay: float = 0.0, step: int = 1) -> None:
        self.name = "fake"
        self.limits = Limits()
        self.chat_template = ChatTemplate()
        self.delay = delay
        self.step = step  # tokens a delta
        self.live: Counter[str] = Counter()
        self.started = 0
        self.ended: list[str] = []  # how each generation ended: finished, failed, closed
        self.prompts: list[str] = []
        self.samplings: list[SamplingParams] = []
        self.whose: list[tuple[str, str]] = []  # on whose behalf each was asked for, and its salt
        self.programs: list[int] = []  # of which program each is
        self.held: list[int] = []  # under which lease what it leaves is kept
        self.leases: set[int] = set()
        self.paused: list[int] = []
        self.ready = True
        self.quiet = anyio.Event()  # set when nothing is live
        self.busy = anyio.Event()  # set when something has been live
        self._aborted: dict[tuple[str, str], anyio.Event] = {}
        self._number = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def verify(self, sampling: SamplingParams) -> None:
        sampling.verify(vocabulary=VOCABULARY)

    async def generate(
        self,
        prompt: Prompt | str | bytes | Sequence[int],
        sampling: SamplingParams,
        *,
        tag: str = "",
        tenant: str = "",
        salt: str = "",
    ) -> AsyncGenerator[Delta, None]:
        self.programs.append(prompt.program if isinstance(prompt, Prompt) else 0)
        self.held.append(prompt.lease if isinstance(prompt, Prompt) else 0)
        self.whose.append((tenant, salt))
        prompt = await self.encode(prompt) if isinstance(prompt, str) else prompt
        prompt = prompt.tokens if isinstance(prompt, Prompt) else prompt
        assert isinstance(prompt, bytes)
        tokens = memoryview(prompt).cast("i").tolist()
        text = bytes(tokens).decode("utf-8", "replace")
        self.prompts.append(text)
        self.samplings.append(sampling)
        if "OVERLOAD" in text:
            raise Overloaded("4096 requests are live, at most 4096 may be", retry_after_s=2.5)
        if not tokens:
            raise InvalidRequest("prompt", "it has no tokens; at least one is needed")
        if len(tokens) >= self.limits.context_length:
            raise InvalidRequest(
                "prompt", f"it has {len(tokens)} tokens; the context holds {self.limits.context_length}"
            )
        self.started += 1
        self.live[tag] += 1
        self.busy.set()
        end = "closed"
        try:
            async for delta in self._echo(
                text, tokens, sampling, self._aborted.setdefault((tenant, tag), anyio.Event())
            ):
                yield delta
            end = "finished"
        except (GenerationFailed, Aborted):
            end = "failed"
            raise
        finally:
            self.ended.append(end)
            self.live[tag] -= 1
            if not +self.live:
                self.quiet.set()

    async def _echo(
        self, text: str, tokens: list[int], sampling: SamplingParams, aborted: anyio.Event
    ) -> AsyncGenerator[Delta, None]:
        if "FAIL" in text:
            raise GenerationFailed("the model worker failed 3 times while this request ran")
        if "BUG" in text:
            raise RuntimeError("secret state")
        if "SILENT" in text:
            await self._wait(aborted)
        top = tuple((token, -0.5) for token in range(65, 65 + sampling.top_logprobs_num))
        output = tokens[: sampling.max_new_tokens]
        start = sampling.logprob_start
        inputs = [TokenLogprob(token, -2.0, top) for token in tokens[max(1, start) :]] if start >= 0 else []
        for index in range(0, len(output), self.step):
            piece = output[index : index + self.step]
            await anyio.sleep(self.delay)  # also of 0 seconds: tokens come by way of the loop
            logprobs = [TokenLogprob(token, -0.5, top) for token in piece] if sampling.return_logprob else []
            if index == 3 and "BREAK" in text:
                raise GenerationFailed("the row's logits were not numbers")
            if index == 3 and "HANG" in text:
                await self._wait(aborted)
            yield Delta(
                text=bytes(piece).decode("utf-8", "replace"), tokens=tuple(piece), logprobs=tuple(logprobs),
                input_logprobs=tuple(inputs) if index == 0 else (),
            )  # fmt: skip
        finish = Finish(
            reason="length" if len(output) < len(tokens) else "stop",
            prompt_tokens=len(tokens),
            cached_tokens=1,
            completion_tokens=len(output),
            kept_tokens=len(output),
        )
        yield Delta(finish=finish, input_logprobs=() if output else tuple(inputs))

    async def _wait(self, aborted: anyio.Event) -> None:
        await aborted.wait()
        raise Aborted("aborted by name")

    async def complete(
        self, prompt: Prompt | str | bytes | Sequence[int], sampling: SamplingParams, **whose: str
    ) -> Completion:
        deltas = [delta async for delta in self.generate(prompt, sampling, **whose)]
        finish = deltas[-1].finish
        assert finish is not None
        return Completion(
            "".join(delta.text for delta in deltas),
            sum((delta.tokens for delta in deltas), ()),
            sum((delta.logprobs for delta in deltas), ()),
            sum((delta.input_logprobs for delta in deltas), ()),
            finish,
        )

    async def encode(self, text: str) -> bytes:
        return array("i", list(text.encode())).tobytes()

    async def decode(self, tokens: bytes | Sequence[int], *, skip_special_tokens: bool = True) -> str:
        shown = bytes(token for token in tokens if token or not skip_special_tokens)  # 0 is its special token
        return shown.decode("utf-8", "replace")

    async def flush(self) -> Flushed:
        return Flushed(freed=12, held=3)

    def lease(self) -> int:
        self._number += 1
        self.leases.add(self._number)
        return self._number

    def release(self, lease: int) -> None:
        self.leases.remove(lease)

    def pause(self, lease: int, tokens: bytes) -> None:
        assert lease in self.leases
        assert not tokens
        self.paused.append(lease)

    def abort(self, tag: str, *, tenant: str = "") -> None:
        if (tenant, tag) in self._aborted:
            self._aborted[tenant, tag].set()

    async def statistics(self) -> dict[str, Any]:
        return {"requests": {"live": sum(self.live.values()), "started": self.started}, "model": "fake"}

    def health(self) -> dict[str, Any]:
        return {"live": True, "ready": self.ready, "reason": "" if self.ready else "the worker restarts"}

    def model_info(self) -> dict[str, Any]:
        return {"model_path": "fake", "architecture": "Echo", "context_length": self.limits.context_length}
