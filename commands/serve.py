"""callboard serve: the engine and its gateway, until a signal."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .engine_arguments import add_engine_arguments, make_engine, summary
from .lasting import keep_lasting, open_many, take_turns
from .statistics_line import statistics_line

if TYPE_CHECKING:
    import asyncio

    from ..actors.engine import Engine
    from ..actors.gateway import GatewayOptions

__all__ = ["add", "pass_over_tls", "report", "serve"]


def add(commands: Any) -> None:
    """Add the command and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve", help="serve a model over HTTP", description="Serve a model: OpenAI's routes and SGLang's /generate."
    )
    gateway = parser.add_argument_group("gateway")
    add = gateway.add_argument
    add("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1: this machine alone)")
    add("--port", type=int, default=30000, help="0 takes a free one (default 30000)")
    add(
        "--api-key",
        metavar="KEY",
        help="clients must give it; better set CALLBOARD_API_KEY, which no process list shows",
    )
    add("--admin-api-key", metavar="KEY", help="for /flush_cache; or CALLBOARD_ADMIN_API_KEY; by default the API key")
    add(
        "--api-keys",
        metavar="FILE",
        help="lines of `name key [weight]`, a tenant each, in a file that is its owner's alone; or CALLBOARD_API_KEYS",
    )
    add(
        "--tenant-weight",
        action="append",
        default=[],
        metavar="NAME=WEIGHT",
        help="what share of the tokens a tenant gets while others wait too (default 1); as often as there are tenants",
    )
    add("--certfile", metavar="PEM", help="with --keyfile: serve over TLS")
    add("--keyfile", metavar="PEM")
    add(
        "--reasoning-parser",
        metavar="NAME",
        help="the model's family, such as qwen3 or deepseek-r1: chat completions then tell reasoning from answer",
    )
    add(
        "--grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="what requests in progress get at a stop (default 5)",
    )
    add("--max-body-mib", type=float, default=32.0, metavar="MIB", help="the largest request body (default 32)")
    add(
        "--stream-interval",
        type=float,
        metavar="MS",
        help="the least time between two events of a stream; by default 1 ms for each other live stream, at most 50",
    )
    add(
        "--log-interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="between two lines of figures while there is work (default 1)",
    )
    add("--quiet", action="store_true", help="print none of these lines")
    add_engine_arguments(parser)
    parser.set_defaults(command=serve)


