"""The load of a story: streams under publishers and a reader from outside the cluster.

One closed-loop publisher and one reader for each partition, with the client of this project over
one connection to each broker, all in one thread. A journal for each partition (`journal`) records
sent messages and outcomes, and is compared with the whole log at the end.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from liftbridge_client import RetriableError
from liftbridge_testkit.kube.journal import Journal
from liftbridge_testkit.load import Worker
from liftbridge_testkit.steady import RETRY_SECONDS, Publishing, Reading, client_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from liftbridge_client import Client, TlsFiles

RATE: Final = 20.0
"""Messages per second of a publisher."""

DELIVERY_SECONDS_MAX: Final = 30.0
"""Time within which the reader must get all acknowledged messages after the last publish."""

END_SECONDS_MAX: Final = 90.0

PartitionName = tuple[str, int]
"""Stream and number of a partition."""


class Load(Worker):
    """Publishes and reads until stopped.

    Attributes:
        journals: Journals by stream and partition.
    """

    def __init__(
        self,
        folder: Path,
        servers: str,
        streams: Mapping[str, int],
        *,
        tls: TlsFiles | None = None,
        rate: float = RATE,
    ) -> None:
        """Configure the load; `start` begins.

        Args:
            folder: Directory of the journals.
            servers: First addresses, `host:port` with commas. They, and the addresses that brokers
                return, must be reachable from this machine.
            streams: Number of partitions by stream; they exist.
            tls: TLS of the connections; none without it.
            rate: Messages of one publisher in a second.
        """
        super().__init__("load")
        self._servers = servers
        self._tls = tls
        self._interval = 1.0 / rate
        self._is_over = False
        self.journals: dict[PartitionName, Journal] = {
            (stream, number): Journal(path_of(folder, stream, number), number)
            for stream, count in streams.items()
            for number in range(count)
        }

    @property
    def is_stopped(self) -> bool:
        """Return whether publishing was asked to stop."""
        return self._stopping.is_set()

    def run(self) -> None:
        """Run an event loop in this thread."""
        try:
            asyncio.run(self._run())
        finally:
            for journal in self.journals.values():
                journal.close()

    def wait_for_all(self, seconds_max: float, *, more: int = 1) -> None:
        """Wait until every partition has this many further acks.

        Raises:
            AssertionError: A partition was not in time; the text names all of them.
        """
        wanted = {name: one.acked_count + more for name, one in self.journals.items()}
        deadline = monotonic() + seconds_max
        while silent := [
            f"{stream}/{number}"
            for (stream, number), count in wanted.items()
            if self.journals[stream, number].acked_count < count
        ]:
            if self.error is not None:
                raise self.error
            assert monotonic() < deadline, f"no acks of {silent} in {seconds_max} s"
            self._stopping.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """Stop publishing, let the reader receive all acknowledged messages, and end."""
        self._stopping.set()
        self._thread.join(END_SECONDS_MAX)
        super().stop()

    async def _run(self) -> None:
        publishers = await self._connected()
        readers = await self._connected()
        try:
            async with asyncio.TaskGroup() as tasks:
                for (stream, number), journal in self.journals.items():
                    reading = Reading(journal.delivered, journal, stream, partition=number)
                    tasks.create_task(reading.keep_on(readers, lambda: self._is_over))
                await self._publish(publishers)
                await self._await_deliveries()
                self._is_over = True
        finally:
            await publishers.aclose()
            await readers.aclose()

    async def _connected(self) -> Client:
        """Return a connected client; retry until a broker answers."""
        while True:
            client = client_of(self._servers, self._tls)
            try:
                return await client.__aenter__()
            except RetriableError as error:
                await client.aclose()
                if self._stopping.is_set():
                    raise
                for journal in self.journals.values():
                    journal.note_error(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _publish(self, client: Client) -> None:
        async with asyncio.TaskGroup() as tasks:
            for (stream, number), journal in self.journals.items():
                publishing = Publishing(
                    journal,
                    journal,
                    stream,
                    partition=number,
                    batch_count=1,
                    interval_seconds=self._interval,
                )
                tasks.create_task(publishing.keep_on(client, self._stopping.is_set))

    async def _await_deliveries(self) -> None:
        deadline = monotonic() + DELIVERY_SECONDS_MAX
        while monotonic() < deadline:
            if all(
                journal.newest_read >= journal.newest_acked for journal in self.journals.values()
            ):
                return
            await asyncio.sleep(RETRY_SECONDS)


def path_of(folder: Path, stream: str, partition: int) -> Path:
    """Return the path of the journal of a partition."""
    return folder / f"{stream}-{partition}.jsonl"
