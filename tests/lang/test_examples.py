"""Programs as SGLang's readme and tutorial write them run with only the import changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import callboard as sgl
from callboard import (
    NullBackend,
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    set_default_backend,
    system,
    user,
)
from callboard.lang.house import HOUSE


@pytest.fixture(autouse=True)
def backend() -> Iterator[NullBackend]:
    backend = NullBackend(text="Paris is the capital.")
    set_default_backend(backend)
    yield backend
    HOUSE.close()
    HOUSE.default = None


ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"


def test_multi_turn_question(capsys: pytest.CaptureFixture[str]) -> None:
    @function
    def multi_turn_question(s, question_1, question_2):
        s += system("You are a helpful assistant.")
        s += user(question_1)
        s += assistant(gen("answer_1", max_tokens=256))
        s += user(question_2)
        s += assistant(gen("answer_2", max_tokens=256))

    state = multi_turn_question.run(
        question_1="What is the capital of the United States?",
        question_2="List two local attractions.",
    )
    for m in state.messages():
        print(m["role"], ":", m["content"])
    print(state["answer_1"])
    assert capsys.readouterr().out.count("Paris is the capital.") == 3


def test_tool_use() -> None:
    @sgl.function
    def tool_use(s, question):
        s += "To answer this question: " + question + ". "
        s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
        if s["tool"] == "calculator":
            s += "The math expression is" + sgl.gen("expression")
        elif s["tool"] == "search engine":
            s += "The key word to search is" + sgl.gen("word")

    state = tool_use("What is 2 * 2?")
    assert state["tool"] == "calculator"
    assert state["expression"] == "Paris is the capital."
    assert "word" not in state


def test_tip_suggestion() -> None:
    @sgl.function
    def tip_suggestion(s):
        s += "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += f"Now, expand tip {i + 1} into a paragraph:\n"
            f += sgl.gen("detailed_tip", max_tokens=256, stop="\n\n")
        s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
        s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
        s += "In summary" + sgl.gen("summary")

    state = tip_suggestion.run()
    assert state.text().endswith(
        "Tip 1:Paris is the capital.\nTip 2:Paris is the capital.\nIn summaryParis is the capital."
    )


def test_constrained_decoding() -> None:
    @function
    def regular_expression_gen(s):
        s += user("What is the IP address of the Google DNS servers?")
        s += assistant(gen("answer", temperature=0, regex=ADDRESS))

    assert regular_expression_gen()["answer"]


def test_batching(capsys: pytest.CaptureFixture[str]) -> None:
    @function
    def text_qa(s, question):
        s += user(question)
        s += assistant(gen("answer", stop="\n"))

    states = text_qa.run_batch(
        [
            {"question": "What is the capital of the United Kingdom?"},
            {"question": "What is the capital of France?"},
            {"question": "What is the capital of Japan?"},
        ],
        progress_bar=True,
    )
    assert [state["answer"] for state in states] == ["Paris is the capital."] * 3
    assert "3/3" in capsys.readouterr().err


def test_streaming() -> None:
    @sgl.function
    def text_qa(s, question):
        s += "Q: " + question + "\n"
        s += "A:" + sgl.gen("answer", stop="\n")

    state = text_qa.run(question="What is the capital of France?", temperature=0.1, stream=True)
    assert "".join(state.text_iter()) == "Q: What is the capital of France?\nA:Paris is the capital."


def test_complex_prompts() -> None:
    @function
    def chat_example(s):
        s += system("You are a helpful assistant.")
        with s.user():
            s += "Question: What is the capital of France?"
        s += assistant_begin()
        s += "Answer: " + gen("answer", max_tokens=100, stop="\n")
        s += assistant_end()

    state = chat_example()
    assert state["answer"] == "Paris is the capital."
    assert state.messages()[-1] == {"role": "assistant", "content": "Answer: Paris is the capital."}


def test_a_body_may_return_its_state() -> None:
    @function
    def multi_turn_qa(s):
        s += system("You are a helpful assistant than can answer questions.")
        s += user("Please give me a list of 3 countries and their capitals.")
        s += assistant(gen("first_answer", max_tokens=512))
        s += user("Please give me another list of 3 countries and their capitals.")
        s += assistant(gen("second_answer", max_tokens=512))
        return s

    state: Any = multi_turn_qa()
    assert state["first_answer"] == state["second_answer"] == state.ret_value["second_answer"]
