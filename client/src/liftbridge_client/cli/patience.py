"""Messages during long waits of a command, which would otherwise look like a hang."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from liftbridge_client.cli.output import say

SECONDS: Final = 10.0
"""Interval of the messages; a start on a busy machine takes almost as long."""

PATIENCE_SECONDS: Final = 120.0
"""Time limit for brokers and partitions of this machine: where other work keeps the cores busy,
everything takes ten times as long as on an idle one."""


@asynccontextmanager
async def awaiting(
    what: str, *, every: float = SECONDS, report: Callable[[str], None] = say
) -> AsyncGenerator[None, None]:
    """Print a message periodically until the block ends.

    Args:
        what: Completes "waiting for ...".
        every: Seconds between two messages.
        report: Prints a line.
    """

    async def remind() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            await asyncio.sleep(every)
            report(f"liftbridge: still waiting for {what} after {loop.time() - begun:.0f} s")

    reminder = asyncio.get_running_loop().create_task(remind())
    try:
        yield
    finally:
        reminder.cancel()
        await asyncio.gather(reminder, return_exceptions=True)
