"""The line of connections: slices go round, and a turn of the loop ends."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, cast

from liftbridge_broker.api.grpc.turns import TURN_NS, Turns, Waker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftbridge_broker.api.grpc.call import Call


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Worker:
    """Somebody with a number of slices to do, each of which takes a while."""

    def __init__(self, name: str, slices: int, clock: Clock, log: list[str], took: int) -> None:
        self.name, self.left, self.took = name, slices, took
        self.clock, self.log = clock, log

    def work(self) -> bool:
        self.clock.now_ns += self.took
        self.log.append(self.name)
        self.left -= 1
        return self.left > 0


async def turn(log: list[str]) -> None:
    """Let the loop turn once, and note that others had theirs."""
    await asyncio.sleep(0)
    log.append("|")


async def test_slices_go_round_and_nobody_waits_for_all_of_another_one() -> None:
    clock, log = Clock(), list[str]()
    turns = Turns(clock)
    turns.join(Worker("a", 3, clock, log, 1))
    turns.join(Worker("b", 1, clock, log, 1))
    for _ in range(4):
        await turn(log)
    assert "".join(log) == "ab|a|a||"


async def test_those_with_new_work_go_before_those_that_go_on() -> None:
    clock, log = Clock(), list[str]()
    turns = Turns(clock)
    for name in "ab":
        turns.join(Worker(name, 9, clock, log, TURN_NS // 2))
    await turn(log)
    turns.join(Worker("c", 1, clock, log, 1))
    await turn(log)
    turns.join(Worker("d", 1, clock, log, 1))
    turns.join(Worker("e", 1, clock, log, 1))
    await turn(log)
    assert "".join(log) == "ab|cab|deab|"


async def test_those_that_go_on_have_a_part_of_each_turn_whoever_comes() -> None:
    clock, log = Clock(), list[str]()
    turns = Turns(clock)
    turns.join(Worker("a", 9, clock, log, TURN_NS // 4))
    await turn(log)
    for name in "bcd", "efg", "hij":
        for one in name:
            turns.join(Worker(one, 1, clock, log, TURN_NS // 3))
        await turn(log)
    assert "".join(log) == "a|bcad|efag|hiaj|"


async def test_turn_ends_when_its_time_is_over_although_others_wait() -> None:
    clock, log = Clock(), list[str]()
    turns = Turns(clock)
    for name in "abc":
        turns.join(Worker(name, 2, clock, log, TURN_NS // 2))
    for _ in range(4):
        await turn(log)
    assert "".join(log) == "ab|ca|bc||"


async def test_work_is_done_at_once_until_a_turn_is_full_of_it() -> None:
    clock, log = Clock(), list[str]()
    turns = Turns(clock)
    turns.spend(TURN_NS - 1)
    assert turns.is_free
    turns.spend(1)
    assert not turns.is_free
    await turn(log)
    assert turns.is_free


async def test_whoever_fails_keeps_nobody_from_the_next_turn() -> None:
    clock, log = Clock(), list[str]()
    turns = Turns(clock)

    class Failing:
        def work(self) -> bool:
            raise RuntimeError("a bug")

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    turns.join(Failing())
    turns.join(Worker("a", 1, clock, log, 1))
    await turn(log)
    await turn(log)
    assert len(told) == 1
    assert "a" in log


class Line:
    """The work of a connection, in which its calls queue what they have to do."""

    def __init__(self) -> None:
        self.steps: list[Iterator[None]] = []

    def go_on(self, steps: "Iterator[None]") -> None:
        self.steps.append(steps)


async def test_who_is_woken_while_others_wait_acts_once_in_the_work_of_its_connection() -> None:
    clock, log = Clock(), list[str]()
    turns, line = Turns(clock), Line()

    def act(name: str) -> None:
        log.append(name)
        clock.now_ns += TURN_NS // 2
        turns.spend(TURN_NS // 2)

    wakers = [Waker(turns, cast("Call", line), partial(act, name)) for name in "abcd"]
    for one in wakers:
        one.wake()
    for one in wakers[2:]:
        one.wake()  # they wait already
    assert (log, len(line.steps)) == (["a", "b"], 2)
    await turn(log)
    assert log == ["a", "b", "|"], "not a worker of its own"
    for steps in line.steps:
        list(steps)
    wakers[2].wake()
    assert ("".join(log), len(line.steps)) == ("ab|cd", 3)
