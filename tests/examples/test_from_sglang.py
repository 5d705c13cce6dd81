"""The programs of SGLang's readme and tutorial run with the import changed, and what they print makes sense."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import callboard as cb
from callboard.lang.house import HOUSE

FOLDER = Path(__file__).parent / "sglang"
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
PIXEL = f"data:image/png;base64,{DOT}"
CAPITALS = {"question_1": "What is the capital of the United States?", "question_2": "List two local attractions."}


@pytest.fixture(scope="module", autouse=True)
def seeded() -> Iterator[None]:
    """The programs say no temperature, so they draw; with the engine's seed they draw the same each time."""
    before, engine = HOUSE.default, cb.Engine("embedded", seed=0)
    cb.set_default_backend(engine)
    yield
    HOUSE.leave(engine)
    HOUSE.default = before


@pytest.fixture(params=["readme", "notebook"])
def programs(request: pytest.FixtureRequest) -> Any:
    return imported(request.param)


def imported(name: str) -> Any:
    """Run a file in which only the name of the package is another."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    text, changed = re.subn(r"^(from|import) sglang\b", r"\1 callboard", text, flags=re.MULTILINE)
    assert changed
    names: dict[str, Any] = {}
    exec(compile(text, name, "exec"), names)
    return SimpleNamespace(**names)


def test_multi_turn_question() -> None:
    state = imported("readme").multi_turn_question.run(**CAPITALS)
    assert [message["role"] for message in state.messages()] == ["system", *["user", "assistant"] * 2]
    assert state["answer_1"] == "The capital of the United States is Washington, D.C."
    assert state["answer_2"].startswith("1. ")


def test_basic_and_multi_turn_questions() -> None:
    programs = imported("notebook")
    country = re.compile(r"\d\. [\w .'-]+ - [\w .,'-]+")
    state = programs.basic_qa("List 3 countries and their capitals.")
    assert all(country.fullmatch(line) for line in state["answer"].split("\n"))
    state = programs.multi_turn_qa()
    first, second = (state[name].split("\n") for name in ("first_answer", "second_answer"))
    assert len({line.split(". ", 1)[1] for line in (*first, *second)}) == 6


def test_tool_use(programs: Any) -> None:
    state = programs.tool_use("What is 2 * 2?")
    assert (state["tool"], state["expression"].strip()) == ("calculator", "2 * 2")
    state = programs.tool_use("Who wrote Dracula?")
    assert (state["tool"], state["word"].strip()) == ("search engine", "Dracula author")


def test_tip_suggestion(programs: Any) -> None:
    state = programs.tip_suggestion()
    assert "balanced diet" in state["summary"]
    assert "exercis" in state["summary"]
    assert "Tip 1:A balanced diet" in state.text()
    assert "Tip 2:Regular exercise" in state.text()


def test_an_address_under_a_regular_expression(programs: Any) -> None:
    assert programs.regular_expression_gen()["answer"] == "8.8.8.8"


def test_json_under_a_regular_expression(programs: Any) -> None:
    text = programs.character_gen("Harry Potter")["json_output"]
    assert re.fullmatch(programs.character_regex, text)
    assert json.loads(re.sub(r"(\d)\.(\s)", r"\1.0\2", text))["house"] == "Gryffindor"  # the regex allows "11."


def test_batching(programs: Any) -> None:
    states = programs.text_qa.run_batch(
        [
            {"question": "What is the capital of the United Kingdom?"},
            {"question": "What is the capital of France?"},
            {"question": "What is the capital of Japan?"},
        ],
        progress_bar=True,
    )
    for capital, state in zip(("London", "Paris", "Tokyo"), states, strict=True):
        assert capital in state["answer"]


def test_streaming(programs: Any) -> None:
    state = programs.text_qa.run(question="What is the capital of France?", temperature=0.1, stream=True)
    text = "".join(state.text_iter())
    assert "What is the capital of France?" in text
    assert "Paris" in text
    assert text == state.text()


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["length", "stop"])
async def test_streamed_log_probabilities_are_each_told_once(end: str) -> None:
    """As its own test has it, which wants a text in every chunk; only one that tells of the model's end has none."""

    @cb.function
    def qa(s, question):
        s += cb.user(question)
        s += cb.assistant(cb.gen("answer", return_logprob=True))

    question = "What is the capital of France?"
    options = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": end == "length"}
    state = await qa.arun(question=question, stream=True, **options)
    chunks = [chunk async for chunk in state.text_async_iter("answer", return_meta_data=True)]
    assert chunks[-1][1]["finish_reason"]["type"] == end
    assert all(text for text, _ in (chunks if end == "length" else chunks[:-1]))
    told = 0
    for _, meta in chunks:
        told += len(meta["output_token_logprobs"])
        by_itself = (meta["finish_reason"] or {}).get("type") == "stop"  # then its end token is counted too
        assert told == meta["output_token_logprobs_length"] == meta["completion_tokens"] - by_itself


