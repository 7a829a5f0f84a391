"""A consumer as a process of its own, which can be killed; it tells what it reads on its output.

    python -m liftbridge_testkit.consumers.member SERVERS GROUP STREAM NAME

One line for each thing that happens, with the seconds of the machine's monotonic clock:

    given 12.5 0 1 2                 it may read these partitions from now on
    read 12.7 1 40 42                it has the messages from offset 40 to 42 of partition 1
    revoked 13.1 2                   it no longer reads these

SIGTERM lets it leave the group; it exits with 0 then.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from liftbridge_client import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftbridge_client import Consumer, PartitionName

COMMIT_INTERVAL = timedelta(milliseconds=200)


def tell(word: str, *numbers: int) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{word} {monotonic():.6f} {' '.join(map(str, numbers))}\n")
    sys.stdout.flush()


def telling(word: str) -> Callable[[Sequence[PartitionName]], None]:
    """Make a callback that prints partitions."""
    return lambda partitions: tell(word, *(one.partition for one in partitions))


async def read(consumer: Consumer) -> None:
    """Tell of every batch."""
    async for batch in consumer:
        tell("read", batch.partition, batch[0].offset, batch[-1].offset)


async def run(servers: str, group: str, stream: str, name: str) -> None:
    """Read until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with (
        connect(servers) as lb,
        lb.consumers.join(
            group,
            [stream],
            name=name,
            commit_interval=COMMIT_INTERVAL,
            on_assigned=telling("given"),
            on_revoked=telling("revoked"),
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        reading = tasks.create_task(read(consumer))
        await ended.wait()
        reading.cancel()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
