"""The names and arguments that SGLang's users know, in their order and with their defaults."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import callboard as sgl

SAMPLING = [
    "n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "return_text_in_logprobs",
]  # fmt: skip
RUN = {
    "max_new_tokens": 128, "n": 1, "stop": None, "stop_token_ids": None, "stop_regex": None, "temperature": 1.0,
    "top_p": 1.0, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "ignore_eos": False,
    "return_logprob": None, "logprob_start_len": None, "top_logprobs_num": None, "return_text_in_logprobs": None,
}  # fmt: skip
NAMES = [
    "Anthropic", "Crusoe", "Engine", "LiteLLM", "OpenAI", "Runtime", "RuntimeEndpoint", "ServerArgs", "VertexAI",
    "assistant",
    "assistant_begin", "image", "video", "assistant_end", "flush_cache", "function", "gen", "gen_int", "gen_string",
    "get_server_info", "global_config", "greedy_token_selection", "select", "separate_reasoning",
    "set_default_backend", "system", "system_begin", "system_end", "token_length_normalized",
    "unconditional_likelihood_normalized", "user", "user_begin", "user_end", "__version__",
]  # fmt: skip


def positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return [one.name for one in inspect.signature(function).parameters.values() if one.kind in kinds]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_is_there(name: str) -> None:
    assert name in sgl.__all__


def test_generations_take_their_arguments_in_the_same_order() -> None:
    assert positional(sgl.gen) == [
        "name", "max_tokens", "min_tokens", *SAMPLING, "dtype", "choices", "choices_method", "regex", "json_schema",
    ]  # fmt: skip
    for function in (sgl.gen_int, sgl.gen_string):
        assert positional(function) == ["name", "max_tokens", *SAMPLING]
    assert positional(sgl.select) == ["name", "choices", "temperature", "choices_method"]
    assert positional(sgl.image) == ["expr"]
    assert positional(sgl.video) == ["path", "num_frames"]
    assert positional(sgl.separate_reasoning) == ["expr", "model_type"]
    assert positional(sgl.function) == ["func", "num_api_spec_tokens"]
    for function in (sgl.gen, sgl.gen_int, sgl.gen_string):
        parameters = inspect.signature(function).parameters.values()
        assert {one.default for one in parameters} == {None}


def test_backends_take_their_arguments_in_the_same_order() -> None:
    assert positional(sgl.OpenAI) == ["model_name", "is_chat_model", "chat_template", "is_azure"]
    assert positional(sgl.Anthropic) == ["model_name"]
    assert positional(sgl.VertexAI) == ["model_name", "safety_settings"]
    assert positional(sgl.LiteLLM) == [
        "model_name", "chat_template", "api_key", "organization", "base_url", "timeout", "max_retries",
        "default_headers",
    ]  # fmt: skip
    assert positional(sgl.RuntimeEndpoint) == ["base_url", "api_key", "verify", "chat_template_name"]


def test_typed_generations_are_gen_with_a_type() -> None:
    assert sgl.gen_int("x", 5, 2, stop="a") == sgl.gen("x", 5, n=2, stop="a", dtype=int)
    assert sgl.gen_string("x", temperature=0.5) == sgl.gen("x", temperature=0.5, dtype=str)


def test_a_run_takes_every_sampling_argument_at_its_default() -> None:
    @sgl.function
    def ask(s: Any, question: str) -> str:
        s += question + sgl.gen("a")
        return s["a"]

    with sgl_backend() as backend:
        assert ask.run("Q", **RUN, stream=False, backend=backend, use_thread=True).ret_value == "null"
        assert ask(question="Q", backend=backend)["a"] == "null"
        states = ask.run_batch(
            batch_kwargs=[{"question": "Q"}, ("R",)], **RUN, backend=backend, num_threads="auto", progress_bar=False,
            generator_style=False,
        )  # fmt: skip
        assert [state["a"] for state in states] == ["null", "null"]
        assert ask.run_batch([], backend=backend) == []


def test_binding_keeps_everything_else_about_a_program() -> None:
    @sgl.function
    def ask(s: Any, question: str, answer: str) -> None:
        """Ask."""
        s += question + answer

    ask.note = "kept"  # type: ignore[attr-defined]
    bound = ask.bind(question="Q").bind(answer="A")
    assert {**vars(bound), "bound": None} == {**vars(ask), "bound": None}
    assert (bound.bound, ask.bound) == ({"question": "Q", "answer": "A"}, {})
    with sgl_backend() as backend:
        assert bound.run(backend=backend).text() == "QA"


def test_a_batch_takes_its_arguments_by_the_same_names() -> None:
    parameters = inspect.signature(sgl.Program.run_batch).parameters
    told = {"backend": None, "num_threads": "auto", "progress_bar": False, "generator_style": False}
    assert positional(sgl.Program.run_batch) == ["self", "batch_kwargs"]
    assert {name: parameters[name].default for name in told} == told


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("system", {"expr": None}), ("user", {"expr": None}), ("assistant", {"expr": None}),
        ("var_scope", {"name": ...}), ("fork", {"size": 1, "position_ids_offset": None}),
        ("copy", {}), ("text", {}), ("messages", {}), ("sync", {}),
        ("error", {}), ("text_iter", {"var_name": None}),
        ("text_async_iter", {"var_name": None, "return_meta_data": False}), ("get_var", {"name": ...}),
        ("set_var", {"name": ..., "value": ...}), ("get_meta_info", {"name": ...}),
    ],
)  # fmt: skip
def test_a_state_has_the_same_methods(method: str, arguments: dict[str, Any]) -> None:
    _, *parameters = inspect.signature(getattr(sgl.ProgramState, method)).parameters.values()
    ours = {one.name: ... if one.default is inspect.Parameter.empty else one.default for one in parameters}
    assert list(ours.items())[: len(arguments)] == list(arguments.items())
    assert ... not in list(ours.values())[len(arguments) :]


def test_a_message_may_be_given_by_name_and_may_be_empty() -> None:
    for role in (sgl.system, sgl.user, sgl.assistant):
        assert role(expr="x") == role("x")
        assert role() == role("")


def test_a_state_is_read_like_a_mapping_and_grows_by_adding() -> None:
    for name in ("__getitem__", "__setitem__", "__contains__", "__iadd__", "ret_value"):
        assert hasattr(sgl.ProgramState, name), name


def sgl_backend() -> Any:
    from contextlib import contextmanager

    from callboard.lang.house import HOUSE

    @contextmanager
    def lent() -> Any:
        try:
            yield sgl.NullBackend()
        finally:
            HOUSE.close()

    return lent()
