"""Templates by name write each role as its model knows it, whole or a role at a time, on an engine or by itself."""

# ruff: noqa: ISC004, RUF001

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

import callboard as cb
from callboard.actors.chat_template import PLAIN, ChatTemplate
from callboard.actors.engine import Engine
from callboard.actors.errors import InvalidRequest
from callboard.actors.named_templates import NAMED
from callboard.actors.role_template import ChatTemplateStyle, RoleTemplate
from callboard.actors.template_book import TemplateBook, choose_template
from callboard.lang import chat_template as named

from .tiny_model import CHATML, write_tiny_model
from .vocabularies import byte_level

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "3 + 3?"},
]
SGLANG = (
    "default claude chatml chatml-llava qwen qwen2-vl vicuna_v1.1 llama-2-chat mistral llama-3-instruct minicpmv "
    "janus-pro minicpmo janus llama-3-instruct-llava llama-4 yi-1.5 yi-vl gemma-it gemma-4-it dbrx-instruct "
    "c4ai-command-r internvl-2-5 interns1 granite-3-instruct deepseek-v3 glm-4v"
).split()


def test_every_name_of_sglang_s_is_there() -> None:
    assert TemplateBook().names() == sorted(SGLANG)
    assert len(SGLANG) == 27


@pytest.mark.parametrize("name", SGLANG)
@pytest.mark.parametrize("chat", [CHAT, CHAT[1:]], ids=["system", "without"])
def test_whole_a_role_at_a_time_and_as_sglang_puts_it_together_is_the_same(name: str, chat: list[Any]) -> None:
    template = TemplateBook().get(name)
    whole = template.render(chat, add_generation_prompt=False)
    text = ""
    for place, message in enumerate(chat):
        prefix, suffix = template.role(message["role"], chat[:place])
        text += prefix + message["content"] + suffix
    assert text == whole
    spoken = chat if chat[0]["role"] == "system" else [{"role": "system", "content": None}, *chat]
    if name != "llama-2-chat" or chat is CHAT:  # there SGLang takes an empty system message for one that is written
        assert template.get_prompt(spoken) == whole
    assert template.render(chat).startswith(whole)
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level(), chat_template=template.source)
    assert theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == template.render(chat)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("llama-2-chat", "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n2 + 2? [/INST]4 </s><s>[INST] 3 + 3? [/INST]"),
        (
            "qwen",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4"
            "<|im_end|>\n<|im_start|>user\n3 + 3?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama-3-instruct",
            "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>"
            "\n\n2 + 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n4<|eot_id|><|start_header_id|>user"
            "<|end_header_id|>\n\n3 + 3?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("default", "SYSTEM:Be brief.\nUSER:2 + 2?\nASSISTANT:4\nUSER:3 + 3?\nASSISTANT:"),
        ("gemma-it", "Be brief.<start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\n4<end_of_turn>\n"
         "<start_of_turn>user\n3 + 3?<end_of_turn>\n<start_of_turn>model\n"),
        ("deepseek-v3",
         "Be brief.<｜User｜>2 + 2?<｜Assistant｜>4<｜end▁of▁sentence｜><｜User｜>3 + 3?<｜Assistant｜>"),
    ],
)  # fmt: skip
def test_a_chat_as_its_model_knows_it(name: str, wanted: str) -> None:
    assert TemplateBook().get(name).render(CHAT) == wanted


def test_a_default_system_prompt_stands_where_nobody_said_another() -> None:
    template = TemplateBook().get("qwen")
    assert template.render(CHAT[1:2]).startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_st")
    assert "helpful" not in template.render(CHAT)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-chat"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-instruct"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistral"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("Qwen/Qwen2-VL-7B-Instruct", "qwen2-vl"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-Base", None),
        ("google/gemma-3-4b-it", "gemma-it"),
        ("lmsys/vicuna-7b-v1.5", "vicuna_v1.1"),
        ("some/model", None),
    ],
)
def test_a_model_s_path_tells_its_template(path: str, name: str | None) -> None:
    found = TemplateBook().match(path)
    assert (None if found is None else found.name) == name


