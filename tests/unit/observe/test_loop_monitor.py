"""Lag and load of the event loop, measured with clocks of the test."""

import asyncio

from liftbridge_broker.adapters.observe.loop import INTERVAL_NS, LoopMonitor

SECOND = 1_000_000_000
MILLISECOND = 1_000_000


class Clock:
    def __init__(self):
        self.now_ns = 1_000

    def __call__(self):
        return self.now_ns


async def test_late_timer_is_counted_as_lag():
    clock, used = Clock(), Clock()
    monitor = LoopMonitor(monotonic_ns=clock, thread_time_ns=used)
    monitor.start()
    clock.now_ns += INTERVAL_NS + 3 * MILLISECOND
    monitor.tick()
    assert monitor.last_lag_ns == 3 * MILLISECOND
    assert monitor.lag.total == 3 * MILLISECOND
    clock.now_ns += INTERVAL_NS - 1  # a timer may fire a little early
    monitor.tick()
    assert monitor.last_lag_ns == 0
    assert sum(monitor.lag.counts) == 2
    monitor.stop()


async def test_load_is_processor_time_over_wall_time_of_a_full_second():
    clock, used = Clock(), Clock()
    monitor = LoopMonitor(monotonic_ns=clock, thread_time_ns=used)
    monitor.start()
    for _ in range(SECOND // INTERVAL_NS):
        assert monitor.busy_millionths == 0
        clock.now_ns += INTERVAL_NS
        used.now_ns += INTERVAL_NS // 4
        monitor.tick()
    assert monitor.busy_millionths == 250_000
    for _ in range(SECOND // INTERVAL_NS):
        clock.now_ns += INTERVAL_NS
        used.now_ns += INTERVAL_NS * 2  # clocks may disagree; a ratio is never above 1
        monitor.tick()
    assert monitor.busy_millionths == 1_000_000
    assert monitor.samples() == {
        "loop_lag_seconds": monitor.lag,
        "loop_turn_seconds": monitor.turns,
        "loop_turn_seconds_max": 0,
        "loop_busy_ratio": 1_000_000,
    }
    monitor.stop()


async def test_turn_is_the_part_of_the_lag_in_which_the_broker_itself_was_at_work():
    clock, used = Clock(), Clock()
    monitor = LoopMonitor(monotonic_ns=clock, thread_time_ns=used)
    monitor.start()
    for lag, work in ((60, 65), (80, 3), (5, 12)):
        clock.now_ns += INTERVAL_NS + lag * MILLISECOND
        used.now_ns += work * MILLISECOND
        monitor.tick()
    assert monitor.turns.total == (60 + 3 + 5) * MILLISECOND
    assert monitor.longest_turn_ns == 60 * MILLISECOND
    assert sum(monitor.turns.counts[-5:]) == 1  # above 50 ms
    monitor.stop()


async def test_timer_of_the_loop_measures_until_it_is_stopped():
    clock, measured = Clock(), asyncio.Event()

    def now_ns():
        if sum(monitor.lag.counts) >= 2:
            measured.set()
        return clock()

    monitor = LoopMonitor(monotonic_ns=now_ns)
    monitor.start()
    async with asyncio.timeout(10):
        await measured.wait()
    monitor.stop()
    monitor.stop()
    counted = sum(monitor.lag.counts)
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(2.5 * INTERVAL_NS / 1_000_000_000, later.set)
    await later.wait()
    assert sum(monitor.lag.counts) == counted
