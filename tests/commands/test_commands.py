"""The command line: what it prints of its commands, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.__main__ import main

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_help_and_version_load_nothing_heavy():
    script = (
        "import sys; from callboard.__main__ import main\n"
        "for arguments in (['--help'], ['--version'], ['serve', '--help'], ['chat', '--help']):\n"
        "    try: main(arguments)\n    except SystemExit as end: assert end.code == 0\n"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'hypercorn', 'rich', 'anyio', 'msgspec', 'starlette'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "talk to a model in the terminal" in done.stdout
    assert "--grace SECONDS" in done.stdout


def test_without_a_command_the_commands_are_told(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "callboard serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "70000"], "port: 70000 is outside 0 to 65535"),
        (["serve", "--certfile", "a.pem"], "certfile, keyfile: both are needed"),
        (
            ["serve", "--certfile", "a.pem", "--keyfile", "b.pem"],
            "a.pem or b.pem cannot be read: No such file or directory",
        ),
        (["serve", "--certfile", __file__, "--keyfile", __file__], "are not a PEM certificate and its key"),
        (["serve", "--log-interval", "0"], "log_interval is 0; it must be above 0"),
        (["bench", "offline", "--workload", "many"], "workload is 'many'; write REQUESTSxINPUT/OUTPUT"),
        (["bench", "serve", "--rounds", "0"], "rounds is 0; it must be at least 1"),
        (["bench", "decode", "--at", "0x5"], "at is '0x5'; write ROWSxCONTEXT"),
        (["bench", "decode", "--in-flight", "9"], "in_flight: 9 is outside 1 to 4"),
        (["serve", "--stream-interval", "-1"], "stream_interval_ms: -1 is outside 0 to 1000"),
        (["serve", "--api-keys", "nowhere/at/all"], "api_keys: nowhere/at/all cannot be read: No such file"),
        (["serve", "--tenant-weight", "2"], "--tenant-weight: '2' is not NAME=WEIGHT"),
        (["serve", "--tenant-weight", "a=1", "--tenant-weight", "a=2"], "'a' has another weight already, 1"),
        (["serve", "--port", "0", "--tenant-weight", "a=-1"], "weights: -1.0 given for 'a'"),
        (["serve", "--reasoning-parser", "mine"], "reasoning_parser: 'mine' is unknown; there are deepseek-r1"),
        (["chat", "--model", "nowhere/at/all", "hello"], "neither"),
        (["chat", "--max-rows", "0", "hello"], "max_rows: 0 is outside"),
        (["chat", "--temperature", "-1", "hello"], "temperature: -1.0 is outside"),
        (["serve", "--api-key", ""], "api_key: it must be printable ASCII and not empty"),
        (["serve", "--max-body-mib", "nan"], "max_body_mib is nan; it must be above 0"),
        (["bench", "offline", "--temperature", "-1"], "temperature: -1.0 is outside [0, 100]"),
        (["bench", "decode", "--json", "nowhere/at.json"], "json is 'nowhere/at.json'; there is no folder 'nowhere'"),
        (["doctor", "--device", "cuda"], "device: it is for --model, which is not given"),
        (["run", "missing.py"], "there is no file 'missing.py'"),
        (["run", __file__ + "/.."], "there is no file"),
        (["run", str(Path(__file__).parents[2] / "README.md")], "its name does not end in .py"),
        (["run", "missing.py", "--arg", "x"], "--arg: 'x' is not NAME=VALUE"),
    ],
)
def test_a_wrong_argument_is_told_in_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("callboard: ")
    assert words in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dance"], "argument COMMAND: invalid choice: 'dance'"),
        (["serve", "--port", "x"], "argument --port: invalid int value: 'x' (`callboard serve --help` tells"),
        (["serve", "--colour", "red"], "unrecognized arguments: --colour red"),
        (["run"], "the following arguments are required: FILE.py[:PROGRAM] (`callboard run --help` tells"),
        (["bench"], "the following arguments are required: KIND"),
    ],
)
def test_what_is_no_argument_is_told_in_one_line_too(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("callboard: ")
    assert words in told
    assert told.count("\n") == 1


GREET = """
import callboard as cb

@cb.function
def greet(s, name):
    s += f"Hello {name}" + cb.gen("rest", max_tokens=2)

@cb.function
def lines(s):
    for _ in range(9):
        s += "A whole line.\\n"
        s.sync()
"""


@pytest.mark.parametrize(
    "command", [["chat", "Count to 20."], ["run", "greet.py:greet", "--arg", "name=Ann"], ["run", "greet.py:lines"]]
)
def test_who_stops_reading_is_told_nothing(command: list[str], tmp_path: Path):
    (tmp_path / "greet.py").write_text(GREET)
    with subprocess.Popen(
        [sys.executable, "-m", "callboard", *command],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
