"""The timer of a broker on a real event loop."""

import asyncio
import time

import pytest

from liftbridge_broker.adapters.clock import LoopTimer
from liftbridge_broker.model.ids import Instant

MILLISECOND_NS = 1_000_000
LONG_NS = 3_600_000 * MILLISECOND_NS


class Fired:
    """Counts calls, and waits for them."""

    def __init__(self) -> None:
        self.timer = LoopTimer(self._fire)
        self.at: list[int] = []
        self._more = asyncio.Event()

    def _fire(self) -> None:
        self.at.append(time.monotonic_ns())
        self._more.set()

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.at) < count:
                self._more.clear()
                await self._more.wait()


@pytest.fixture
def fired():
    return Fired()


def after(delay_ns: int) -> Instant:
    return Instant(time.monotonic_ns() + delay_ns)


async def test_timer_fires_once_at_its_deadline(fired):
    deadline = after(20 * MILLISECOND_NS)
    fired.timer.arm(deadline)
    await fired.wait(1)
    # Loops round their timers to a millisecond.
    assert fired.at[0] >= deadline - MILLISECOND_NS


async def test_wake_up_fires_at_once_and_leaves_the_deadline(fired):
    deadline = after(500 * MILLISECOND_NS)
    fired.timer.arm(deadline)
    fired.timer.arm(after(0))
    fired.timer.arm(after(0))
    await fired.wait(1)
    assert fired.at[0] < deadline
    fired.timer.arm(deadline)
    await fired.wait(2)
    assert fired.at[1] >= deadline - MILLISECOND_NS
    assert len(fired.at) == 2


async def test_earlier_deadline_replaces_a_later_one(fired):
    fired.timer.arm(after(LONG_NS))
    fired.timer.arm(after(MILLISECOND_NS))
    await fired.wait(1)
    assert len(fired.at) == 1


async def test_cancelled_timer_does_not_fire(fired):
    fired.timer.arm(after(MILLISECOND_NS))
    fired.timer.arm(after(0))
    fired.timer.cancel()
    witness = Fired()
    witness.timer.arm(after(10 * MILLISECOND_NS))
    await witness.wait(1)
    assert fired.at == []
