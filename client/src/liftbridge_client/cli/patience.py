"""What a command waits for, told while it takes long: nobody can tell a long wait from a hang."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from liftbridge_client.cli.output import say

SECONDS: Final = 10.0
"""How often it is told; a start on a busy machine takes almost as long."""

PATIENCE_SECONDS: Final = 120.0
"""When brokers and partitions of this machine are given up: where other work keeps the cores busy,
all takes ten times as long as on an idle one."""


@asynccontextmanager
async def awaiting(
    what: str, *, every: float = SECONDS, tell: Callable[[str], None] = say
) -> AsyncGenerator[None, None]:
    """Tell now and then what a block waits for, until it ends.

    Args:
        what: As in "waiting for ...".
        every: Seconds from one time to the next.
        tell: Prints a line.
    """

    async def remind() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            await asyncio.sleep(every)
            tell(f"liftbridge: still waiting for {what} after {loop.time() - begun:.0f} s")

    reminder = asyncio.get_running_loop().create_task(remind())
    try:
        yield
    finally:
        reminder.cancel()
        await asyncio.gather(reminder, return_exceptions=True)
