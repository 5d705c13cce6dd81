"""The same with FastAPI: `cd examples/services; pip install fastapi; hypercorn fastapi_app:app` (or uvicorn)."""

from events import Events, while_connected
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette_app import busy, lifespan, qa, refused

import callboard as cb

app = FastAPI(lifespan=lifespan)
app.add_exception_handler(cb.InvalidRequest, refused)
app.add_exception_handler(cb.Overloaded, busy)


class Question(BaseModel):
    """The body of both routes."""

    question: str


@app.post("/ask", response_model=None)
async def ask(body: Question, request: Request) -> dict[str, str] | Response:
    """Answer as JSON; a client that leaves cancels the program."""
    state = await while_connected(request.receive, qa.arun(body.question, backend=request.state.engine))
    return Response() if state is None else {"answer": state["answer"]}


@app.post("/stream", response_model=None)
async def stream(body: Question, request: Request) -> Response:
    """Answer as server-sent events."""
    return Events(qa.astream(body.question, backend=request.state.engine), "answer")
