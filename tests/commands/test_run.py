"""callboard run: what it prints of a program, and of what goes wrong in somebody's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.__main__ import main
from callboard.commands import run
from callboard.lang import NullBackend

from ..support.trace_file import read_trace, states

PROGRAM = """
import callboard as cb

@cb.function
def greet(s, name, times=1):
    s += f"Hello {name}" * times + cb.gen("rest", max_tokens=2, temperature=0)

@cb.function
def other(s):
    s += "nothing"
"""


def test_run_runs_a_program_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "programs.py").write_text(PROGRAM)
    target = f"{tmp_path}/programs.py:greet"
    assert main(["run", target, "--arg", "name=Ann", "--json", "times=2", "--threads", "1"]) == 0
    assert capsys.readouterr().out.startswith("Hello AnnHello Ann")


def test_run_writes_a_timeline_and_says_before_it_starts_if_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "programs.py").write_text(PROGRAM)
    monkeypatch.setattr(run, "make_engine", lambda _: NullBackend())
    target, trace = f"{tmp_path}/programs.py:greet", tmp_path / "run.json"
    assert main(["run", target, "--arg", "name=Ann", "--trace", str(trace)]) == 0
    assert capsys.readouterr().err == f"callboard: {trace} is a timeline; open it in ui.perfetto.dev\n"
    assert states(read_trace(trace.read_bytes())["greet: greet"])[-1] == "waiting"
    assert main(["run", target, "--arg", "name=Ann", "--trace", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(f"callboard: --trace: '{tmp_path}' cannot be written: Is a directory\n")


FAILING = """
import sys
import callboard as cb

@cb.function
def raises(s):
    s += "So far.\\n"
    s.sync()
    int("x")

@cb.function
def refused(s):
    s += cb.gen("x", max_tokens=-3)

@cb.function
def exits(s):
    sys.exit(3)
"""


def run_on_nothing(target: Path, monkeypatch: pytest.MonkeyPatch, program: str = "") -> int:
    monkeypatch.setattr(run, "make_engine", lambda _: NullBackend())
    return main(["run", f"{target}{program}"])


def test_what_a_program_raises_is_told_with_its_own_lines_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (file := tmp_path / "failing.py").write_text(FAILING)
    assert run_on_nothing(file, monkeypatch, ":raises") == 1
    out, told = capsys.readouterr()
    assert out == "So far.\n"
    assert told.splitlines()[:2] == ["Traceback (most recent call last):", f'  File "{file}", line 9, in raises']
    assert told.count('File "') == 1
    assert told.endswith("ValueError: invalid literal for int() with base 10: 'x'\n")
    assert run_on_nothing(file, monkeypatch, ":refused") == 1
    assert capsys.readouterr().err == "callboard: failing.py, line 13: max_tokens: -3 is outside 0 to 16777216\n"


def test_a_program_that_exits_gives_its_status_and_nothing_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (file := tmp_path / "failing.py").write_text(FAILING)
    with pytest.raises(SystemExit) as ended:
        run_on_nothing(file, monkeypatch, ":exits")
    assert ended.value.code == 3
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("import nowhere_at_all", "Traceback (most recent call last):", "No module named 'nowhere_at_all'"),
        ("x = (", '  File "', "SyntaxError: '(' was never closed"),
    ],
)
def test_a_file_that_cannot_be_imported_is_told_with_its_own_lines_alone(
    text: str, first: str, last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (file := tmp_path / "broken.py").write_text(text + "\n")
    assert main(["run", str(file)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(first)
    assert told.count('File "') == 1
    assert f'File "{file}", line 1' in told
    assert told.endswith(f"{last}\n")


def test_run_says_which_programs_there_are(tmp_path: Path):
    (tmp_path / "several.py").write_text(PROGRAM)
    with pytest.raises(ValueError, match="has 2 programs; name one, as in .*: greet, other"):
        run.find_program(f"{tmp_path}/several.py")
    with pytest.raises(ValueError, match="has no program 'nobody'; it has greet, other"):
        run.find_program(f"{tmp_path}/several.py:nobody")
    assert run.find_program(f"{tmp_path}/several.py:other").__name__ == "other"


def test_arguments_are_texts_or_json():
    assert run.read_arguments(["a=1", "b=x=y"], ["c=[1, 2]"]) == {"a": "1", "b": "x=y", "c": [1, 2]}
    with pytest.raises(ValueError, match="'a' is given twice"):
        run.read_arguments(["a=1"], ["a=2"])
    with pytest.raises(ValueError, match="the value of 'a' is not JSON"):
        run.read_arguments([], ["a=x"])