def test_one_s_own_come_before_those_that_ship() -> None:
    book = TemplateBook()
    mine = RoleTemplate("mine", None, {"user": ("U ", "\n"), "assistant": ("A ", "\n")}, ("\n",))
    book.register(mine)
    book.register_match(lambda path: "mine" if "qwen" in path else None)
    assert book.get("mine") is mine
    assert book.match("qwen-chat") is mine
    assert "mine" not in TemplateBook().names()
    with pytest.raises(InvalidRequest, match="chat_template: 'other' is not one of .*mine"):
        book.get("other")
    with pytest.raises(InvalidRequest, match="messages: .*it has no role system"):
        mine.render(CHAT)
    for bad in ({"role_prefix_and_suffix": {}}, {"stop_str": "x"}, {"name": ""}):
        arguments: dict[str, Any] = {"name": "n", "role_prefix_and_suffix": {"assistant": ("", "")}} | bad
        with pytest.raises(InvalidRequest, match=f"^{next(iter(bad))}: "):
            RoleTemplate(default_system_prompt=None, **arguments)


def test_sglang_s_names_do_the_same() -> None:
    template = named.get_chat_template("chatml")
    assert template.stop_str == ("<|im_end|>",)
    assert template.style is ChatTemplateStyle.PLAIN
    assert template.get_prefix_and_suffix("user", []) == ("<|im_start|>user\n", "<|im_end|>\n")
    assert named.get_chat_template_by_model_path("nobody/knows").name == "default"
    assert named.get_chat_template("yi-vl").image_token == " <image_placeholder>\n"


def test_an_engine_s_template_is_given_or_found(tmp_path: Path) -> None:
    book = TemplateBook()
    folder = write_tiny_model(tmp_path / "with")
    assert choose_template(None, folder, "Qwen-Chat", book).source == CHATML  # the tokenizer's own comes first
    assert choose_template("qwen", folder, "x", book) is book.get("qwen")
    assert choose_template("{{ bos_token }}!", folder, "x", book).render([]) == "!"
    (tmp_path / "own.jinja").write_text("own")
    assert choose_template(str(tmp_path / "own.jinja"), folder, "x", book).source == "own"
    own = ChatTemplate("mine")
    assert choose_template(own, folder, "x", book) is own
    bare = tmp_path / "bare"
    bare.mkdir()
    assert choose_template(None, bare, "Qwen-Chat", book) is book.get("qwen")
    assert choose_template(None, bare, "nobody", book).source == PLAIN
    for bad in ("nothing.jinja", 3, "{% endif %}"):
        with pytest.raises(InvalidRequest, match="^chat_template: "):
            choose_template(bad, folder, "x", book)  # pyright: ignore[reportArgumentType]


@pytest.mark.anyio
async def test_a_program_on_an_engine_is_written_and_stopped_by_its_template(tmp_path: Path) -> None:
    @cb.function
    async def program(s):
        s += cb.user("Hello") + cb.assistant(cb.gen("x", max_tokens=8, temperature=0))

    folder = write_tiny_model(tmp_path)
    options: dict[str, Any] = {"load_format": "dummy", "seed": 1, "max_rows": 4, "kv_slots": 512, "threads": 1}
    template = RoleTemplate("mine", None, {"user": ("U:", "\n"), "assistant": ("A:", "\n")})
    async with Engine(folder, chat_template=template, **options) as engine:
        state = await program.arun(backend=engine)
        said = state["x"]
        assert await state.atext() == f"U:Hello\nA:{said}\n"
    stop = said[2:4]
    ending = RoleTemplate("mine", None, {"user": ("U:", "\n"), "assistant": ("A:", "\n")}, (stop, "<|im_end|>"))
    async with Engine(folder, chat_template=ending, **options) as engine:
        assert (await program.arun(backend=engine))["x"] == said[: said.index(stop)]
        end = (await engine.encode("<|im_end|>"))[:4]
        bias = {int.from_bytes(end, "little"): 100.0}

        @cb.function
        async def wish(s):
            s += cb.assistant(cb.gen("x", max_tokens=8, temperature=0, logit_bias=bias))

        state = await wish.arun(backend=engine)  # a special token that is a stop string ends the text
        assert (state["x"], (await state.aget_meta_info("x"))["finish_reason"]["type"]) == ("", "stop")


def test_the_named_ones_are_data() -> None:
    assert all(set(told["role_prefix_and_suffix"]) == {"system", "user", "assistant"} for told in NAMED.values())
