"""Templates render as transformers renders them, whole and a role at a time, and cannot reach out of the sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from callboard.actors.chat_template import ChatTemplate
from callboard.actors.errors import InvalidRequest

from .vocabularies import byte_level

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + CHATML
LLAMA_2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
CHAT = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3 + 3?"},
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("source", [CHATML, DEFAULT_SYSTEM, LLAMA_2])
@pytest.mark.parametrize("add", [True, False])
def test_rendering_equals_transformers(source: str, add: bool) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level(), chat_template=source, **SPECIAL)
    whole = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=add)
    assert ChatTemplate(source, SPECIAL).render(CHAT, add_generation_prompt=add) == whole


@pytest.mark.parametrize("source", [CHATML, DEFAULT_SYSTEM])
def test_a_chat_written_a_role_at_a_time_is_the_chat_rendered_whole(source: str) -> None:
    template = ChatTemplate(source, SPECIAL)
    text = ""
    for index, message in enumerate(CHAT):
        prefix, suffix = template.role(message["role"], CHAT[:index])
        text += prefix + message["content"] + suffix
    assert text == template.render(CHAT, add_generation_prompt=False)


def test_the_assistants_turn_opens_with_the_generation_prompt() -> None:
    template = ChatTemplate(CHATML)
    prefix, suffix = template.role("assistant", CHAT[:1])
    assert (prefix, suffix) == ("<|im_start|>assistant\n", "<|im_end|>\n")


def test_where_history_and_generation_differ_the_assistants_turn_opens_as_for_generation() -> None:
    assert ChatTemplate(LLAMA_2, SPECIAL).role("assistant", CHAT[:1]) == ("", " </s>")


def test_a_template_is_read_from_a_model_folder(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": LLAMA_2}]}
    config |= {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.load(tmp_path).render(CHAT[:1]) == "<s>[INST] What is 2 + 2? [/INST]"
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert ChatTemplate.load(tmp_path).render(CHAT[:1]).startswith("<|im_start|>user")


def test_a_model_without_a_template_gets_a_plain_one(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path).render(CHAT[:1]) == "user: What is 2 + 2?\nassistant: "


def test_a_template_that_refuses_is_a_bad_request_with_its_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="messages: .*roles must alternate"):
        template.render(CHAT)


def test_a_role_the_template_drops_is_a_bad_request() -> None:
    template = ChatTemplate("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}")
    with pytest.raises(InvalidRequest, match="role: .*'tool'"):
        template.role("tool", CHAT[:1])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{% set _ = messages.append({'role': 'user', 'content': 'x'}) %}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source).render(CHAT)
