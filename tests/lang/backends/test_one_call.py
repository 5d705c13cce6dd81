"""`num_api_spec_tokens` through OpenAI's SDK: several gens by one call, at servers that write token by token."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

import callboard as cb
from callboard import GenerationFailed, InvalidRequest
from callboard.actors.sampling import SamplingParams

from ..test_speculating import CARD, Writer, card, honest
from .dialects import ANTHROPIC, CHAT, COMPLETION, GOOGLE, Dialect, service_of
from .service import Act, Service, serving, stream

pytestmark = pytest.mark.anyio

QUESTION = "user: Who?\nassistant: "
ASKED = f"{QUESTION}{CARD}"


def _data(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def complete(*documents: str) -> Service:
    """Serve completions, honestly: a chunk a token, and what was read and written counted."""

    def speak(body: dict[str, Any]) -> Act:
        sampling = SamplingParams(max_new_tokens=body["max_tokens"], stop=tuple(body.get("stop") or ()))
        pieces, finish = honest(body["prompt"], documents, sampling)
        return stream(*_chunks(pieces, finish, "text_completion", lambda text: {"text": text}))

    return Service(speak)


def answer(*answers: str) -> Service:
    """Serve chats: one answer after the other to whatever is asked, the last for ever; input counted in characters."""
    left = list(answers)

    def speak(body: dict[str, Any]) -> Act:
        said = left.pop(0) if len(left) > 1 else left[0]
        sampling = SamplingParams(max_new_tokens=body["max_tokens"], stop=tuple(body.get("stop") or ()))
        pieces, finish = honest("", (said,), sampling)
        read = sum(len(message["content"]) for message in body["messages"])
        finish = msgspec.structs.replace(finish, prompt_tokens=read)
        return stream(*_chunks(pieces, finish, "chat.completion.chunk", lambda text: {"delta": {"content": text}}))

    return Service(speak)


def _chunks(pieces: list[str], finish: Any, kind: str, told: Any) -> list[bytes]:
    head = {"id": "c", "object": kind, "created": 1, "model": "gpt"}
    usage = {"prompt_tokens": finish.prompt_tokens, "completion_tokens": finish.completion_tokens, "total_tokens": 0}
    chunks = [{**head, "choices": [{"index": 0, **told(piece), "finish_reason": None}]} for piece in pieces]
    ending = {**head, "choices": [{"index": 0, **told(""), "finish_reason": finish.reason}]}
    return [*map(_data, (*chunks, ending, {**head, "choices": [], "usage": usage})), b"data: [DONE]\n\n"]


async def test_a_completion_model_is_called_once_and_reads_its_prompt_once() -> None:
    with anyio.fail_after(20):
        async with serving(complete(CARD)) as service, COMPLETION.make(service.url) as backend:
            one = await cb.function(card).arun(backend=backend)
            calls, read = len(service.asked), [backend.token_usage.prompt_tokens]
            backend.token_usage.reset()
            other = await cb.function(card, num_api_spec_tokens=64).arun(backend=backend)
            read.append(backend.token_usage.prompt_tokens)
            asked = [len(seen.body["prompt"]) for seen in service.asked]
    assert one.text() == other.text() == CARD[:-1]
    assert (calls, len(asked)) == (3, 4)
    told = [
        sum(state.get_meta_info(name)["prompt_tokens"] for name in ("name", "born", "work")) for state in (one, other)
    ]
    assert told == [sum(asked[:3]), asked[3]] == [46, 5] == read
    assert service.asked[3].body["max_tokens"] == 64
    assert "stop" not in service.asked[3].body
    for name in ("name", "born", "work"):
        counts = [state.get_meta_info(name)["completion_tokens"] for state in (one, other)]
        assert counts[0] == counts[1]


@cb.function(num_api_spec_tokens=64)
def asked_card(s: Any) -> None:
    s += cb.user("Who?")
    s += cb.assistant(
        "Name:" + cb.gen("name", stop="\n") + "\nBorn:" + cb.gen("born", stop="\n")
        + "\nWork:" + cb.gen("work", stop="\n") + "\nThat is all."
    )  # fmt: skip


@cb.function
def asked_card_in_turns(s: Any) -> None:
    """Ask a chat model for each by itself: the only way without."""
    for name in ("Name", "Born", "Work"):
        s += cb.user(f"Who? {name}:")
        s += cb.assistant(cb.gen(name.lower(), stop="\n"))


async def test_a_chat_model_writes_a_whole_message_of_several_gens() -> None:
    with anyio.fail_after(20):
        async with serving(answer(CARD)) as service, CHAT.make(service.url) as backend:
            state = await asked_card.arun(backend=backend)
            seen = [one.body for one in service.asked]
            await asked_card_in_turns.arun(backend=backend)
            turns = [sum(len(message["content"]) for message in one.body["messages"]) for one in service.asked[1:]]
        async with Writer(ASKED) as honestly:  # which can go on with a message that was begun
            expected = await cb.function(asked_card.body).arun(backend=honestly)
            assert len(honestly.asked) == 3
    assert state.text() == expected.text() == f"{ASKED}That is all.\n"
    assert state.messages() == expected.messages()
    assert [state[name] for name in ("name", "born", "work")] == [" Ada", " 1815", " engines"]
    assert [one["messages"] for one in seen] == [[{"role": "user", "content": "Who?"}]]
    assert (seen[0]["max_tokens"], "stop" in seen[0]) == (128, False)  # a gen's own length, if that is more
    assert [state.get_meta_info(name)["prompt_tokens"] for name in ("name", "born", "work")] == [4, 0, 0]
    assert (len(turns), sum(turns) > 4) == (3, True)


async def test_a_gen_alone_in_its_message_is_asked_for_as_ever() -> None:
    @cb.function(num_api_spec_tokens=64)
    def alone(s: Any) -> None:
        s += cb.user("Who?")
        s += cb.assistant(cb.gen("answer", stop="\n", max_tokens=20) + "!")

    with anyio.fail_after(20):
        async with serving(answer(CARD)) as service, CHAT.make(service.url) as backend:
            state = await alone.arun(backend=backend)
    assert state["answer"] == "Name: Ada"
    assert (service.asked[0].body["max_tokens"], service.asked[0].body["stop"]) == (20, ["\n"])


async def test_answers_that_do_not_fit_are_thrown_away() -> None:
    with anyio.fail_after(20):
        async with serving(answer("Sure! Name: Eve\n", "Name: Eve\nDied: 5\n", CARD)) as service:
            async with CHAT.make(service.url) as backend:
                state = await asked_card.arun(backend=backend)
        assert (state["name"], len(service.asked)) == (" Ada", 3)
        async with serving(answer("Sure! Name: Eve\n")) as service, CHAT.make(service.url) as backend:
            with pytest.raises(GenerationFailed, match="3 answers did not fit .* began with 'Sure! Name: Eve"):
                await asked_card.arun(backend=backend)
            assert len(service.asked) == 3


async def test_a_message_in_several_appends_is_one_answer_too() -> None:
    @cb.function(num_api_spec_tokens=64)
    def appended(s: Any) -> None:
        s += cb.user("Who?")
        with s.assistant():
            s += "Name:"
            s += cb.gen("name", stop="\n")
            if s["name"] == " Ada":  # what is there can be read before the message ends
                s += "\nBorn:" + cb.gen("born", stop="\n")
        s += cb.user("Thanks")
        s += cb.assistant(cb.gen("last", stop=":"))

    with anyio.fail_after(20):
        async with serving(answer(CARD)) as service, CHAT.make(service.url) as backend:
            state = await appended.arun(backend=backend)
    assert (state["born"], state["last"], len(service.asked)) == (" 1815", "Name", 2)
    assert service.asked[1].body["messages"][1]["content"] == "Name: Ada\nBorn: 1815"


async def test_a_batch_and_branches_share_no_answers() -> None:
    @cb.function(num_api_spec_tokens=64)
    def forked(s: Any) -> None:
        s += cb.user("Who?")
        forks = s.fork(3)
        forks += cb.assistant("Name:" + cb.gen("name", stop="\n") + "\nBorn:" + cb.gen("born", stop="\n"))
        forks.join()

    with anyio.fail_after(20):
        people = [f"Name: {name}\nBorn: {year}\n" for name, year in (("Ada", 1815), ("Alan", 1912), ("Grace", 1906))]
        async with serving(answer(*people)) as service, CHAT.make(service.url) as backend:
            state = await forked.arun(backend=backend)
            pairs = sorted(zip(state["name"], state["born"], strict=True))
            assert pairs == [(" Ada", " 1815"), (" Alan", " 1912"), (" Grace", " 1906")]
        async with serving(answer(CARD)) as service, CHAT.make(service.url) as backend:
            states = await asked_card.arun_batch([{}] * 10, backend=backend)
            assert [state["born"] for state in states] == [" 1815"] * 10
            assert len(service.asked) == 10


async def test_it_streams() -> None:
    with anyio.fail_after(20):
        async with serving(answer(CARD)) as service, CHAT.make(service.url) as backend:
            state = await asked_card.arun(backend=backend, stream=True)
            assert "".join([piece async for piece in state.text_async_iter("work")]) == " engines"
            assert "".join([piece async for piece in state.text_async_iter()]) == f"{ASKED}That is all.\n"


async def test_a_last_gen_is_cut_where_its_tokens_end() -> None:
    @cb.function(num_api_spec_tokens=64)
    def short(s: Any) -> None:
        s += cb.user("Who?")
        s += cb.assistant("Name:" + cb.gen("name", max_tokens=2))

    with anyio.fail_after(20):
        async with serving(answer(CARD)) as service, CHAT.make(service.url) as backend:
            state = await short.arun(backend=backend)
    assert state["name"] == " Ada"  # it touches two tokens, "e: " and "Ada"
    assert state.get_meta_info("name")["finish_reason"] == {"type": "length", "length": 2}


async def test_what_one_answer_cannot_be_is_refused_at_submit() -> None:
    def program(first: Any, second: Any) -> Any:
        @cb.function(num_api_spec_tokens=64)
        def two(s: Any) -> None:
            s += cb.user("Who?")
            s += cb.assistant("Name:" + first + "\nBorn:" + second)

        return two

    last = cb.gen("born")
    cases = [
        (program(cb.gen("name"), last), "stop", "needs a stop string"),
        (program(cb.gen("name", stop="\n", temperature=0.5), last), "temperature", "must be the same; 0.5 and 1.0"),
        (program(cb.gen("name", stop="\n", n=2), last), "num_api_spec_tokens", "take no n"),
        (program(cb.gen("name", stop="\n", presence_penalty=1), last), "num_api_spec_tokens", "penalties"),
        (program(cb.gen("name", stop="\n"), cb.select("born", ["1", "2"])), "choices", "no log-probabilities"),
    ]
    with anyio.fail_after(20):
        async with serving(answer(CARD)) as service, CHAT.make(service.url) as backend:
            for two, field, words in cases:
                with pytest.raises(InvalidRequest, match=words) as caught:
                    await two.arun(backend=backend)
                assert caught.value.field == field
            with pytest.raises(InvalidRequest, match="num_api_spec_tokens"):  # and without it, what to give
                await cb.function(asked_card.body).arun(backend=backend)
            assert service.asked == []


@pytest.mark.parametrize("dialect", [GOOGLE, ANTHROPIC], ids=lambda dialect: dialect.name)
async def test_other_vendors(dialect: Dialect) -> None:
    told = [stream(*dialect.told("Name: Ada\nBo", "rn: 1815\nWork: engines\n"))] * 3
    with anyio.fail_after(20):
        if dialect is ANTHROPIC:  # which goes on with a message that was begun: a call a gen, as ever
            told = [stream(*dialect.told(said)) for said in (" Ada", " 1815", " engines")]
        async with serving(service_of(dialect, *told)) as service, dialect.make(service.url) as backend:
            state = await asked_card.arun(backend=backend)
            assert len(service.asked) == (3 if dialect is ANTHROPIC else 1)
    assert [state[name] for name in ("name", "born", "work")] == [" Ada", " 1815", " engines"]
