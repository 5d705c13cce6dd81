"""The command line: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import builtins
import io
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from callboard.__main__ import main
from callboard.actors.core import ActorDied, simulate
from callboard.actors.errors import InvalidRequest
from callboard.commands import chat, doctor, serve
from callboard.commands.model_findings import examine_model
from callboard.commands.statistics_line import statistics_line
from callboard.models import embedded
from callboard.models.room import Room

from .actors.gateway.fake_engine import FakeEngine

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


# --- all commands ---


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
        (["run", str(Path(__file__).parent.parent / "README.md")], "its name does not end in .py"),
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
"""


@pytest.mark.parametrize("command", [["chat", "Count to 20."], ["run", "greet.py", "--arg", "name=Ann"]])
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


# --- serve ---


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "callboard", "serve", "--port", "0", "--grace", "0.2"],
        stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, "CALLBOARD_API_KEY": "sk-test"},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"address +(http://\S+)", line):
                    break
            else:
                raise AssertionError("it never told its address")
            yield process, found[1]
        finally:
            process.kill()


def test_serve_answers_and_a_signal_ends_it(server: tuple[subprocess.Popen[str], str]):
    process, url = server
    headers = {"authorization": "Bearer sk-test"}
    body = {
        "text": "Q: What is the capital of France?\nA:",
        "sampling_params": {"max_new_tokens": 16, "temperature": 0},
    }
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        assert client.get("/health").status_code == 200
        assert client.post("/generate", json=body).status_code == 401
        assert client.post("/generate", json=body, headers=headers).json()["text"]
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopping" in rest
    assert "Traceback" not in rest


def test_a_tls_connection_that_ends_untidily_is_no_news_and_anything_else_is(caplog: pytest.LogCaptureFixture):
    loop = asyncio.new_event_loop()
    untidy = ssl.SSLError(1, "application data after close notify")
    try:
        serve.pass_over_tls(loop, {"message": "a client", "exception": untidy})
        serve.pass_over_tls(loop, {"message": "a client", "exception": ExceptionGroup("all", [untidy])})
        assert not caplog.records
        serve.pass_over_tls(loop, {"message": "a bug", "exception": KeyError("x")})
        serve.pass_over_tls(loop, {"message": "a task was destroyed"})
    finally:
        loop.close()
    assert [record.getMessage() for record in caplog.records] == ["a bug", "a task was destroyed"]


def test_serve_on_a_taken_address_says_so_before_it_loads_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    made: list[Any] = []
    monkeypatch.setattr(serve, "make_engine", made.append)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert capsys.readouterr().err == f"callboard: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert not made


def test_serve_on_a_host_that_is_not_there_says_so(capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--host", "nowhere.invalid"]) == 1
    assert capsys.readouterr().err.startswith("callboard: cannot listen on host 'nowhere.invalid': ")


def statistics(**changes: Any) -> dict[str, Any]:
    scheduler = {
        "running": 0, "waiting": 0, "output_tokens": 50, "computed_tokens": 10, "slots": 10_000, "slots_free": 7500,
        "hit_rate": 0.5, "host_seconds": 1.0, "retractions": 1,
    }  # fmt: skip
    worker = {"steps": 10, "forward_s": 1.0, "launch_s": 0.5, "collect_s": 0.25, "graphs": 0, "graph_bytes": 0}
    known = scheduler.keys() | worker.keys()
    assert changes.keys() <= known
    return {
        "scheduler": scheduler | {name: value for name, value in changes.items() if name in scheduler},
        "worker": worker | {name: value for name, value in changes.items() if name in worker},
    }


def test_a_line_is_told_only_when_busy():
    idle = statistics()
    assert statistics_line({}, idle, 1.0) == ""
    assert statistics_line(idle, idle, 1.0) == ""
    waiting = statistics(waiting=1)
    assert statistics_line(idle, waiting, 1.0) == (
        "running 0  waiting 1  tokens/s 0 out 0 in  hits 50%  slots 25% of 10,000"
    )


def test_a_line_tells_rates_parts_of_a_step_and_how_busy_the_device_is():
    busy = statistics(
        running=3, waiting=1, output_tokens=90, computed_tokens=2010, host_seconds=1.004, retractions=3, steps=30,
        forward_s=2.96, launch_s=0.502, collect_s=0.251, graphs=12, graph_bytes=300 << 20,
    )  # fmt: skip
    assert statistics_line(statistics(), busy, 2.0) == (
        "running 3  waiting 1  tokens/s 20 out 1,000 in  hits 50%  slots 25% of 10,000  "
        "step 98.00 ms (launch 100 collect 50 plan 200 us)  device 98%  graphs 12 (300 MiB)  retracted 2"
    )


def test_lines_come_at_their_interval_while_there_is_work(capsys: pytest.CaptureFixture[str]):
    """Ten virtual seconds: busy in the third and fourth, a line every two."""
    asked: list[float] = []

    async def ask() -> dict[str, Any]:
        now = anyio.current_time()
        asked.append(now)
        return statistics(output_tokens=50 + 100 * min(4, max(2, round(now - asked[0]))))

    async def main() -> None:
        with anyio.move_on_after(10.5):
            await serve.report(ask, 2.0)

    simulate.run(main, seed=1)
    assert len(asked) == 6
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("tokens/s ")[2].split()[0] for line in told] == ["100"]


