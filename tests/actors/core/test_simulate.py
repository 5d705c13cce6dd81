"""The simulated loop: repeatable, virtual, and hostile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest

from callboard.actors.core import Actor, ActorDied, Ask, Message, Supervisor, simulate


class Note(Message, frozen=True):
    number: int


class Work(Ask[int], frozen=True):
    number: int


class Worker(Actor[Message]):
    async def receive(self, message: Message) -> Any:
        await anyio.sleep(0.1)
        return message.number if isinstance(message, Work) else None


async def three_clients_of_two_workers() -> list[tuple[int, int]]:
    log: list[tuple[int, int]] = []
    async with Supervisor("root", restarts=10**6) as root:
        workers = [await root.spawn(Worker, name=f"worker {number}") for number in range(2)]

        async def client(key: int) -> None:
            for number in range(20):
                try:
                    with anyio.move_on_after(2):
                        log.append((key, await workers[(key + number) % 2].ask(Work(number))))
                except ActorDied:
                    log.append((key, -1))

        async with anyio.create_task_group() as tasks:
            for key in range(3):
                tasks.start_soon(client, key)
    return log


FAULTS = simulate.Faults(drop=0.05, delay=0.3, crash=0.05)


@pytest.mark.parametrize("faults", [None, FAULTS])
def test_the_same_seed_gives_the_same_trace(faults: simulate.Faults | None) -> None:
    first, second = (simulate.run(three_clients_of_two_workers, seed=5, faults=faults) for _ in range(2))
    assert first == second
    assert len(first.trace) > 100


def test_seeds_differ() -> None:
    traces = [simulate.run(three_clients_of_two_workers, seed=seed).trace for seed in range(5)]
    assert all(trace != traces[0] for trace in traces[1:])


def test_every_ask_ends_under_faults() -> None:
    for seed in range(20):
        result = simulate.run(three_clients_of_two_workers, seed=seed, faults=FAULTS)
        assert len(result.value) <= 60
    events = {label.split()[0] for _, label in result.trace if " for worker " in label}
    assert events == {"drop", "delay", "crash"}


def test_the_clock_is_virtual() -> None:
    async def sleep() -> float:
        await anyio.sleep(10**6)
        return anyio.current_time()

    result = simulate.run(sleep, seed=1)
    assert result.value == result.now == 10**6


def test_ready_callbacks_run_in_seeded_order() -> None:
    async def race() -> list[int]:
        order: list[int] = []

        async def runner(number: int) -> None:
            order.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(runner, number)
        return order

    orders = {tuple(simulate.run(race, seed=seed).value) for seed in range(20)}
    assert len(orders) > 10


def test_a_rule_sees_the_receiver_and_the_message() -> None:
    def rule(name: str, message: Message) -> float:
        return 1.0 if name == "second" and isinstance(message, Note) and message.number == 3 else 0.0

    async def main() -> list[int]:
        seen: list[int] = []

        class Keeper(Actor[Note]):
            async def receive(self, message: Note) -> None:
                seen.append(message.number + (10 if self.ref.name == "second" else 0))

        async with Supervisor("root") as root:
            for name in ("first", "second"):
                ref = await root.spawn(Keeper, name=name)
                for number in range(5):
                    await ref.tell(Note(number))
                await anyio.sleep(1)
        return seen

    result = simulate.run(main, seed=1, faults=simulate.Faults(drop=rule))
    assert result.value == [0, 1, 2, 3, 4, 10, 11, 12, 14]
    assert [label for _, label in result.trace if label.startswith("drop")] == ["drop Note for second"]


def test_delays_keep_the_order_of_messages_to_one_actor() -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        class Keeper(Actor[Note]):
            async def receive(self, message: Note) -> None:
                seen.append(message.number)

        async with Supervisor("root") as root:
            ref = await root.spawn(Keeper, name="keeper", mailbox=2)
            for number in range(20):
                await ref.tell(Note(number))
            await anyio.sleep(10)
        return seen

    result = simulate.run(main, seed=3, faults=simulate.Faults(delay=0.5))
    assert result.value == list(range(20))


def test_a_deadlock_raises_and_names_who_waits() -> None:
    async def main() -> None:
        async with Supervisor("root") as root:
            await root.spawn(Worker, name="idle worker")
            await anyio.Event().wait()

    with pytest.raises(simulate.Deadlock, match="no timer is left: .*idle worker"):
        simulate.run(main, seed=1)


def test_what_main_raises_comes_out() -> None:
    async def main() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        simulate.run(main, seed=1)


def test_threads_are_refused() -> None:
    async def executor() -> None:
        await asyncio.get_running_loop().run_in_executor(None, print)

    async def stranger() -> list[BaseException]:
        loop = asyncio.get_running_loop()
        errors: list[BaseException] = []

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except simulate.ThreadInSimulation as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return errors

    with pytest.raises(simulate.ThreadInSimulation, match="needs a thread"):
        simulate.run(executor, seed=1)
    assert len(simulate.run(stranger, seed=1).value) == 1
