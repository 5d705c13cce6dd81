"""callboard bench: figures of an engine, beside what its device allows."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from ..engine_arguments import add_engine_arguments, make_engine

if TYPE_CHECKING:
    from .setting import Setting

__all__ = ["add"]

_WORKLOADS = ("1x128/128", "16x128/128")


def add(commands: Any) -> None:
    """Add the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure an engine beside its device's limit",
        description="Measure an engine beside what its device's copy and matmul rates allow.",
    )
    kinds = parser.add_subparsers(title="what to measure", metavar="KIND", required=True)
    _add_workloads(kinds, "offline", "requests handed over all at once, in process", _offline)
    _add_workloads(kinds, "serve", "the same requests over HTTP and in process", _serve)
    decode: argparse.ArgumentParser = kinds.add_parser(
        "decode",
        help="steps in which all rows decode",
        description="Let rows decode together, and measure a step of it: device, host, and what lies between steps.",
    )
    decode.add_argument(
        "--at", action="append", metavar="ROWSxCONTEXT", help="rows and tokens before them; may be given often"
    )
    decode.add_argument("--steps", type=int, default=256, help="steps measured (default 256)")
    _add_common(decode, _decode)


def _add_workloads(kinds: Any, name: str, told: str, measure: Any) -> None:
    parser: argparse.ArgumentParser = kinds.add_parser(name, help=told, description=f"Measure {told}.")
    parser.add_argument(
        "--workload",
        action="append",
        metavar="NxIN/OUT",
        help="requests, input and output tokens, as 64x1024/256, 256x100-1024/100-1024, 256x4*8192+32/256 (of 4 groups "
        "with a prefix each) or 5^4*1024/128 (a tree of 4 levels); may be given often",
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default, is greedy")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each workload; the best counts (default 1)")
    _add_common(parser, measure)


def _add_common(parser: argparse.ArgumentParser, measure: Any) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    add_engine_arguments(parser)
    parser.set_defaults(command=_bench, measure=measure)


def _bench(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    import anyio

    from ...actors.sampling import SamplingParams

    for name in ("rounds", "steps"):
        if getattr(arguments, name, 1) < 1:
            raise ValueError(f"{name} is {getattr(arguments, name)}; it must be at least 1")
    SamplingParams(temperature=getattr(arguments, "temperature", 0.0)).verify()
    if arguments.json and not Path(arguments.json).parent.is_dir():
        raise ValueError(f"json is {arguments.json!r}; there is no folder {str(Path(arguments.json).parent)!r}")
    anyio.run(_run, arguments, arguments.measure(arguments))
    return 0


async def _run(arguments: argparse.Namespace, measure: Callable[[Setting], AsyncIterator[dict[str, Any]]]) -> None:
    from pathlib import Path

    from .setting import started, write_report

    lines: list[dict[str, Any]] = []
    async with started(make_engine(arguments)) as setting:
        told = setting.told()
        print(
            f"{told['model']} on {told['device']}, ready after {told['start_s']:.1f} s: "
            f"copies {_rate(told['copy_bytes_a_second'], 'B/s')}, products {_rate(told['matmul_a_second'], 'FLOP/s')}"
        )
        async for line in measure(setting):
            lines.append(line)
            if arguments.json:
                write_report(Path(arguments.json), told, lines)


def _rate(a_second: float, unit: str) -> str:
    return f"{a_second / 1e12:.2f} T{unit}" if a_second >= 1e12 else f"{a_second / 1e9:.0f} G{unit}"


def _offline(arguments: argparse.Namespace) -> Callable[[Setting], AsyncIterator[dict[str, Any]]]:
    from .offline import measure_offline, print_offline
    from .workload import parse_workload

    workloads = [parse_workload(text) for text in arguments.workload or _WORKLOADS]

    async def measure(setting: Setting) -> AsyncIterator[dict[str, Any]]:
        setting.verify(workloads)
        for number, workload in enumerate(workloads):
            line = await measure_offline(setting, workload, rounds=arguments.rounds, temperature=arguments.temperature)
            print_offline(line, first=not number)
            yield line

    return measure


def _serve(arguments: argparse.Namespace) -> Callable[[Setting], AsyncIterator[dict[str, Any]]]:
    from .serve import measure_serve, print_serve, serving
    from .workload import Workload, parse_workload

    workloads: list[Workload] = []
    for text in arguments.workload or _WORKLOADS:
        workload = parse_workload(text)
        if not isinstance(workload, Workload):
            told = f"workload is {text!r}; a tree is measured in process, by callboard bench offline"
            raise ValueError(told)  # noqa: TRY004  (the type is what the text says)
        workloads.append(workload)

    async def measure(setting: Setting) -> AsyncIterator[dict[str, Any]]:
        setting.verify(workloads)
        async with serving(setting) as url:
            for number, workload in enumerate(workloads):
                line = await measure_serve(
                    setting, url, workload, rounds=arguments.rounds, temperature=arguments.temperature
                )
                print_serve(line, first=not number)
                yield line

    return measure


def _decode(arguments: argparse.Namespace) -> Callable[[Setting], AsyncIterator[dict[str, Any]]]:
    from .decode import measure_decode, parse_point, print_decode

    points = [parse_point(text) for text in arguments.at or ["1x128", "16x128"]]

    async def measure(setting: Setting) -> AsyncIterator[dict[str, Any]]:
        for number, point in enumerate(points):
            line = await measure_decode(setting, point, steps=arguments.steps)
            print_decode(line, first=not number)
            yield line

    return measure