def test_a_core_that_starts_again_costs_a_line_and_not_the_server(capsys: pytest.CaptureFixture[str]):
    answers = iter([statistics(), ActorDied("worker"), statistics(running=1, output_tokens=20)])

    async def ask() -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> None:
        with anyio.move_on_after(2.5):
            await serve.report(ask, 1.0)

    simulate.run(main, seed=1)
    assert "running 1  waiting 0  tokens/s 0 out" in capsys.readouterr().err


# --- chat ---


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


# --- doctor ---


def test_doctor_finds_that_this_machine_can_run(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--quick"]) == 0
    told = capsys.readouterr().out
    for what in ("Python", "memory", "torch", "GPU", "triton", "flashinfer", "nvcc", "model"):
        assert what in told
    assert "callboard chat" in told


def test_doctor_starts_the_model_that_ships(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    assert re.search(r"answers '.+'; [\d.]+ s to start", capsys.readouterr().out)


def test_doctor_tells_of_a_model_before_it_is_loaded(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--model", "embedded", "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    for words in ("LlamaForCausalLM, 8.0 million parameters", "56 tensors in a file", "of weights in float32 fit cpu"):
        assert words in told
    assert "This machine runs that model." in told


def test_doctor_tells_what_a_model_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--model", str(tmp_path)]) == 1
    assert "callboard cannot run yet: model: " in capsys.readouterr().out
    for file in embedded.path().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    (tmp_path / "tokenizer.json").unlink()
    assert main(["doctor", "--model", str(tmp_path), "--device", "abacus"]) == 1
    told = capsys.readouterr().out
    assert "weights: " in told
    assert "cannot be read as safetensors" in told
    assert "tokenizer.json does not exist" in told
    assert "callboard cannot run yet: room: device is 'abacus'; it must be 'cpu', 'cuda' or 'cuda:N'" in told


def test_doctor_counts_what_a_device_has_left():
    def told(free: int, device: str = "cuda:1", kv_dtype: str | None = None) -> doctor.Finding:
        found = examine_model("embedded", device, None, kv_dtype, lambda _: Room(free << 20, 4 << 30))
        return next(finding for finding in found if finding.what == "room")

    # 6 layers x 2 heads x (key + value) x 32 x 2 bytes = 1536 a token; 15.2 MiB of weights and 1 GiB are kept apart.
    fits = told(2 << 10)
    assert fits.state == "good"
    assert "0.01 GiB of weights in bfloat16 fit cuda:1, and leave 1.0 of 4.0 GiB: 688,698 cached tokens" in fits.told
    taken = told(100)
    assert taken.state == "bad"
    assert "cuda:1 has 0.1 GiB free of 4.0 GiB; other processes hold the rest: end them (`nvidia-smi`" in taken.told
    assert "in float32" in told(2 << 10, "cpu").told
    plain, narrow = told(2 << 10, "cpu").told, told(2 << 10, "cpu", "float8").told
    assert plain.endswith(": 339,173 cached tokens")  # 3072 bytes each
    assert narrow.endswith(": 1,356,693 cached tokens in float8")  # 768


def test_doctor_takes_the_pool_s_dtype_as_serve_does(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--model", "embedded", "--device", "cpu", "--kv-dtype", "float8"]) == 0
    assert "cached tokens in float8" in capsys.readouterr().out


def test_doctor_says_what_to_do():
    everything = ("GPU", "triton", "flashinfer-python", "nvcc", "C compiler")
    good = [doctor.Finding(what, "good", "") for what in everything]
    assert len(doctor.advice(good)) == 1
    told = {1: "nothing runs on the GPU", 2: "nothing needs it: attention", 3: "only flashinfer", 4: "name it in CC"}
    for number, words in told.items():
        lacking = [*good[:number], doctor.Finding(good[number].what, "missing", ""), *good[number + 1 :]]
        assert words in doctor.advice(lacking)[1]
    without_gpu = [doctor.Finding("GPU", "missing", ""), *good[1:]]
    assert "no GPU" in doctor.advice(without_gpu)[1]
    broken = [doctor.Finding("torch", "bad", "cannot be imported")]
    assert doctor.advice(broken) == ["callboard cannot run yet: torch: cannot be imported"]


def test_what_lasts_is_out_of_the_garbage_collectors_way_and_a_level_of_branches_brings_no_pass():
    """In a process of its own: what is frozen stays so."""
    code = (
        "import gc; from callboard.commands.lasting import keep_lasting; keep_lasting(); left = gc.get_objects();"
        "frozen = gc.get_freeze_count() > 1_000, len(left) < 100;"
        "before = gc.get_stats()[0]['collections']; kept = [[] for _ in range(40_000)];"
        "print(*frozen, gc.get_stats()[0]['collections'] == before)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True, timeout=60
    )
    assert found.stdout.split() == ["True", "True", "True"]


def test_a_process_that_keeps_what_lasts_ends_without_a_word():
    """In which triton would complain of what is not freed at the end."""
    pytest.importorskip("triton")
    code = "import triton; from callboard.commands.lasting import keep_lasting; keep_lasting()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stderr == ""


def test_threads_that_wait_for_pythons_lock_have_it_within_a_millisecond():
    """In a process of its own, for all its threads."""
    code = "import sys; from callboard.commands.lasting import take_turns; take_turns(); print(sys.getswitchinterval())"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True, timeout=60
    )
    assert float(found.stdout) <= 1e-3


def test_a_server_may_have_as_many_files_open_as_the_system_lets_it():
    code = (
        "import resource as r; from callboard.commands.lasting import open_many\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; hard = 300 if hard == r.RLIM_INFINITY else min(hard, 300)\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (hard - 100, hard)); open_many()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE) == (hard, hard))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True, timeout=60
    )
    assert found.stdout == "True\n"
