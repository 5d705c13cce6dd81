"""SGLang's own test programs, unchanged, by its frontend and by ours: on its server, on our engine, on a service.

    python bench/sglang_programs.py     # makes the peer's virtual environment under /tmp on first use (about 150 MB)

`sglang/test/test_programs.py` of the wheel is run as it stands; for ours only the name of the package is another.  Both
frontends run it on one SGLang server, on a CPU, with the model that ships: a small one, so that a program which wants
to know more than it does fails by both.  What a vendor's model is for (images, several gens a call) runs on a local
server that speaks OpenAI's format, with OpenAI's SDK.  Last, ours runs them with the answers of a model that knows.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
from sglang_server import PEER, VERSION, peer_python

RESULTS = Path(__file__).parent / "results" / "sglang_programs.json"
ON_A_SERVICE = ("test_image_qa", "test_completion_speculative", "test_chat_completion_speculative")
LIMIT_S = 60.0  # a program that takes longer hangs
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
KNOWN = {  # what a prompt ends with, and how a model that knows goes on
    "hours in a day is ": "24", "days in a year is ": "365", '"name": ': '"Paris"', '"population": ': "2102650",
    '"area": ': "105", '"latitude": ': "48.8", '"country": ': '"France"', '"timezone": ': '"CET"',
    "answer this question is": " a geographer", "would answer that ": "it is Paris", "is calculate(": "257 * 983",
    "Finish [": "Finland", "of Julian?\nASSISTANT:": " Noah is.", "of the United States?\nA:": " Washington, D.C.",
    "capital of Japan?\nA:": " Tokyo", "United Kingdom?\nA:": " London", "of China?\nA:": " Beijing",
    "value of pi?\nA: ": "3.14", "DNS invented?\nA: ": "1983", "sky blue?\nA: ": "True",
    "Google DNS servers?\nA: ": "8.8.8.8",
}  # fmt: skip
CHOSEN = {"Berlin.\nAnswer:": "True", "Tokyo.\nAnswer:": "False", "green.\nAnswer:": "Unknown"}
CARD = " Ada Lovelace\nBirthday: December 10, 1815\nJob: Mathematician\n"


# --- the programs, by one frontend ----------------------------------------------------------------------------------


def ours() -> dict[str, Any]:
    """Run SGLang's file with our name in the place of its own; of its runtime it asks two things, which stand in."""
    (path,) = PEER.glob("lib/python3*/site-packages/sglang/test/test_programs.py")
    text = re.sub(r"\bimport sglang as sgl\b", "import callboard as sgl", path.read_text(encoding="utf-8"))
    text = text.replace("from sglang.lang.", "from callboard.lang.")
    for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.utils.hf_transformers_utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["sglang.srt.utils"].is_hip = lambda: False  # type: ignore[attr-defined]
    sys.modules["sglang.srt.utils.hf_transformers_utils"].get_tokenizer = tokenizer  # type: ignore[attr-defined]
    names: dict[str, Any] = {"__name__": "test_programs"}
    exec(compile(text, str(path), "exec"), names)
    return names


def tokenizer(path: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)


def theirs() -> dict[str, Any]:
    import sglang.test.test_programs as programs

    return vars(programs)


def knowing() -> Any:
    """Give a backend that answers as a model would that knows."""
    import callboard as cb

    class Knowing(cb.NullBackend):
        async def score(self, prompt: Any, continuations: Any, *, unconditional: bool = False) -> Any:
            scores = await super().score(prompt, continuations, unconditional=unconditional)
            chosen = next((word for end, word in CHOSEN.items() if prompt.text.endswith(end)), "Finish")
            told = (
                msgspec.structs.replace(one, logprobs=(0.0 if one.text == chosen else -9.0,)) for one in scores.scores
            )
            return msgspec.structs.replace(scores, scores=tuple(told))

    def text(prompt: Any) -> str:
        return next((words for end, words in KNOWN.items() if prompt.text.endswith(end)), " So it is.")

    return Knowing(text=text)


