"""What a program says, and what can be read of it."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

import callboard as cb
from callboard import NullBackend

pytestmark = pytest.mark.anyio


@cb.function
def two_turns(s: Any, first: str, second: str) -> str:
    s += cb.system("Be brief.")
    s += cb.user(first)
    s += cb.assistant(cb.gen("first_answer", max_tokens=256))
    s += cb.user(second)
    s += cb.assistant(cb.gen("second_answer", max_tokens=256))
    return "done"


SAID = "system: Be brief.\nuser: France?\nassistant: Paris\nuser: Sure?\nassistant: Paris\n"


async def test_a_chat_is_text_messages_and_variables(null: NullBackend) -> None:
    state = await two_turns.arun("France?", second="Sure?", backend=null)
    assert state.text() == SAID
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "France?"},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Paris"},
    ]
    assert state["first_answer"] == state["second_answer"] == "Paris"
    assert "first_answer" in state
    assert "third" not in state
    assert state.ret_value == "done"
    assert state.error() is None


async def test_roles_can_be_said_in_three_ways(null: NullBackend) -> None:
    @cb.function
    def calls(s: Any) -> None:
        s.system("Be brief.")
        s += s.user("France?")
        s += cb.assistant(cb.gen("a"))

    @cb.function
    def blocks(s: Any) -> None:
        with s.system():
            s += "Be brief."
        with s.user():
            s += "France?"
        with s.assistant():
            s += cb.gen("a")

    @cb.function
    def ends(s: Any) -> None:
        s += cb.system_begin() + "Be brief." + cb.system_end()
        s += cb.user_begin()
        s += "France?"
        s += cb.user_end()
        s += cb.assistant_begin() + cb.gen("a") + cb.assistant_end()

    states = [await program.arun(backend=null) for program in (calls, blocks, ends)]
    assert {state.text() for state in states} == {"system: Be brief.\nuser: France?\nassistant: Paris\n"}
    assert all(len(state.messages()) == 3 for state in states)


async def test_a_plain_body_waits_for_what_it_reads(null: NullBackend) -> None:
    @cb.function
    def body(s: Any) -> list[str]:
        s += "A: " + cb.gen("a")
        first = s["a"]
        s += "!"
        return [first, s.text(), s.get_var("a"), s.get_meta_info("a")["finish_reason"]["type"]]

    state = await body.arun(backend=null)
    assert state.ret_value == ["Paris", "A: Paris!", "Paris", "stop"]


async def test_an_async_body_awaits_what_it_reads(null: NullBackend) -> None:
    @cb.function
    async def body(s: Any) -> list[Any]:
        s += cb.user("France?")
        s += cb.assistant(cb.gen("a"))
        first = await s.aget("a")
        again = s["a"]  # it is there now
        await s.wait()
        return [first, again, await s.atext(), len(await s.amessages()), await s.aerror(), s.text()]

    state = await body.arun(backend=null)
    text = "user: France?\nassistant: Paris\n"
    assert state.ret_value == ["Paris", "Paris", text, 2, None, text]


async def test_an_async_body_that_forgets_to_await_is_told_how(null: NullBackend) -> None:
    @cb.function
    async def body(s: Any) -> None:
        s += cb.gen("a")
        s["a"]

    with pytest.raises(RuntimeError, match=r"await state\.aget\('a'\)"):
        await body.arun(backend=null)


async def test_an_unknown_name_is_a_key_error_that_names_the_known_ones(null: NullBackend) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen("known")
        s["unknown"]

    with pytest.raises(KeyError, match="'unknown'.*'known'"):
        await body.arun(backend=null)
    state = await two_turns.arun("a", "b", backend=null)
    for read in (state.get_var, state.get_meta_info):
        with pytest.raises(KeyError, match="'first_answer', 'second_answer'"):
            read("third")
    with pytest.raises(KeyError):
        await state.aget("third")


async def test_unnamed_generations_are_kept_apart_and_have_no_name(null: NullBackend) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += cb.gen() + " " + cb.gen()

    state = await body.arun(backend=null)
    assert state.text() == "Paris Paris"
    assert None not in state
    with pytest.raises(KeyError):
        state[None]


async def test_a_scope_is_a_variable_of_all_that_was_said_in_it(null: NullBackend) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += "before "
        with s.var_scope("scope"):
            s += "in " + cb.gen("inner")
            with pytest.raises(cb.InvalidRequest, match="scope"):
                s["scope"]
        s += " behind"
        assert s["scope"] == "in Paris"

    assert (await body.arun(backend=null)).text() == "before in Paris behind"


async def test_a_variable_can_be_set(null: NullBackend) -> None:
    @cb.function
    def body(s: Any) -> None:
        s["x"] = 7
        s.set_var("y", [1])

    state = await body.arun(backend=null)
    assert state["x"] == 7
    assert state["y"] == [1]
    assert state.get_meta_info("x") is None


async def test_expressions_join_with_plus_on_either_side(null: NullBackend) -> None:
    expression = "a" + cb.gen("x") + "b" + cb.select("y", ["c", "d"])

    @cb.function
    def body(s: Any) -> None:
        s += expression
        s += expression

    assert (await body.arun(backend=null)).text() == "aParisbc" * 2


@pytest.mark.parametrize("what", [None, 5, b"bytes", ["text"], object()])
async def test_what_is_no_expression_is_refused_where_it_is_said(null: NullBackend, what: Any) -> None:
    @cb.function
    def body(s: Any) -> None:
        s += what

    with pytest.raises(cb.InvalidRequest, match="expression"):
        await body.arun(backend=null)
    with pytest.raises(cb.InvalidRequest, match="expression"):
        cb.gen("x") + what


async def test_roles_do_not_nest_and_end_as_they_began(null: NullBackend) -> None:
    @cb.function
    def nested(s: Any) -> None:
        s += cb.user(cb.assistant("x"))

    @cb.function
    def crossed(s: Any) -> None:
        s += cb.user_begin() + "x" + cb.assistant_end()

    for program in (nested, crossed):
        with pytest.raises(cb.InvalidRequest, match="role"):
            await program.arun(backend=null)
    assert null.generations == 0


async def test_a_refused_expression_leaves_nothing_behind(null: NullBackend) -> None:
    @cb.function
    def body(s: Any) -> None:
        with pytest.raises(cb.InvalidRequest):
            s += cb.user_begin() + cb.gen("x") + cb.assistant_end()
        assert "x" not in s
        s += cb.user("fine")

    assert (await body.arun(backend=null)).text() == "user: fine\n"


async def test_bind_fixes_arguments_and_the_call_may_override_them(null: NullBackend) -> None:
    bound = two_turns.bind(second="Sure?")
    assert (await bound.arun("France?", backend=null)).text() == SAID
    assert (await bound.arun(first="France?", second="No?", backend=null)).text() == SAID.replace("Sure?", "No?")
    with pytest.raises(cb.InvalidRequest, match="third.*first, second"):
        two_turns.bind(third=1)


async def test_wrong_arguments_are_refused_before_anything_runs(null: NullBackend) -> None:
    with pytest.raises(cb.InvalidRequest, match="missing a required argument: 'second'"):
        await two_turns.arun("France?", backend=null)
    with pytest.raises(cb.InvalidRequest, match="'third'"):
        await two_turns.arun("France?", "Sure?", third=1, backend=null)
    with pytest.raises(cb.InvalidRequest, match="'max_tokens'; a run's limit is max_new_tokens"):
        await two_turns.arun("France?", "Sure?", max_tokens=8, backend=null)
    with pytest.raises(cb.InvalidRequest, match=r"backend.*callboard\.Backend"):
        await two_turns.arun("France?", "Sure?", backend="http://localhost")  # type: ignore[arg-type]
    assert null.generations == 0


def test_a_program_needs_a_state_and_free_names() -> None:
    def generator(s: Any) -> Any:
        yield s

    async def asynchronous_generator(s: Any) -> Any:
        yield s

    for body in (generator, asynchronous_generator):
        with pytest.raises(cb.InvalidRequest, match="it has a `yield`"):
            cb.function(body)
    with pytest.raises(cb.InvalidRequest, match="first parameter"):
        cb.function(lambda: None)
    with pytest.raises(cb.InvalidRequest, match="'temperature'.*rename"):

        @cb.function
        def body(s: Any, temperature: float) -> None: ...


async def test_an_expression_is_appended_and_neither_formatted_nor_set(null: NullBackend) -> None:
    @cb.function
    def formatting(s: Any) -> None:
        s += f"Q: {cb.gen('x')}"

    @cb.function
    def setting(s: Any) -> None:
        s["x"] = "A: " + cb.gen("y")

    with pytest.raises(cb.InvalidRequest, match=r"expression: Gen\(name='x'.* is in an f-string"):
        await formatting.arun(backend=null)
    with pytest.raises(cb.InvalidRequest, match=r"value: Sequence\(.* is nothing yet; append it"):
        await setting.arun(backend=null)


async def test_a_program_can_run_another(null: NullBackend) -> None:
    @cb.function
    def inner(s: Any, word: str) -> str:
        s += word + cb.gen("x")
        return s["x"]

    @cb.function
    def plain(s: Any) -> None:
        s += inner.run("a ", backend=null).ret_value
        for state in inner.run_batch([{"word": "b "}, {"word": "c "}], backend=null, generator_style=True):
            s += ", " + state.text()

    @cb.function
    async def asynchronous(s: Any) -> None:
        s += (await inner.arun("a ", backend=null)).ret_value

    assert (await plain.arun(backend=null)).text() == "Paris, b Paris, c Paris"
    assert (await asynchronous.arun(backend=null)).text() == "Paris"


async def test_a_waiting_plain_body_lets_the_others_run(scripted: Any) -> None:
    free = anyio.Event()

    @cb.function
    def first(s: Any) -> str:
        s += cb.gen("x")
        return s["x"]

    @cb.function
    def second(s: Any) -> None:
        s += cb.gen("y")
        s["y"]
        free.set()

    with anyio.fail_after(10):
        async with scripted([free.wait, "one"], ["two"]) as backend, anyio.create_task_group() as group:
            group.start_soon(lambda: first.arun(backend=backend))
            await anyio.lowlevel.checkpoint()
            group.start_soon(lambda: second.arun(backend=backend))


async def test_a_plain_body_that_says_more_than_may_wait_is_held_back(null: NullBackend) -> None:
    @cb.function
    def plain(s: Any) -> None:
        for _ in range(10_000):
            s += "x"

    @cb.function
    async def asynchronous(s: Any) -> None:
        for _ in range(10_000):
            s += "x"

    assert len((await plain.arun(backend=null)).text()) == 10_000
    with pytest.raises(cb.Overloaded, match=r"await s\.wait\(\)"):
        await asynchronous.arun(backend=null)


async def test_context_variables_reach_the_body(null: NullBackend) -> None:
    from contextvars import ContextVar

    who: ContextVar[str] = ContextVar("who")

    @cb.function
    def body(s: Any) -> str:
        s += cb.gen("x")
        s["x"]
        return who.get()

    who.set("me")
    assert (await body.arun(backend=null)).ret_value == "me"
