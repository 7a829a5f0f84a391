"""Faults of the demo's cluster while it publishes: a kill, a pause, a damaged disk."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from liftbridge_client.aio.client import Client
from liftbridge_client.cli.local.broker import LocalBroker
from liftbridge_client.cli.local.cluster import LocalCluster
from liftbridge_client.cli.patience import PATIENCE_SECONDS, awaiting
from liftbridge_client.errors import RetriableError, ServerError
from liftbridge_client.model import PartitionInfo

POLL_SECONDS: Final = 0.02
DAMAGE: Final = b"\xff" * 64


class Stalls(NamedTuple):
    """Longest wait of a publisher for acks, in seconds, by fault."""

    kill: float
    pause: float
    damage: float


class Pace:
    """Durations of a publisher's calls."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._ended = asyncio.Event()
        self._is_over = False

    def note(self, seconds: float) -> None:
        """Record the duration of a call that was answered."""
        self._longest = max(self._longest, seconds)
        self._ended.set()

    def end(self) -> None:
        """Record that no call follows."""
        self._is_over = True
        self._ended.set()

    def take(self) -> float:
        """Return the longest duration since the last call of this method."""
        longest, self._longest = self._longest, 0.0
        return longest

    async def next_end(self) -> None:
        """Wait until a call ends, unless none follows."""
        if not self._is_over:
            self._ended.clear()
            await self._ended.wait()


class Faults:
    """Three faults in turn; each ends before the next begins.

    The first broker is spared: the common NATS server is its child process.
    """

    def __init__(
        self, cluster: LocalCluster, pace: Pace, console: Console, report: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._pace = pace
        self._console = console
        self._report = report
        self._spared = cluster.brokers[0].name

    async def run(self, lb: Client, stream: str) -> Stalls:
        """Cause all faults while a stream is being published to.

        Raises:
            ServerError: The cluster did not recover.
        """
        return Stalls(
            await self._kill_a_leader(lb, stream),
            await self._pause_a_follower(lb, stream),
            await self._damage_a_disk(lb, stream),
        )

    async def _kill_a_leader(self, lb: Client, stream: str) -> float:
        leader, partition = await self._leader(lb, stream)
        self._pace.take()
        leader.kill()
        self._hurt(f"kill -9: killed {leader.name}, the leader of partition {partition}")
        await self._until(
            lb,
            stream,
            lambda all_: all_[partition].leader not in ("", leader.name),
            "led by another broker",
        )
        stall = await self._stall()
        self._report(f"another broker took over: the longest wait for acks was {stall:.2f} s")
        await leader.start()
        await self._until_in_sync(lb, stream)
        self._report(f"{leader.name} restarted with its data and is in sync again")
        return stall

    async def _pause_a_follower(self, lb: Client, stream: str) -> float:
        follower = self._cluster.brokers[-1]
        self._pace.take()
        follower.pause()
        self._hurt(f"SIGSTOP: {follower.name} hangs and does not answer")
        await self._until(
            lb,
            stream,
            lambda all_: all(follower.name not in one.isr for one in all_.values()),
            "in sync without the hung broker",
        )
        stall = await self._stall()
        follower.resume()
        self._report(
            f"publishing continues without it: the longest wait for acks was {stall:.2f} s"
        )
        await self._until_in_sync(lb, stream)
        self._report(f"{follower.name} continues too and has caught up")
        return stall

    async def _damage_a_disk(self, lb: Client, stream: str) -> float:
        broker = self._cluster.brokers[-1]
        self._pace.take()
        broker.kill()
        count = _damage_largest_log(broker.data_dir)
        self._hurt(f"killed {broker.name} and overwrote {count} bytes in the middle of its log")
        await broker.start()
        await self._until_in_sync(lb, stream)
        stall = await self._stall()
        self._report(
            f"{broker.name} found the damage, fetched the rest again and is in sync:"
            f" the longest wait for acks was {stall:.2f} s"
        )
        return stall

    # -- looking ------------------------------------------------------------------------------

    async def _leader(self, lb: Client, stream: str) -> tuple[LocalBroker, int]:
        """Find a broker that leads a partition and may fail, and the partition.

        Raises:
            ServerError: Only the spared broker leads.
        """
        partitions = (await lb.metadata()).streams[stream].partitions
        for number, partition in partitions.items():
            for broker in self._cluster.brokers:
                if broker.name == partition.leader != self._spared:
                    return broker, number
        raise ServerError("one broker leads every partition")

    async def _until_in_sync(self, lb: Client, stream: str) -> None:
        await self._until(
            lb,
            stream,
            lambda all_: all(set(one.isr) == set(one.replicas) for one in all_.values()),
            "in sync",
        )

    async def _until(
        self,
        lb: Client,
        stream: str,
        condition: Callable[[Mapping[int, PartitionInfo]], bool],
        what: str,
    ) -> None:
        """Wait until a condition holds for the partitions.

        Raises:
            ServerError: It did not hold within `PATIENCE_SECONDS`.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), awaiting(f"partitions to be {what}"):
                while True:
                    with contextlib.suppress(RetriableError):
                        if condition((await lb.metadata()).streams[stream].partitions):
                            return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise ServerError(
                f"the partitions are not {what} after {PATIENCE_SECONDS:g} s"
            ) from None

    async def _stall(self) -> float:
        """Wait for the next acks; return the longest wait since the last call of this method."""
        async with awaiting("acks"):
            await self._pace.next_end()
        return self._pace.take()

    def _hurt(self, text: str) -> None:
        self._console.print(f"[red]✗[/red] {text}", highlight=False)


def _damage_largest_log(data_dir: Path) -> int:
    """Overwrite bytes in the middle of the largest log in a directory; return their number."""
    place = max(data_dir.rglob("*.log"), key=lambda path: path.stat().st_size)
    with place.open("r+b") as file:
        file.seek(place.stat().st_size // 2)
        return file.write(DAMAGE)