def test_complex_prompts() -> None:
    state = imported("notebook").chat_example()
    assert state["answer"] == "Paris"
    assert state.messages()[-1] == {"role": "assistant", "content": "Answer: Paris"}


def test_an_image_is_sent_and_a_model_that_cannot_see_refuses_it(programs: Any) -> None:
    with pytest.raises(cb.InvalidRequest, match="image: .* reads text alone"):
        programs.image_qa.run(PIXEL, "What is in the image?")
    state = programs.image_qa.run(PIXEL, "What is in the image?", backend=cb.NullBackend(text="A dot."))
    assert [part["type"] for part in state.messages()[0]["content"]] == ["image_url", "text"]
    assert state["answer"] == "A dot."


def test_what_its_test_programs_are_made_of() -> None:
    """Unnamed generations, a scope over several, regexes of `lang.ir`, positional arguments, keywords of a run."""

    @cb.function
    def sheet(s):
        from callboard.lang.ir import REGEX_INT

        s += "Q: How many hours are in a day?\nA: " + cb.gen_int("hours") + "\n"
        s += "Q: How many days are in a year?\nA: " + cb.gen(regex=REGEX_INT, stop=[" ", "\n"]) + "\n"
        with s.var_scope("both"):
            s += cb.gen("first", 4, stop="\n") + "," + cb.gen(dtype=bool)

    state = sheet.run(temperature=0, max_new_tokens=8)
    assert state["hours"] == "24"
    assert "A: 365\n" in state.text()
    assert state["both"].partition(",")[2] in {"True", "False"}


def test_few_shots_and_a_loop_that_the_model_steers() -> None:
    @cb.function
    def search(s, question):
        for turn in range(4):
            s += f"To answer this question: {question}. I need to use a "
            s += cb.select(f"tool_{turn}", ["calculator", "search engine"])
            if s[f"tool_{turn}"] == "calculator":
                s += ". The math expression is" + cb.gen("answer", stop="\n")
                break
            question = "What is 3 + 4?"
            s += ". The key word to search is" + cb.gen(stop="\n") + "\n"

    state = search.run(question="Who wrote Dracula?", temperature=0)
    assert (state["tool_0"], state["tool_1"], state["answer"]) == ("search engine", "calculator", " 3 + 4")
    assert "Dracula author" in state.text()
    assert "tool_2" not in state


def test_branches_joined_one_behind_the_other_are_what_is_read() -> None:
    @cb.function
    def encoded(s, lines, question):
        forks = s.fork(len(lines))
        forks += lambda index: lines[index] + "\n"
        forks.join(mode="concate_and_append")
        s += question + cb.gen("answer", max_tokens=4, stop="\n")

    lines = ["France: Paris", "Japan: Tokyo", "Peru: Lima"]
    state = encoded.run(lines=lines, question="Italy:", temperature=0)
    assert state.text() == "France: Paris\nJapan: Tokyo\nPeru: Lima\nItaly: Rome"