def serve(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; a second signal does not wait for the grace."""
    import logging

    import anyio

    from ..actors.core import ActorDied, RestartLimit
    from ..actors.gateway import GatewayOptions, KeyFile, check, read_api_keys

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if not arguments.log_interval > 0:
        raise ValueError(f"log_interval is {arguments.log_interval:g}; it must be above 0, or give --quiet")
    if not 0 < arguments.max_body_mib < math.inf:
        raise ValueError(f"max_body_mib is {arguments.max_body_mib:g}; it must be above 0")
    path = _given(arguments.api_keys, "CALLBOARD_API_KEYS")
    tenants = KeyFile((), {}) if path is None else read_api_keys(path)
    options = GatewayOptions(
        host=arguments.host,
        api_keys=tenants.keys,
        port=arguments.port,
        api_key=_given(arguments.api_key, "CALLBOARD_API_KEY"),
        admin_api_key=_given(arguments.admin_api_key, "CALLBOARD_ADMIN_API_KEY"),
        certfile=arguments.certfile,
        keyfile=arguments.keyfile,
        grace_s=arguments.grace,
        body_bytes=int(arguments.max_body_mib * (1 << 20)),
        stream_interval_ms=arguments.stream_interval,
        reasoning_parser=arguments.reasoning_parser,
    )
    weights = _weights(arguments.tenant_weight, tenants.weights)
    anyio.run(check, options)  # before anything slow: a taken port should not wait for a model
    _tell(f"callboard starts {arguments.model}")
    try:
        engine = make_engine(arguments, weights=weights)
        anyio.run(_serve, engine, options, None if arguments.quiet else arguments.log_interval)
    except BaseExceptionGroup as errors:
        error = _first(errors)
        if not isinstance(error, (RestartLimit, ActorDied)):
            raise error from errors
        _tell(f"callboard: the engine ended: {error} ({error.__cause__!r})")
        return 1
    return 0


def _given(option: str | None, variable: str) -> str | None:
    """Take an option, or else a variable.  An empty one is a key that got lost, and is refused as one: not no key."""
    return os.environ.get(variable) if option is None else option


def _weights(given: Sequence[str], told: Mapping[str, float]) -> dict[str, float]:
    """Join what weights the command line gives to those of the keys' file."""
    from ..actors.tenancy import verify_weights

    weights = dict(told)
    for item in given:
        name, _, number = item.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = None
        if not name or weight is None:
            raise ValueError(f"--tenant-weight: {item!r:.80} is not NAME=WEIGHT")
        if weights.setdefault(name, weight) != weight:
            raise ValueError(f"--tenant-weight: {name!r:.80} has another weight already, {weights[name]:g}")
    verify_weights(weights)
    return weights


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    """Take the first error out of the task groups it came through."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def pass_over_tls(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle what an event loop has nobody for: a TLS connection that its client ended untidily is nothing to report.

    asyncio would tell forty lines of each: a client whose last words cross with the server's goodbye is enough.
    """
    import ssl

    error = context.get("exception")
    if not isinstance(_first(error) if isinstance(error, BaseExceptionGroup) else error, ssl.SSLError):
        loop.default_exception_handler(context)


async def _serve(engine: Engine, options: GatewayOptions, log_interval_s: float | None) -> None:
    import asyncio

    import anyio

    from ..actors.gateway import Address, Gateway

    asyncio.get_running_loop().set_exception_handler(pass_over_tls)
    # Entered first, so that a signal during the start is not lost and ends it in order.
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:

            async def watch(gateways: list[Any]) -> None:
                stopping = False
                async for _ in signals:
                    if stopping or not gateways:
                        group.cancel_scope.cancel()
                        return
                    stopping = True
                    _tell(f"stopping; requests in progress have {options.grace_s:g} s (once more: at once)")
                    group.start_soon(gateways[0].stop)

            gateways: list[Any] = []
            group.start_soon(watch, gateways)
            began = time.monotonic()
            async with engine:
                keep_lasting()
                take_turns()
                open_many()
                supervisor = await engine.supervisor.supervise("gateway", grace=options.grace_s + 5.0)
                gateway = await supervisor.spawn(lambda: Gateway(engine, options), name="gateway")
                _announce(engine, options, await gateway.ask(Address()), time.monotonic() - began)
                gateways.append(gateway)
                if log_interval_s is not None:
                    group.start_soon(report, engine.statistics, log_interval_s)
                await gateway.join()
            group.cancel_scope.cancel()


def _announce(engine: Engine, options: GatewayOptions, url: str, seconds: float) -> None:
    keys = "an API key is needed" if options.guarded else "open to whoever can reach it"
    if options.api_keys:
        keys += f"; {len({one.tenant for one in options.api_keys})} tenants have one"
    key = "-H 'Authorization: Bearer KEY' " if options.guarded else ""
    lines = [
        ("address", f"{url}   ({keys})"),
        *summary(engine),
        ("OpenAI", f"base_url = {url}/v1"),
        ("try", f"curl {url}/generate {key}-H 'Content-Type: application/json' -d '{{\"text\": \"Hello\"}}'"),
        ("stop", "Ctrl-C"),
    ]
    _tell(f"callboard serves after {seconds:.1f} s")
    for name, value in lines:
        _tell(f"  {name:<8} {value}")
    if not options.guarded and options.host not in ("127.0.0.1", "::1", "localhost"):
        _tell(f"  warning  {options.host} is reachable from outside and no API key is set: set CALLBOARD_API_KEY")


async def report(ask: Callable[[], Awaitable[dict[str, Any]]], interval_s: float) -> None:
    """Print a line of an engine's statistics every interval, as long as there is something to say."""
    import anyio

    from ..actors.core import ActorDied

    before, then = await ask(), anyio.current_time()
    while True:
        await anyio.sleep(interval_s)
        try:
            after, now = await ask(), anyio.current_time()
        except ActorDied:  # it starts again; the next line tells of both
            continue
        if line := statistics_line(before, after, now - then):
            _tell(f"{time.strftime('%H:%M:%S')}  {line}")
        before, then = after, now


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
