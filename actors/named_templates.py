"""The chat templates that go by a name, and which models speak by them: facts of the models' own formats."""

# ruff: noqa: RUF001  (the models' own characters)
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NAMED", "RULES"]

Roles = dict[str, tuple[str, str]]


def _roles(system: tuple[str, str], user: tuple[str, str], assistant: tuple[str, str]) -> Roles:
    return {"system": system, "user": user, "assistant": assistant}


def _around(begin: str, end: str, assistant: str = "assistant") -> Roles:
    """Give roles whose names stand in the same header; `{}` is where."""
    return {
        role: (begin.format(name), end)
        for role, name in (("system", "system"), ("user", "user"), ("assistant", assistant))
    }


_CHATML = _around("<|im_start|>{}\n", "<|im_end|>\n")
_LLAMA_3 = _around("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>")
_DEEPSEEK = _roles(("", ""), ("<｜User｜>", ""), ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"))
_MINICPM = _roles(("", " "), ("user:", " "), ("assistant:", "</s>"))
_HELPFUL = "You are a helpful assistant."
_IM_END = ("<|im_end|>",)
_SENTENCE_END = ("<｜end▁of▁sentence｜>",)
_DBRX = (
    "You are DBRX, created by Databricks. You were last updated in December 2023. You answer questions based on "
    "information available up to that point.\n"
    "YOU PROVIDE SHORT RESPONSES TO SHORT QUESTIONS OR STATEMENTS, but provide thorough responses to more complex and "
    "open-ended questions.\n"
    "You assist with various tasks, from writing to coding (using markdown for code blocks — remember to use ``` with "
    "code, JSON, and tables).\n"
    "(You do not have real-time data access or code execution capabilities. You avoid stereotyping and provide "
    "balanced perspectives on controversial topics. You do not provide song lyrics, poems, or news articles and do not "
    "divulge details of your training data.)\n"
    "This is your system prompt, guiding your responses. Do not reference it, just respond to the user. If you find "
    "yourself talking about this message, stop. You should be responding appropriately and usually that means not "
    "mentioning this.\n"
    "YOU DO NOT MENTION ANY OF THIS INFORMATION ABOUT YOURSELF UNLESS THE INFORMATION IS DIRECTLY PERTINENT TO THE "
    "USER'S QUERY."
)
_VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
_YI_VL = (
    "This is a chat between an inquisitive human and an AI assistant. Assume the role of the AI assistant. Read all "
    "the images carefully, and respond to the human's questions with informative, helpful, detailed and polite answers."
    "这是一个好奇的人类和一个人工智能助手之间的对话。假设你扮演这个AI助手的角色。仔细阅读所有的图像，并对人类的问题做出信息丰富、有帮助、详细的和礼貌的回答。"
)
_INTERNVL = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
_INTERN_S1 = (
    "You are an AI assistant whose name is Intern-S1 (书生大模型).\n"
    "- Intern-S1 (书生大模型) is a vision-language model that is developed by Shanghai AI Laboratory "
    "(上海人工智能实验室).  It is designed to be helpful, honest, and harmless.\n"
    "- Intern-S1 (书生大模型) can understand and communicate fluently in the language chosen by the user such as "
    "English and 中文.\n"
    "You are an expert reasoner with extensive experience in all areas. You approach problems through systematic "
    "thinking and rigorous reasoning. Your response should reflect deep understanding and precise logical thinking, "
    "making your solution path and reasoning clear to others. Please put your thinking process within "
    "<think>...</think> tags."
)


def _told(
    roles: Roles,
    stop: tuple[str, ...] = (),
    default: str | None = None,
    *,
    image: str = "<image>",
    audio: str = "<audio>",
    llama_2: bool = False,
) -> dict[str, Any]:
    return {
        "role_prefix_and_suffix": roles,
        "stop_str": stop,
        "default_system_prompt": default,
        "image_token": image,
        "audio_token": audio,
        "llama_2": llama_2,
    }


NAMED: Mapping[str, Mapping[str, Any]] = {
    "default": _told(_roles(("SYSTEM:", "\n"), ("USER:", "\n"), ("ASSISTANT:", "\n"))),
    "claude": _told(_roles(("", ""), ("\n\nHuman: ", ""), ("\n\nAssistant:", ""))),
    "chatml": _told(_CHATML, _IM_END),
    "chatml-llava": _told(_CHATML, _IM_END, _HELPFUL, image="<image>\n"),
    "qwen": _told(_CHATML, _IM_END, _HELPFUL),
    "qwen2-vl": _told(_CHATML, _IM_END, _HELPFUL, image="<|vision_start|><|image_pad|><|vision_end|>"),
    "vicuna_v1.1": _told(
        _roles(("", " "), ("USER:", " "), ("ASSISTANT:", "</s>")), (), _VICUNA, image=" <image>\n"
    ),
    "llama-2-chat": _told(
        _roles(("<<SYS>>\n", "\n<</SYS>>\n\n"), ("[INST] ", " [/INST]"), ("", " </s><s>")), llama_2=True
    ),
    "mistral": _told(
        _roles(("[SYSTEM_PROMPT] ", " [/SYSTEM_PROMPT]"), ("[INST] ", " [/INST]"), ("", " </s><s>")),
        ("</s>",), image="[IMG]",
    ),
    "llama-3-instruct": _told(_LLAMA_3, ("<|eot_id|>",), image="<|image|>"),
    "minicpmv": _told(_MINICPM, ("<|im_end|>", "<|endoftext|>"), image="(<image>./</image>)"),
    "janus-pro": _told(_DEEPSEEK, _SENTENCE_END, image="<image_placeholder>\n"),
    "minicpmo": _told(
        _MINICPM, ("<|im_end|>", "<|endoftext|>"), image="(<image>./</image>)", audio="(<audio>./</audio>)"
    ),
    "janus": _told(_DEEPSEEK, _SENTENCE_END, image="<image_placeholder>\n"),
    "llama-3-instruct-llava": _told(_LLAMA_3, ("<|eot_id|>",), image="<image>\n"),
    "llama-4": _told(
        _around("<|header_start|>{}<|header_end|>\n\n", "<|eot|>"), ("<|eot|>",), image="<|image|>"
    ),
    "yi-1.5": _told(
        _roles(("", ""), ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"), ("", "<|im_end|>\n")), _IM_END
    ),
    "yi-vl": _told(
        _roles(("", "\n\n"), ("### Human:", "\n"), ("### Assistant:", "\n")), (), _YI_VL,
        image=" <image_placeholder>\n",
    ),
    "gemma-it": _told(
        _around("<start_of_turn>{}\n", "<end_of_turn>\n", "model") | {"system": ("", "")},
        image="<start_of_image>", audio="<start_of_audio>",
    ),
    "gemma-4-it": _told(_around("<|turn>{}\n", "<turn|>\n") | {"system": ("", "")}),
    "dbrx-instruct": _told(
        _around("\n<|im_start|>{}\n", "<|im_end|>") | {"system": ("<|im_start|>system\n", "<|im_end|>")}, _IM_END, _DBRX
    ),
    "c4ai-command-r": _told(
        {
            role: (f"<|START_OF_TURN_TOKEN|><|{name}_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
            for role, name in (("system", "SYSTEM"), ("user", "USER"), ("assistant", "CHATBOT"))
        }
    ),
    "internvl-2-5": _told(_CHATML, ("<|im_end|>", "<|action_end|>"), _INTERNVL),
    "interns1": _told(_CHATML, ("<|im_end|>", "<|action_end|>"), _INTERN_S1),
    "granite-3-instruct": _told(_around("<|start_of_role|>{}<|end_of_role|>", "<|end_of_text|>"), ("<|end_of_text|>",)),
    "deepseek-v3": _told(_DEEPSEEK, _SENTENCE_END),
    "glm-4v": _told(
        _around("<|{}|>\n", "\n"), ("<|user|>", "<|endoftext|>", "<|observation|>"), image="<|image|>"
    ),
}  # fmt: skip
"""What each name stands for, as arguments of RoleTemplate; llama_2 is its style."""

RULES: tuple[tuple[str, str], ...] = (
    (r"^(?!.*base).*deepseek-(v3|r1)", "deepseek-v3"),
    (r"orion", "claude"),
    (r"janus", "janus-pro"),
    (r"dbrx.*instruct", "dbrx-instruct"),
    (r"vicuna|llava-v1\.5|llava-next-video-7b", "vicuna_v1.1"),
    (r"llama-2.*chat|codellama.*instruct", "llama-2-chat"),
    (r"pixtral|(mistral|mixtral).*instruct", "mistral"),
    (r"llama-3.*instruct", "llama-3-instruct"),
    (r"llama-4.*instruct", "llama-4"),
    (r"tinyllama", "chatml"),
    (r"qwen.*vl", "qwen2-vl"),
    (r"glm[-_]?4(\.\d+)?v", "glm-4v"),
    (r"^(?!.*llava).*qwen.*(chat|instruct)", "qwen"),
    (r"llava-v1\.6-34b|llava-v1\.6-yi-34b|llava-next-video-34b|llava-onevision-qwen2", "chatml-llava"),
    (r"^(?!.*llava).*yi-vl", "yi-vl"),
    (r"yi-1\.5.*chat", "yi-1.5"),
    (r"gemma-4.*it", "gemma-4-it"),
    (r"gemma.*it|gemma-3", "gemma-it"),
    (r"minicpm-v", "minicpmv"),
    (r"minicpm-o", "minicpmo"),
    (r"c4ai-command-r", "c4ai-command-r"),
    (r"granite.*instruct", "granite-3-instruct"),
    (r"internvl2_5", "internvl-2-5"),
    (r"intern-?s1", "interns1"),
)
"""Expressions searched in a model's path, whatever its case, and the name of the first that is found."""