def run(frontend: str, target: str) -> None:
    """Print a line of JSON a program: its name, how it ended, and where it failed."""
    names = ours() if frontend == "callboard" else theirs()
    sgl = names["sgl"]
    service = target.removeprefix("service ") if target.startswith("service ") else None
    for name in [name for name in names if name.startswith("test_")]:
        if (service is not None) != (name in ON_A_SERVICE):
            continue
        if service is not None:
            model = "gpt-instruct" if name == "test_completion_speculative" else "gpt"
            sgl.set_default_backend(sgl.OpenAI(model, base_url=f"{service}/v1", api_key="none"))
        elif target == "known":
            sgl.set_default_backend(knowing())
        elif target == "embedded":
            sgl.set_default_backend(sgl.Runtime(model_path="embedded", random_seed=0))
        else:
            sgl.set_default_backend(sgl.RuntimeEndpoint(target, chat_template_name="chatml"))
        outcome: list[str] = []
        thread = threading.Thread(target=attempt, args=(names[name], name, outcome), daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        print(json.dumps([name.removeprefix("test_"), *(outcome or ["hangs"])]), flush=True)
    sys.stdout.flush()
    os._exit(0)  # what hangs would keep the interpreter


def attempt(program: Any, name: str, outcome: list[str]) -> None:
    try:
        program(*((True,) if name == "test_select" else ()))
    except BaseException as error:  # a thread of its own: even a program that exits is told, and not taken to hang
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if "test_programs" in frame.filename
        ]
        outcome.append(f"{type(error).__name__}, line {lines[-1] if lines else '?'}")
    else:
        outcome.append("passes")


# --- the servers ----------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextmanager
def sglang_server() -> Iterator[str]:
    import callboard

    model = Path(callboard.__file__).parent / "models/embedded/weights"
    port = free_port()
    command = [str(peer_python()), str(Path(__file__).with_name("sglang_server.py")), str(port), str(model)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 600
        while True:
            try:
                urllib.request.urlopen(f"{url}/model_info", timeout=10).read()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


class Vendor(BaseHTTPRequestHandler):
    """Speak OpenAI's format: what a picture shows, and a card that goes on where the prompt ends."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        chat = "messages" in body
        asked = json.dumps(body["messages"]) if chat else body["prompt"]
        text = "A yellow taxi in a street." if "image_url" in asked else CARD
        if not chat:
            text = text.removeprefix(asked.rpartition("\nName:")[2])
        elif "image_url" not in asked:
            text = f"Name:{text}"
        for stop in [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or ():
            text = text.split(stop)[0]
        content = {"delta": {"content": text}} if chat else {"text": text}
        usage = {"prompt_tokens": len(asked) // 4, "completion_tokens": len(text) // 4, "total_tokens": 0}
        events = [
            {"choices": [{"index": 0, "finish_reason": None, **content}]},
            {"choices": [{"index": 0, "finish_reason": "stop", **({"delta": {}} if chat else {"text": ""})}]},
            {"choices": [], "usage": usage},
        ]
        head = {"id": "c", "object": "chat.completion.chunk" if chat else "text_completion", "created": 1, "model": "m"}
        lines = [f"data: {json.dumps({**head, **event})}\n\n" for event in events]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join([*lines, "data: [DONE]\n\n"]).encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def vendor() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


# --- all of them ----------------------------------------------------------------------------------------------------


def told(python: Path | str, frontend: str, target: str, folder: str) -> dict[str, str]:
    command = [str(python), str(Path(__file__).resolve()), "--run", frontend, target]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert found, done.stderr
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", nargs=2, metavar=("FRONTEND", "TARGET"))
    options = parser.parse_args()
    if options.run:
        run(*options.run)
    results: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "example_image.png").write_bytes(base64.b64decode(PIXEL))
        with sglang_server() as url:
            results["sglang, its server"] = told(peer_python(), "sglang", url, folder)
            results["callboard, its server"] = told(sys.executable, "callboard", url, folder)
        results["callboard, our engine"] = told(sys.executable, "callboard", "embedded", folder)
        results["callboard, answers known"] = told(sys.executable, "callboard", "known", folder)
        with vendor() as url:
            results["callboard, a service"] = told(sys.executable, "callboard", f"service {url}", folder)
    report(results)


def report(results: dict[str, dict[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"SGLang {VERSION}'s test programs, unchanged")
    for column in ("program", *results):
        table.add_column(column)
    for name in sorted({name for told in results.values() for name in told}):
        table.add_row(name, *(told.get(name, "-") for told in results.values()))
    Console(width=170).print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"date": date.today().isoformat(), "peer": f"sglang {VERSION}", "results": results}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
