"""Clock of the process: time and waiting, passed as an argument."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A clock that can be waited on."""

    def now(self) -> float:
        """Return seconds of a monotonic clock that also counts while the process is stopped."""

    def wall(self) -> datetime:
        """Return the time of day, in UTC."""

    async def sleep(self, seconds: float) -> None:
        """Return after this time."""

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Return when the event is set, or after this time; None for no time limit."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """See the protocol."""
        return time.monotonic()

    def wall(self) -> datetime:
        """See the protocol."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """See the protocol."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """See the protocol."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return
