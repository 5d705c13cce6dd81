"""callboard chat: one question, and a conversation in a terminal."""

from __future__ import annotations

import builtins
import io
import signal
import sys
from typing import Any

import anyio
import pytest

from callboard.__main__ import main
from callboard.actors.errors import InvalidRequest
from callboard.commands import chat

from ..actors.gateway.fake_engine import FakeEngine


def test_chat_answers_one_question_from_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is the capital of France?\n"))
    assert main(["chat", "--threads", "1"]) == 0
    assert capsys.readouterr().out.strip()


def test_chat_answers_one_question_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    engine = FakeEngine()
    monkeypatch.setattr(chat, "make_engine", lambda _: engine)
    assert main(["chat", "--max-tokens", "4", "what", "is", "it?"]) == 0
    assert engine.prompts == ["user: what is it?\nassistant: "]
    assert capsys.readouterr().out == "user\n"
    assert main(["chat", "FAIL"]) == 1


def test_chat_with_nothing_to_answer_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    assert main(["chat"]) == 2
    assert "standard input is empty" in capsys.readouterr().err


@pytest.mark.anyio
async def test_a_conversation_remembers_forgets_and_keeps_no_refused_question():
    engine: Any = FakeEngine()
    conversation = chat.Conversation(engine, "be brief", 0.0, 4)
    shown: list[str] = []
    with anyio.fail_after(20):
        await conversation.answer("one", shown.append)
        await conversation.answer("two", shown.append)
        assert engine.prompts[1] == "system: be brief\nuser: one\nassistant: syst\nuser: two\nassistant: "
        with pytest.raises(InvalidRequest):
            await conversation.answer("x" * 5000, shown.append)
        assert len(conversation.messages) == 4
        conversation.reset()
        await conversation.answer("three", shown.append)
        assert engine.prompts[-1] == "system: be brief\nuser: three\nassistant: "
    assert "".join(shown) == "syst" * 3


@pytest.mark.anyio
async def test_an_answer_that_is_cut_off_is_kept_as_far_as_it_came():
    engine: Any = FakeEngine()
    conversation = chat.Conversation(engine, None, 0.0, 100)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:

            def show(text: str) -> None:
                if conversation_text() >= 3:
                    group.cancel_scope.cancel()

            shown: list[str] = []

            def conversation_text() -> int:
                shown.append(".")
                return len(shown)

            group.start_soon(conversation.answer, "HANG", show)
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    assert conversation.messages[1]["content"] == "use"
    assert engine.ended == ["closed"]


def test_a_conversation_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    engine = FakeEngine()
    said = iter(["/help", "", "hi", "/[/dim]nonsense", "OVERLOAD", "/system be kind", "again", "/reset", "/quit"])
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(builtins, "input", lambda *_: next(said))
    monkeypatch.setattr(chat, "make_engine", lambda _: engine)
    assert main(["chat"]) == 0
    told = capsys.readouterr().out
    assert engine.prompts[0] == "user: hi\nassistant: "
    assert "user: hi\nassistant: \n" in told
    assert "no such command: /[/dim]nonsense" in told
    assert "4096 requests are live" in told
    assert engine.prompts[-1] == "system: be kind\nuser: again\nassistant: "  # new words, a new conversation
    assert "forgotten" in told


def test_ctrl_c_cuts_off_an_answer_and_ctrl_d_ends_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    engine = FakeEngine()
    said = iter(["HANG", "/reset", "hi"])

    def read(*_: object) -> str:
        for line in said:
            return line
        raise EOFError

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(builtins, "input", read)
    monkeypatch.setattr(chat, "make_engine", lambda _: engine)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        assert main(["chat"]) == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "(cut off)" in capsys.readouterr().out
    assert engine.ended == ["closed", "finished"]
