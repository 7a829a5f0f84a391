"""The same client without `await`: one loop in one thread behind blocking calls."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from liftbridge_client.aio.client import Client, connect
from liftbridge_client.aio.publisher import Outgoing
from liftbridge_client.errors import ClosedError
from liftbridge_client.message_batch import MessageBatch
from liftbridge_client.model import (
    Ack,
    AckPolicy,
    Message,
    Metadata,
    PublishResult,
    Start,
    Stop,
    StreamInfo,
    StreamSettings,
    TlsFiles,
)

_Result = TypeVar("_Result")


def connect_sync(
    servers: str,
    *,
    tls: TlsFiles | None = None,
    timeout: timedelta = timedelta(seconds=5),
    retry_time: timedelta = timedelta(seconds=10),
) -> "SyncClient":
    """As `connect`, to be entered with `with`."""
    return SyncClient(connect(servers, tls=tls, timeout=timeout, retry_time=retry_time))


class SyncClient:
    """A blocking client; its methods may be called from any thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Connect; errors as of the asyncio client."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="liftbridge", daemon=True
        )
        self._thread.start()
        try:
            self.run(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; may be called twice."""
        if self._loop is not None:
            self.run(self._client.aclose())
            self._end()

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine of the asyncio client and wait for it.

        Raises:
            ClosedError: The client was not entered, or is closed.
        """
        if self._loop is None:
            coroutine.close()
            raise ClosedError("the client is not open: use it inside `with connect_sync(...)`")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def metadata(self) -> Metadata:
        """As `Client.metadata`."""
        return self.run(self._client.metadata())

    def create_stream(
        self,
        name: str,
        *,
        subject: str = "",
        partitions: int = 1,
        replication: int = 1,
        group: str = "",
        settings: StreamSettings | None = None,
    ) -> "SyncStream":
        """As `Streams.create`."""
        self.run(
            self._client.streams.create(
                name,
                subject=subject,
                partitions=partitions,
                replication=replication,
                group=group,
                settings=settings,
            )
        )
        return SyncStream(self, self._client, name)

    def stream(self, name: str) -> "SyncStream":
        """As `Streams.get`."""
        return SyncStream(self, self._client, name)

    def list_streams(self, prefix: str = "") -> Sequence[StreamInfo]:
        """As `Streams.list`."""
        return self.run(self._client.streams.list(prefix))

    def delete_stream(self, name: str) -> None:
        """As `Streams.delete`."""
        self.run(self._client.streams.delete(name))


class SyncStream:
    """One stream, blocking.

    Attributes:
        name: Its name.
    """

    def __init__(self, owner: SyncClient, client: Client, name: str) -> None:
        self._owner = owner
        self._stream = client.streams.get(name)
        self.name = name

    def publish(
        self,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        ack_policy: AckPolicy = "leader",
        expected_offset: int = -1,
    ) -> Ack | None:
        """As `Stream.publish`."""
        return self._owner.run(
            self._stream.publish(
                value,
                key=key,
                headers=headers,
                partition=partition,
                ack_policy=ack_policy,
                expected_offset=expected_offset,
            )
        )

    def publish_batch(
        self,
        messages: Sequence[bytes | Outgoing],
        *,
        partition: int | None = None,
        ack_policy: AckPolicy = "leader",
        idempotent: bool = False,
    ) -> list[PublishResult]:
        """Publish messages through a publisher that lives as long as this call."""

        async def publish() -> list[PublishResult]:
            async with self._stream.publisher(
                ack_policy=ack_policy, idempotent=idempotent
            ) as publisher:
                return await publisher.publish_batch(messages, partition=partition)

        return self._owner.run(publish())

    def subscribe(
        self,
        *,
        partition: int = 0,
        start: Start | None = None,
        stop: Stop | None = None,
        resume: bool = False,
        reverse: bool = False,
    ) -> Iterator[Message]:
        """As `Stream.subscribe`, blocking between batches."""
        subscription = self._stream.subscribe(
            partition=partition, start=start, stop=stop, resume=resume, reverse=reverse
        )
        batches = subscription.batches()

        async def next_batch() -> MessageBatch | None:
            return await anext(batches, None)

        try:
            while (batch := self._owner.run(next_batch())) is not None:
                yield from batch
        finally:
            self._owner.run(_close(batches))

    def pause(self, *partitions: int, resume_all: bool = False) -> None:
        """As `Stream.pause`."""
        self._owner.run(self._stream.pause(*partitions, resume_all=resume_all))

    def set_readonly(self, *partitions: int, readonly: bool = True) -> None:
        """As `Stream.set_readonly`."""
        self._owner.run(self._stream.set_readonly(*partitions, readonly=readonly))

    def delete(self) -> None:
        """As `Stream.delete`."""
        self._owner.run(self._stream.delete())

    def set_cursor(self, cursor_id: str, offset: int, *, partition: int = 0) -> None:
        """As `Stream.set_cursor`."""
        self._owner.run(self._stream.set_cursor(cursor_id, offset, partition=partition))

    def fetch_cursor(self, cursor_id: str, *, partition: int = 0) -> int | None:
        """As `Stream.fetch_cursor`."""
        return self._owner.run(self._stream.fetch_cursor(cursor_id, partition=partition))


async def _close(batches: Any) -> None:
    await batches.aclose()
