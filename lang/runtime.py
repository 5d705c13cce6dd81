"""`Runtime`: SGLang's name for a model that runs beside a script."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ..actors.backend import Prompt
from ..actors.errors import InvalidRequest
from .crossing import wait_in
from .expression import Gen
from .house import HOUSE
from .program import Program
from .sampling_arguments import gen_options

if TYPE_CHECKING:
    from ..actors.engine import Engine

__all__ = ["Runtime"]

_GRACE_S = 5.0


class Runtime:
    """An engine in the background loop of this process, from here to `shutdown`; no second process, no port.

    A program takes it as a backend, and so does `set_default_backend`.  Making it waits until the model is loaded, at
    most launch_timeout seconds: in async code, use `async with Engine(...)`.  Only whoever asks for `url`, or gives
    `port`, makes it listen: then it serves HTTP on host, 127.0.0.1 if nobody says otherwise.  Without `shutdown` it
    ends with the interpreter.

    options: Engine's, or SGLang's names for the same (`ServerArgs`: random_seed, max_running_requests, ...); any other
    is refused by name.  log_level: accepted and without effect; logging is the script's.
    """

    def __init__(
        self,
        log_level: str = "error",  # noqa: ARG002
        launch_timeout: float = 300.0,
        *,
        model_path: str = "embedded",
        host: str = "127.0.0.1",
        port: int | None = None,
        api_key: str | None = None,
        admin_api_key: str | None = None,
        reasoning_parser: str | None = None,
        **options: Any,
    ) -> None:
        from ..actors.engine import Engine

        self.endpoint: Engine = Engine(model_path, **options)
        self._listen: dict[str, Any] = {
            "host": host, "port": port or 0, "api_key": api_key, "admin_api_key": admin_api_key,
            "reasoning_parser": reasoning_parser,
        }  # fmt: skip
        self._url: str | None = None
        self._ended = False
        self._numbers = itertools.count(1)
        HOUSE.home_blocking(self.endpoint, launch_timeout)
        if port is not None:
            try:
                _ = self.url
            except BaseException:
                self.shutdown()
                raise

    # --- as SGLang's -------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | list[str],
        sampling_params: Mapping[str, Any] | None = None,
        return_logprob: bool = False,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
    ) -> str:
        """Continue a prompt, or each of a list, and give the replies of POST /generate as JSON text.

        sampling_params: as that route takes them.  A list of prompts, or n above 1, gives a list.
        """
        asked = _asked(
            sampling_params, return_logprob=return_logprob,
            logprob_start_len=-1 if logprob_start_len is None else logprob_start_len,
            top_logprobs_num=top_logprobs_num or 0,
        )  # fmt: skip
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        states = _CONTINUE.run_batch([(text, asked) for text in prompts], backend=self._running)
        replies: list[dict[str, Any]] = []
        for state in states:
            value, meta = state["text"], state.get_meta_info("text")
            several = isinstance(value, list)
            replies += [self._reply(*one) for one in (zip(value, meta, strict=True) if several else [(value, meta)])]
        return json.dumps(replies if len(replies) > 1 or not isinstance(prompt, str) else replies[0])

    def _reply(self, text: str, meta: dict[str, Any]) -> dict[str, Any]:
        tokens = meta.pop("output_ids", [])
        return {"text": text, "output_ids": tokens, "meta_info": {"id": f"runtime-{next(self._numbers)}", **meta}}

    async def async_generate(self, prompt: str, sampling_params: Mapping[str, Any] | None = None) -> AsyncIterator[str]:
        """Continue a prompt, in any loop, and give the text in pieces as it comes; leaving early aborts it."""
        state = await _CONTINUE.arun(prompt, _asked(sampling_params), backend=self._running, stream=True)
        try:
            async for text in state.text_async_iter("text"):
                yield text
        finally:
            state.cancel()

    add_request = async_generate

    def encode(self, prompt: str) -> str:  # noqa: ARG002
        """Refuse: SGLang's gives embeddings, and a model that generates has none."""
        raise InvalidRequest("encode", "embeddings are not served; get_tokenizer().encode(text) gives token ids")

    def get_tokenizer(self) -> Any:
        """Give the model's tokenizer, as the transformers library has it; ImportError if that is not installed."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(self.endpoint.folder), local_files_only=True)

    def cache_prefix(self, prefix: str) -> None:
        """Compute a prefix now, for the prompts that begin with it."""
        engine = self._running
        wait_in(engine.loop, lambda: engine.prefill(Prompt(tail=prefix, text=prefix)), "await engine.prefill(...)")

    @property
    def url(self) -> str:
        """Where it is served over HTTP; from the first time this is asked for."""
        if self._url is None:
            engine = self._running
            self._url = wait_in(engine.loop, self._serve, "Engine with a Gateway")
        return self._url

    def shutdown(self) -> None:
        """End it, with everything that runs on it; the default backend is unset if it was this."""
        self._ended = True
        if HOUSE.default is self.endpoint:
            HOUSE.default = None
        HOUSE.leave(self.endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> Engine:
        if self._ended:
            raise RuntimeError("this runtime was shut down; make another")
        return self.endpoint

    async def _serve(self) -> str:
        from ..actors.gateway import Address, Gateway, GatewayOptions

        options = GatewayOptions(**self._listen)
        supervisor = await self.endpoint.supervisor.supervise("gateway", grace=options.grace_s + _GRACE_S)
        gateway = await supervisor.spawn(lambda: Gateway(self.endpoint, options), name="gateway")
        return await gateway.ask(Address())


def _continue(s: Any, prompt: str, asked: Gen) -> None:
    s += prompt
    s += asked


_CONTINUE = Program(_continue)


def _asked(sampling_params: Mapping[str, Any] | None, **logprobs: Any) -> Gen:
    """Give the generation that SGLang's sampling_params ask for."""
    from ..actors.gateway.native import native_sampling

    n, sampling = native_sampling(dict(sampling_params or {}), **logprobs)
    return Gen("text", gen_options({**msgspec.structs.asdict(sampling), "n": n}.items()))
