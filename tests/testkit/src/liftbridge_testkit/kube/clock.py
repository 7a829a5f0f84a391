"""A clock of the operator's process that only moves when a test moves it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

_TURNS: Final = 50
"""Turns of the event loop after each step: the length of the longest chain of awaits."""


class ManualClock:
    """Time that a test moves; sleepers wake in the order of their deadlines."""

    def __init__(self) -> None:
        self._now = 100.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._sequence = 0

    def now(self) -> float:
        """See `process.clock.Clock`."""
        return self._now

    def wall(self) -> datetime:
        """See `process.clock.Clock`."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now)

    async def sleep(self, seconds: float) -> None:
        """See `process.clock.Clock`."""
        future = asyncio.get_running_loop().create_future()
        self._sequence += 1
        self._sleepers.append((self._now + seconds, self._sequence, future))
        await future

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """See `process.clock.Clock`."""
        async with asyncio.TaskGroup() as group:
            waiting: list[asyncio.Task[bool] | asyncio.Task[None]] = []
            waiting.append(group.create_task(event.wait()))
            if seconds is not None:
                waiting.append(group.create_task(self.sleep(seconds)))
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()

    def jump(self, seconds: float) -> None:
        """Advance the time in one step, as after a stop of the process."""
        self._now += seconds

    async def advance(self, seconds: float = 0.0) -> None:
        """Advance the time, and wake sleepers at their deadlines."""
        end = self._now + seconds
        await self._settle()
        while due := sorted(entry for entry in self._sleepers if entry[0] <= end):
            self._now = max(self._now, due[0][0])
            self._sleepers.remove(due[0])
            if not due[0][2].done():
                due[0][2].set_result(None)
            await self._settle()
        self._now = max(self._now, end)
        await self._settle()

    @staticmethod
    async def _settle() -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
