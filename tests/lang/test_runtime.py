"""SGLang's Runtime, flush_cache, get_server_info and global_config, over the engine in this process."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest

import callboard as sgl
from callboard.lang.house import HOUSE, home_of


@pytest.fixture(autouse=True)
def house() -> Iterator[None]:
    yield
    HOUSE.default = None


@pytest.fixture(scope="module")
def runtime() -> Iterator[sgl.Runtime]:
    with sgl.Runtime(model_path="embedded", random_seed=1, tp_size=1) as made:
        yield made
    HOUSE.close()


@sgl.function
def ask(s: Any) -> None:
    s += sgl.user("What is the capital of France?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=16, temperature=0))


def test_a_script_runs_on_it_as_it_would_on_sglangs() -> None:
    runtime = sgl.Runtime()
    sgl.set_default_backend(runtime)
    assert sgl.global_config.default_backend is runtime
    answer = ask.run()["answer"]
    assert "Paris" in answer
    assert ask.run(backend=runtime)["answer"] == answer
    runtime.cache_prefix("What everybody begins with, and that is rather long.")
    reply = json.loads(
        runtime.generate(
            "What everybody begins with, and that is rather long. So",
            {"max_new_tokens": 4, "temperature": 0}, return_logprob=True, top_logprobs_num=1,
        )
    )  # fmt: skip
    meta = reply["meta_info"]
    assert meta["cached_tokens"] > 4
    assert meta["completion_tokens"] == len(reply["output_ids"]) == len(meta["output_token_logprobs"]) == 4
    info = sgl.get_server_info()
    assert info is not None
    assert info["served_model_name"].startswith("callboard")
    assert info["statistics"]["requests"]
    assert sgl.flush_cache() is True
    runtime.shutdown()
    assert home_of(runtime.endpoint) is None
    assert sgl.global_config.default_backend is None
    with pytest.raises(RuntimeError, match="shut down"):
        runtime.generate("x")
    with pytest.raises(RuntimeError, match="shut down"):  # and not loaded once more
        ask.run(backend=runtime)
    runtime.shutdown()  # again: nothing to do


def test_lists_and_several_give_lists(runtime: sgl.Runtime) -> None:
    params = {"max_new_tokens": 3, "temperature": 1, "n": 2, "seed": 5, "stop_regex": "[.]"}
    assert len(json.loads(runtime.generate("One", params))) == 2
    assert len(json.loads(runtime.generate(["One", "Two"], params))) == 4
    assert isinstance(json.loads(runtime.generate(["One"])), list)
    for bad, field in (({"temprature": 1}, "temprature"), ({"n": 500}, "n"), ({"top_p": 7}, "top_p")):
        with pytest.raises(sgl.InvalidRequest, match=field):
            runtime.generate("x", bad)


def test_text_comes_in_pieces_in_whatever_loop(runtime: sgl.Runtime) -> None:
    params = {"max_new_tokens": 8, "temperature": 0}

    async def main() -> str:
        with anyio.fail_after(60):
            return "".join([piece async for piece in runtime.async_generate("The capital of", params)])

    assert anyio.run(main) == json.loads(runtime.generate("The capital of", params))["text"]


def test_it_listens_only_once_somebody_asks_for_its_address(runtime: sgl.Runtime) -> None:
    body = {"text": "The capital of", "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
    url = runtime.url
    assert url == runtime.url
    assert url.startswith("http://127.0.0.1:")
    reply = httpx.post(f"{url}/generate", json=body, timeout=60).json()
    assert reply["text"] == json.loads(runtime.generate(body["text"], body["sampling_params"]))["text"]
    assert sum(thread.name == "callboard" for thread in threading.enumerate()) == 1, "one loop for both"


def test_the_tokenizer_is_the_models_and_embeddings_are_refused(runtime: sgl.Runtime) -> None:
    ids = runtime.get_tokenizer().encode("Paris")
    assert json.loads(runtime.generate("x", {"max_new_tokens": 1}))["output_ids"] is not None
    assert runtime.get_tokenizer().decode(ids) == "Paris"
    with pytest.raises(sgl.InvalidRequest, match="embeddings"):
        runtime.encode("Paris")


@pytest.mark.parametrize(
    ("options", "field"),
    [({"tp_size": 8}, "tp_size"), ({"no_such": 1}, "no_such"), ({"device": 5}, "device")],
)
def test_what_it_cannot_do_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(sgl.InvalidRequest, match=field):
        sgl.Runtime(**options)


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_running() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="listen"):
            sgl.Runtime(port=taken.getsockname()[1])
    assert HOUSE.default is None


def test_one_that_does_not_come_up_in_time_is_given_up() -> None:
    with pytest.raises(TimeoutError, match="Engine"):
        sgl.Runtime(launch_timeout=0)


def test_without_a_backend_nothing_is_started_to_be_flushed_or_asked() -> None:
    assert sgl.flush_cache() is False
    assert sgl.get_server_info() is None
    assert HOUSE.default is None


def test_a_backend_without_a_cache_has_nothing_to_flush() -> None:
    assert sgl.flush_cache(sgl.NullBackend()) is False
    assert sgl.get_server_info(sgl.NullBackend()) == {}
    with pytest.raises(sgl.InvalidRequest, match="backend"):
        sgl.flush_cache("http://localhost")


def test_the_default_backend_is_told_as_it_was_given_and_knows_its_model(runtime: sgl.Runtime) -> None:
    sgl.set_default_backend(runtime)
    told = sgl.global_config.default_backend
    assert told is runtime
    assert told.endpoint.get_model_name() == str(runtime.endpoint.folder)
    sgl.set_default_backend(runtime.endpoint)
    assert sgl.global_config.default_backend is runtime.endpoint


def test_an_endpoint_is_asked_by_sglang_s_names(runtime: sgl.Runtime) -> None:
    endpoint = sgl.RuntimeEndpoint(runtime.url)
    try:
        assert endpoint.get_model_name() == runtime.endpoint.get_model_name()
        assert endpoint.get_server_info()["served_model_name"] == runtime.endpoint.name
        assert endpoint.flush_cache() is True
        endpoint.cache_prefix("The capital of France is")
        assert runtime.generate("The capital of France is", {"max_new_tokens": 1}).count('"cached_tokens":0') == 0
    finally:
        HOUSE.leave(endpoint)


def test_the_settings_are_those_of_the_process_and_checked() -> None:
    config = sgl.global_config
    backend = sgl.NullBackend()
    config.default_backend = backend
    assert HOUSE.default is backend
    assert (config.verbosity, config.skip_special_tokens_in_output, config.spaces_between_special_tokens_in_out) == (
        0, True, True,
    )  # fmt: skip
    assert (config.enable_precache_with_tracing, config.enable_parallel_encoding) == (False, True)
    for name, value in (
        ("spaces_between_special_tokens_in_out", False), ("enable_parallel_encoding", 1), ("verbosity", -1),
        ("enable_precache_with_tracing", None),
        ("skip_special_tokens_in_output", "no"), ("default_backend", 5),
    ):  # fmt: skip
        with pytest.raises(sgl.InvalidRequest):
            setattr(config, name, value)
    with pytest.raises(AttributeError):
        config.enable_everything = True  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_special_tokens_are_shown_if_the_process_wants_them(scripted: Any) -> None:
    try:
        async with scripted() as backend:
            await ask.arun(backend=backend)
            sgl.global_config.skip_special_tokens_in_output = False
            await ask.arun(backend=backend)
        assert [sampling.skip_special_tokens for sampling in backend.samplings] == [True, False]
    finally:
        sgl.global_config.skip_special_tokens_in_output = True
