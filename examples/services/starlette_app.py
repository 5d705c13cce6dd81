"""Questions over HTTP with Starlette: `cd examples/services; hypercorn starlette_app:app` (or uvicorn)."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from events import Events, while_connected
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import callboard as cb


@cb.function
def qa(s, question):
    s += cb.user(question)
    s += cb.assistant(cb.gen("answer", max_tokens=64, temperature=0))


@contextlib.asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Let the engine live in the server's loop, from its start to its stop; at most 64 generations at once."""
    async with cb.Engine("embedded", max_queued=64) as engine:
        yield {"engine": engine}


async def ask(request: Request) -> Response:
    """Answer as JSON; a client that leaves cancels the program."""
    question = await asked(request)
    state = await while_connected(request.receive, qa.arun(question, backend=request.state.engine))
    return Response() if state is None else JSONResponse({"answer": state["answer"]})


async def stream(request: Request) -> Events:
    """Answer as server-sent events."""
    question = await asked(request)
    return Events(qa.astream(question, backend=request.state.engine), "answer")


async def asked(request: Request) -> str:
    """Read the question; what is no question is refused by name."""
    with contextlib.suppress(json.JSONDecodeError):
        match await request.json():
            case {"question": str(question)}:
                return question
    raise cb.InvalidRequest("question", 'the body is a JSON object such as {"question": "What is 2 + 2?"}')


async def refused(_request: Request, error: Exception) -> Response:
    """Say what is wrong with a request."""
    return JSONResponse({"error": str(error)}, status_code=400)


async def busy(_request: Request, error: Any) -> Response:
    """Say that there is no room now, and when to come again."""
    headers = {"Retry-After": f"{error.retry_after_s:.0f}"}
    return JSONResponse({"error": str(error)}, status_code=503, headers=headers)


app = Starlette(
    routes=[Route("/ask", ask, methods=["POST"]), Route("/stream", stream, methods=["POST"])],
    exception_handlers={cb.InvalidRequest: refused, cb.Overloaded: busy},
    lifespan=lifespan,
)
