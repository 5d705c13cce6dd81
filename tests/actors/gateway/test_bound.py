"""What binds a text, and what heals its prompt's end, does over HTTP what it does in the engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import openai
import pytest

from callboard.actors.engine import Engine
from callboard.actors.sampling import SamplingParams

from ..tiny_model import write_tiny_model
from .fake_engine import FakeEngine
from .serving import Served, serving

pytestmark = pytest.mark.anyio

TINY: dict[str, Any] = {"load_format": "dummy", "threads": 1, "seed": 1, "max_rows": 8, "kv_slots": 2048}
SCHEMA = {"enum": [7, 8]}
OLDER = {
    "type": "structural_tag",
    "structures": [{"begin": "e", "schema": SCHEMA, "end": "!"}],
    "triggers": ["e"],
}
NEWER = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["e"],
        "tags": [{"begin": "e", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "!"}],
    },
}
TELL: list[Any] = [{"role": "user", "content": "Tell."}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("bound"), context_length=512, eos=True)


def assert_tagged(text: str) -> None:
    """See that tags were begun, and that each is filled as its schema says."""
    begun = re.findall(r"e(?=...)(..)", text, re.DOTALL)
    assert begun
    assert set(begun) <= {"7!", "8!"}


async def test_structural_tags_in_both_forms_on_every_route(folder: Path) -> None:
    with anyio.fail_after(120):
        async with Engine(folder, **TINY) as engine, serving(engine) as served:
            async with openai.DefaultAsyncHttpxClient(trust_env=False) as http:
                client = openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="-", http_client=http, max_retries=0)
                for form in (OLDER, NEWER):
                    await _tags(served, client, form)
            bad = {**OLDER, "triggers": ["x"]}
            chat = await served.post("/v1/chat/completions", messages=TELL, response_format=bad)
            native = await served.post("/generate", text="a", sampling_params={"structural_tag": bad})
            both = await served.post("/v1/completions", prompt="a", response_format=OLDER, regex="a")
    for reply, field in ((chat, "structural_tag"), (native, "structural_tag"), (both, "regex")):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)


async def _tags(served: Served, client: openai.AsyncOpenAI, form: Any) -> None:
    chat = await client.chat.completions.create(
        model="default", messages=TELL, response_format=form, max_tokens=100, seed=2
    )
    assert_tagged(chat.choices[0].message.content or "")
    stream = await client.chat.completions.create(
        model="default", messages=TELL, response_format=form, max_tokens=100, seed=2, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == chat.choices[0].message.content
    body = (await served.post("/v1/completions", prompt="Q", response_format=form, max_tokens=100, seed=2)).json()
    assert_tagged(body["choices"][0]["text"])
    params = {"structural_tag": form, "max_new_tokens": 100, "sampling_seed": 2}
    assert_tagged((await served.post("/generate", text="Q", sampling_params=params)).json()["text"])


async def test_a_prompt_s_end_is_healed_as_in_the_engine(folder: Path) -> None:
    prompt = "The capital of Fr"
    with anyio.fail_after(60):
        async with Engine(folder, **TINY) as engine, serving(engine) as served:
            (france,) = np.frombuffer(await engine.encode(" France"), np.int32).tolist()
            bias = {str(france): 100.0}  # this model has one wish, to write " France"
            short: dict[str, Any] = {"temperature": 0, "logit_bias": bias}
            params = {**short, "max_new_tokens": 1}
            plain = (await served.post("/generate", text=prompt, sampling_params=params)).json()
            healed = (await served.post("/generate", text=prompt, sampling_params={**params, "heal": True})).json()
            asked = {**short, "prompt": prompt, "max_tokens": 1}
            openai_plain = (await served.post("/v1/completions", **asked)).json()["choices"][0]["text"]
            openai_healed = (await served.post("/v1/completions", **asked, heal=True)).json()["choices"][0]["text"]
            wish = SamplingParams(max_new_tokens=1, temperature=0, logit_bias={france: 100.0}, heal=True)
            here = await engine.complete(prompt, wish)
            assert (await served.client.get("/model_info")).json()["token_healing"] is True
    assert (plain["text"], openai_plain) == (" France", " France")
    assert healed["text"] == openai_healed == here.text
    assert healed["text"].startswith("ance")
    assert healed["output_ids"] == list(here.tokens)
    assert healed["meta_info"]["healed"] == {"inside": 0, "taken": 1, "text": " Fr"}
    assert "healed" not in plain["meta_info"]


async def test_healing_is_refused_where_it_means_nothing() -> None:
    async with serving(FakeEngine()) as served:
        chat = await served.post("/v1/chat/completions", messages=TELL, heal=True)
        scored = await served.post("/v1/completions", prompt="a", heal=True, logprobs=1)
        schema = await served.post("/generate", text="a", sampling_params={"heal": True, "json_schema": {}})
    for reply, field in ((chat, "heal"), (scored, "logprobs"), (schema, "heal")):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)


async def test_a_constraint_lets_the_model_reason_first_and_binds_the_answer(folder: Path) -> None:
    told: list[Any] = []
    with anyio.fail_after(60):
        async with Engine(folder, **TINY) as engine, serving(engine, reasoning_parser="qwen3") as served:
            for wish in ("no", "<think>"):
                (first, *_) = np.frombuffer(await engine.encode(wish), np.int32).tolist()
                body = {"messages": TELL, "regex": "(yes|no)!", "max_tokens": 40, "logit_bias": {str(first): 100.0}}
                told += (await served.post("/v1/chat/completions", **body)).json()["choices"]
    answered, thinking = told
    assert (answered["message"]["content"], answered["message"]["reasoning_content"]) == ("no!", None)
    assert answered["finish_reason"] == "stop"
    assert (thinking["message"]["content"], thinking["grammar_complete"]) == ("", False)
    assert len(thinking["message"]["reasoning_content"]) > 20
