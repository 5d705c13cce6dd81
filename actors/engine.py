"""The engine's face: what a caller may ask of the tree of actors, which lives inside the caller's event loop."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from .answer import Answer
from .backend import Backend, Prompt, Scores
from .chat_template import ChatTemplate
from .choice_scores import score_choices
from .client import Client
from .completion import Completion
from .core import MailboxFull, Supervisor
from .engine_options import EngineLimits, EngineOptions, model_folder
from .engine_statistics import ask_statistics
from .errors import InvalidRequest
from .leases import Leases
from .messages import AbortTag, Emptied, Flush, Flushed, Paused, Resumed
from .sampling import SamplingParams
from .server_args import engine_arguments
from .template_book import choose_template
from .tenant import Tenant
from .texts import Texts
from .tree import Tree
from .wires import Wires

__all__ = ["Completion", "Engine"]


class Engine(Backend):
    """Serve one model.  `async with Engine(...) as engine:` is its whole life.

    Lives in the loop that enters the block, installs no signal handler, sets no loop policy, and works off the main
    thread.  chat_template: how messages are written, see `choose_template`; None is the tokenizer's own.  Other
    arguments: see EngineOptions; SGLang's names for them (ServerArgs) are taken too.  Raises ValueError, naming the
    argument, before anything starts.
    """

    knows_texts = True
    binds_answers = True

    def __init__(
        self, model: str | Path = "embedded", *, chat_template: ChatTemplate | str | None = None, **options: Any
    ) -> None:
        try:
            self.options = EngineOptions(**{"model": str(model), **engine_arguments(options, str(model))})
        except TypeError as error:
            known = ", ".join(EngineOptions.__struct_fields__)
            raise InvalidRequest("Engine", f"{error}; the arguments are {known}") from None
        self.options.verify()
        self.eager = self.options.eager and self.options.prefix_cache
        self.folder = model_folder(self.options.model)
        self.name = self.options.served_name or (
            f"callboard-{self.folder.parent.name}" if self.options.model == "embedded" else self.folder.name
        )
        self.chat_template = choose_template(chat_template, self.folder, self.options.model)
        self._wires = Wires()
        self._leases = Leases()
        self._texts = Texts(self._wires)
        self._client = Client(self._wires, self._texts, self._leases)
        self._stack: AsyncExitStack | None = None
        self._tree: Tree | None = None

    # --- life ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("this engine is running already; make another one for another block")
        seed = secrets.randbits(62) if self.options.seed is None else self.options.seed
        self._stack = AsyncExitStack()
        try:
            self._tree = await self._stack.enter_async_context(Tree(self.options, self.folder, self._wires, seed))
        except BaseException:
            self._stack = None
            raise
        self.programs: Supervisor = self._tree.programs
        self.limits: EngineLimits = self._tree.limits
        self.joins = self._tree.joins
        await self._client.start(self.limits.vocabulary, self.chat_template.stop)
        self.loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack, self._tree = self._stack, None, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)

    @property
    def supervisor(self) -> Supervisor:
        """The root of the tree, for whoever starts last and stops first (a gateway)."""
        return self._running.root

    @property
    def _running(self) -> Tree:
        if self._tree is None:
            raise RuntimeError("the engine is not running: use it inside `async with Engine(...) as engine:`")
        return self._tree

    # --- generation ------------------------------------------------------------------------------------------------

    def verify(self, sampling: SamplingParams) -> None:
        """Raise InvalidRequest naming the first bad field."""
        sampling.verify(vocabulary=self._client.vocabulary)

    def generate(
        self,
        prompt: Prompt | str | bytes | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        tag: str = "",
        tenant: str = "",
        salt: str = "",
    ) -> Answer:
        """Stream one generation.  prompt: text, or token ids (a sequence, or int32 bytes), or a program's Prompt.

        tenant: on whose behalf; tenants take turns, and share nothing in the cache.  salt: what shares nothing in the
        cache within a tenant either.  The last delta, and only it, has `finish`.  Closing or dropping it early aborts
        the request.  Raises InvalidRequest, Overloaded, GenerationFailed, Aborted; RuntimeError in another loop than
        the engine's.
        """
        if self._tree is not None and asyncio.get_running_loop() is not self.loop:
            raise RuntimeError(
                "this engine lives in another loop, in which its deltas would come; ask there, or run a program, which "
                "may be run from any loop"
            )
        return self._client.stream(prompt, sampling or SamplingParams(), tag=tag, tenant=tenant, salt=salt)

    async def complete(
        self,
        prompt: Prompt | str | bytes | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        tag: str = "",
        tenant: str = "",
        salt: str = "",
    ) -> Completion:
        """Run one generation to its end; arguments and errors as `generate`."""
        return await self.generate(prompt, sampling, tag=tag, tenant=tenant, salt=salt).whole()

    def tenant(self, name: str, salt: str = "") -> Tenant:
        """Give a backend whose programs run here on behalf of a tenant; see `generate` for what that means."""
        _ = self._running
        return Tenant(self, name, salt)

    def lease(self, namespace: str = "") -> int:
        """Give a program a number under which what it leaves in the cache is kept, as long as there is room.

        namespace: where it looks there (`cache_namespace`), if it should pause before its first generation.
        """
        return self._leases.take(namespace)

    def release(self, lease: int) -> None:
        """Keep nothing for a program any more; the scheduler is told with the next request, when it may matter."""
        self._leases.release(lease)

    def pause(self, lease: int, tokens: bytes, joins: bytes = b"") -> None:
        """Let a program's KV go before that of others, and compute `tokens` while there is nothing else to do."""
        self._hint(Paused(lease, tokens, self._leases.namespace(lease), joins))

    def resume(self, lease: int) -> None:
        """Take a pause back; nothing is computed ahead for this program any more."""
        self._hint(Resumed(lease))

    def _hint(self, message: Paused | Resumed | Emptied) -> None:
        with suppress(MailboxFull):  # it may be lost
            self._wires.dispatcher.post(message)

    async def prefill(self, prompt: Prompt, *, tenant: str = "", salt: str = "") -> None:
        """Compute the prompt's KV and leave it in the prefix cache."""
        await self.complete(prompt, SamplingParams(max_new_tokens=0), tenant=tenant, salt=salt)

    def verify_choices(self, continuations: Sequence[str], *, unconditional: bool = False) -> None:  # noqa: ARG002
        """Take choices of every kind; raises InvalidRequest if there are none."""
        if not continuations or any(not text for text in continuations):
            raise InvalidRequest("choices", "at least one is needed, and none may be empty")

    async def score(
        self,
        prompt: Prompt,
        continuations: Sequence[str],
        *,
        unconditional: bool = False,
        tenant: str = "",
        salt: str = "",
    ) -> Scores:
        """Give the log-probabilities of each continuation behind the prompt, and with `unconditional` by itself.

        The prompt's tail and each continuation are tokenized as one, so that no choice pays for a token boundary; what
        all of them and the prompt alone have in common is the prompt, and the rest is scored, all in one batch.
        """
        self.verify_choices(continuations)
        texts = (prompt.tail, *(prompt.tail + text for text in continuations))
        alone, *settled = await self._texts.encode_all(texts, beginning=not prompt.tokens)

        async def look(tokens: bytes, start: int) -> tuple[list[float], int]:
            asked = Prompt(tokens=tokens, program=prompt.program)
            if tokens.startswith(prompt.tokens):  # else a choice by itself
                asked = Prompt(tokens=tokens, joins=prompt.joins, lease=prompt.lease, program=prompt.program)
            done = await self.complete(
                asked,
                SamplingParams(max_new_tokens=0, logprob_start=start),
                tenant=tenant,
                salt=salt,
            )
            return [item.logprob for item in done.input_logprobs], done.finish.cached_tokens

        return await score_choices(look, prompt, alone, settled, continuations, unconditional=unconditional)

    def abort(self, tag: str, *, tenant: str = "") -> None:
        """End every request of a tenant's under this name; their readers raise Aborted.  Unknown names are ignored."""
        if tag:
            self._wires.dispatcher.post(AbortTag(tag, tenant))

    async def look_ahead(self, prompt: bytes, reader: Any) -> int:
        """Ask for the log-probabilities of every token behind a prompt; they come to `reader` in one terminal event.

        prompt: int32.  reader: has `push` and `fail`, as Reader; it is called in this loop.  Gives the request's
        number, for `leave`.  Raises InvalidRequest, Overloaded.
        """
        return await self._client.look_ahead(prompt, reader)

    def leave(self, request: int) -> None:
        """End a request of `look_ahead` that nobody waits for any more; one that is over is ignored."""
        self._client.leave(request)

    # --- text and tokens -------------------------------------------------------------------------------------------

    async def encode(self, text: str, *, beginning: bool = True) -> bytes:
        """Tokenize `text` to int32 bytes; `beginning` lets the tokenizer put its own first token there."""
        return await self._texts.encode(text, beginning=beginning)

    async def decode(self, tokens: bytes | Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Turn token ids into text."""
        return await self._texts.decode(tokens, skip_special_tokens=skip_special_tokens)

    async def token_texts(self, tokens: Sequence[int]) -> list[str]:
        return await self._texts.decode_all([(token,) for token in tokens], skip_special_tokens=False)

    # --- what it tells about itself --------------------------------------------------------------------------------

    async def flush(self) -> Flushed:
        """Empty the prefix cache of everything no live request holds."""
        flushed = [await scheduler.ask(Flush()) for scheduler in self._wires.schedulers]
        self._hint(Emptied())
        return Flushed(sum(one.freed for one in flushed), sum(one.held for one in flushed))

    def flush_nowait(self) -> None:
        """Do the same before anything that is asked for from now on, without waiting; from any thread."""
        for scheduler in self._wires.schedulers:
            scheduler.post(Flush())
        self._hint(Emptied())

    async def server_info(self) -> dict[str, Any]:
        """Tell the version, the model, its limits and the statistics."""
        return {"version": version("callboard"), **self.model_info(), "statistics": await self.statistics()}

    async def statistics(self) -> dict[str, Any]:
        """Tell counts and times since the start, by part: requests, scheduler, worker.

        Of several replicas these are totals, and `replicas` has each one's beside the requests that are live there;
        one that is down, and starts again, has nothing to tell and is left out, unless no other is up.
        """
        return await ask_statistics(self._wires)

    def health(self) -> dict[str, Any]:
        """Tell whether the tree stands (live) and takes requests (ready), and why not.  Never waits."""
        if self._tree is None:
            return {"live": False, "ready": False, "reason": "the engine is not running"}
        reason = self._tree.unready()
        return {"live": True, "ready": not reason, "reason": reason}

    def get_model_name(self) -> str:
        """Give the folder of the model: SGLang's name for what `model_info` calls model_path."""
        return str(self.folder)

    def model_info(self) -> dict[str, Any]:
        """Tell what is served, on what, with how much room; and its chat template, so that clients write as it does."""
        return {
            "model_path": str(self.folder),
            "served_model_name": self.name,
            "has_image_understanding": False,
            "token_healing": True,
            "chat_template": self.chat_template.source,
            "special_tokens": self.chat_template.special,
            **msgspec.structs.asdict(self.limits),
        }
