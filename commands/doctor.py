"""callboard doctor: what this machine can run, and what to do about the rest."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from importlib import metadata
from typing import Any, NamedTuple

__all__ = ["Finding", "add", "advice", "doctor", "examine"]


class Finding(NamedTuple):
    """One thing looked at.  state: good, missing (fine without it), bad (callboard cannot run)."""

    what: str
    state: str
    told: str


def add(commands: Any) -> None:
    """Add the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="tell what this machine can run",
        description="Tell what this machine can run, and what it lacks.",
    )
    parser.add_argument("--model", metavar="PATH", help="tell whether this model's files are whole and fit the device")
    parser.add_argument(
        "--device", metavar="NAME", help="for --model: cpu, cuda, cuda:1; by default a GPU if there is one"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="for --model, as in serve")
    parser.add_argument("--kv-dtype", choices=("float8",), help="for --model, as in serve")
    parser.add_argument("--quick", action="store_true", help="do not start the model that ships")
    parser.set_defaults(command=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings and the advice; 0 if callboard can run here, else 1."""
    from rich.console import Console
    from rich.table import Table

    if arguments.model is None:
        for name in ("device", "dtype", "kv_dtype"):
            if getattr(arguments, name) is not None:
                raise ValueError(f"{name}: it is for --model, which is not given")
    findings = examine(start=not arguments.quick and arguments.model is None)
    if arguments.model is not None and not any(finding.state == "bad" for finding in findings):
        from .model_findings import examine_model

        findings = [
            *(finding for finding in findings if finding.what != "model"),
            *examine_model(arguments.model, arguments.device, arguments.dtype, arguments.kv_dtype),
        ]
    table = Table(box=None, pad_edge=False, show_header=False)
    marks = {"good": "[green]ok[/green]", "missing": "[yellow]--[/yellow]", "bad": "[red]no[/red]"}
    for finding in findings:
        table.add_row(marks[finding.state], finding.what, finding.told)
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print()
    for line in advice(findings):
        console.print(line, markup=False)
    return 1 if any(finding.state == "bad" for finding in findings) else 0


def examine(*, start: bool) -> list[Finding]:
    """Look at everything callboard can use; `start` also starts the model that ships and asks it something."""
    torch = _torch()
    findings = [
        _python(),
        _processor(),
        _memory(),
        *torch,
        _package("triton"),
        _flashinfer() if torch[0].state == "good" else _package("flashinfer-python"),
        _compiler(),
        _c_compiler(),
    ]
    if not any(finding.state == "bad" for finding in findings):
        findings.append(_model(start=start))
    return findings


def advice(findings: list[Finding]) -> list[str]:
    """Say what the findings mean."""
    by = {finding.what: finding for finding in findings}
    bad = [finding for finding in findings if finding.state == "bad"]
    if bad:
        return [f"callboard cannot run yet: {finding.what}: {finding.told}" for finding in bad]
    lines = ["This machine runs the model that ships: try `callboard chat`."]
    if "room" in by:
        lines = ["This machine runs that model."]
    if by["GPU"].state != "good":
        lines.append(
            "There is no GPU that torch can use: models of up to about a billion parameters run on the CPU, slowly."
        )
        return lines
    if by["triton"].state != "good":
        lines.append("triton is not installed, and nothing runs on the GPU without it: pip install 'callboard[gpu]'")
    if by["flashinfer-python"].state != "good":
        lines.append(
            "attention='flashinfer' is not to be had, and nothing needs it: attention runs in callboard's own kernels "
            "and torch's"
        )
    if by["nvcc"].state != "good":
        lines.append("nvcc is not found, and only flashinfer needs it: callboard's kernels are compiled by triton")
    if by["C compiler"].state != "good":
        lines.append(
            "neither gcc nor clang is found, and triton needs one the first time that a kernel runs: "
            "install one, or name it in CC"
        )
    return lines


def _python() -> Finding:
    told = f"{platform.python_version()} at {sys.executable}"
    return Finding("Python", "good" if sys.version_info >= (3, 11) else "bad", told)


def _processor() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("processor", "good", f"{platform.machine()}, {cores} cores for this process, {platform.system()}")


def _memory() -> Finding:
    try:
        size = os.sysconf("SC_PAGE_SIZE")
        total, free = (os.sysconf(name) * size / 2**30 for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (ValueError, OSError, AttributeError):  # not told on every system
        return Finding("memory", "missing", "this system does not tell")
    return Finding("memory", "good", f"{total:.1f} GiB, {free:.1f} GiB of it unused")


def _torch() -> list[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library it was built against is not there
        return [Finding("torch", "bad", f"cannot be imported ({error}); run `make demo`, or pip install torch")]
    findings = [Finding("torch", "good", f"{torch.__version__}, {torch.get_num_threads()} threads on the CPU")]
    if not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built for the CPU"
        return [*findings, Finding("GPU", "missing", f"none that torch can use; {built}")]
    for index in range(torch.cuda.device_count()):
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(index))
        major, minor = torch.cuda.get_device_capability(index)
        told = (
            f"cuda:{index} {torch.cuda.get_device_name(index)}, sm_{major}{minor}, {free:.0f} of {total:.0f} GiB free"
        )
        findings.append(Finding("GPU", "good", told))
    return findings


def _package(name: str) -> Finding:
    try:
        return Finding(name, "good", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed; only a GPU has use for it")


def _flashinfer() -> Finding:
    from ..actors.worker.attention import flashinfer_lacks

    found = _package("flashinfer-python")
    if found.state != "good":
        return found
    lacking = flashinfer_lacks()
    if lacking is not None:
        return found._replace(state="missing", told=f"{found.told}; {lacking}")
    return found._replace(
        told=f"{found.told}, for attention='flashinfer'; its kernels are compiled when first asked for"
    )


def _compiler() -> Finding:
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    path = shutil.which("nvcc") or next(
        filter(None, (shutil.which(f"{home}/bin/nvcc") for home in homes if home)), None
    )
    return Finding("nvcc", "good" if path else "missing", path or "not found; only a GPU has use for it")


def _c_compiler() -> Finding:
    path = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return Finding("C compiler", "good" if path else "missing", path or "not found; only a GPU has use for it")


def _model(*, start: bool) -> Finding:
    from ..models import embedded

    weights = embedded.path() / "model.safetensors"
    if not weights.is_file():
        return Finding("model", "bad", f"{weights} is not there: this checkout is not whole")
    size = weights.stat().st_size / 2**20
    if not start:
        return Finding("model", "good", f"the one that ships, {size:.1f} MiB")
    import anyio

    began = time.monotonic()
    answer, seconds = anyio.run(_question)
    total = time.monotonic() - began
    return Finding(
        "model", "good", f"the one that ships, {size:.1f} MiB: answers {answer!r}; {total - seconds:.1f} s to start"
    )


async def _question() -> tuple[str, float]:
    from ..actors.engine import Engine
    from ..actors.sampling import SamplingParams

    async with Engine("embedded") as engine:
        began = time.monotonic()
        prompt = engine.chat_template.render([{"role": "user", "content": "What is the capital of France?"}])
        done = await engine.complete(prompt, SamplingParams(temperature=0.0, max_new_tokens=32))
        return done.text.strip(), time.monotonic() - began
