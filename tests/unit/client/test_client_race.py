"""Asking several brokers for the same: who is asked when, and whose answer counts."""

import asyncio

import pytest

from liftbridge_client import RetriableError
from liftbridge_client.aio.race import first_answer

LONG = 60.0


class Asked:
    """Asks that answer, fail or stay silent, and who was asked and cancelled."""

    def __init__(self):
        self.asked = []
        self.cancelled = []

    def ask(self, name, outcome):
        async def run():
            self.asked.append(name)
            try:
                if outcome == "silent":
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            if outcome == "fails":
                raise RetriableError(name)
            return name

        return run


async def test_answer_of_the_first_is_enough():
    world = Asked()
    asks = [world.ask("a", "answers"), world.ask("b", "answers")]
    assert await first_answer(asks, LONG) == "a"
    assert world.asked == ["a"]


async def test_failure_makes_the_next_be_asked_at_once():
    world = Asked()
    asks = [world.ask("a", "fails"), world.ask("b", "fails"), world.ask("c", "answers")]
    async with asyncio.timeout(5):
        assert await first_answer(asks, LONG) == "c"
    assert world.asked == ["a", "b", "c"]


async def test_silence_makes_the_next_be_asked_and_ends_with_the_answer():
    world = Asked()
    asks = [world.ask("a", "silent"), world.ask("b", "silent"), world.ask("c", "answers")]
    async with asyncio.timeout(5):
        assert await first_answer(asks, 0.001) == "c"
    assert world.cancelled == ["a", "b"]


async def test_last_failure_is_told_when_nobody_answers():
    world = Asked()
    with pytest.raises(RetriableError, match="b"):
        await first_answer([world.ask("a", "fails"), world.ask("b", "fails")], LONG)


async def test_cancellation_reaches_everybody_who_was_asked():
    world = Asked()
    asks = [world.ask("a", "silent"), world.ask("b", "silent")]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await first_answer(asks, 0.001)
    assert world.cancelled == ["a", "b"]
