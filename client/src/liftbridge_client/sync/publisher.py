"""Blocking publishers for many messages, one by one or in columns."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from liftbridge_client.aio.publisher import Outgoing, Publisher
from liftbridge_client.model import Ack, Published, PublishResult, Value
from liftbridge_client.sync.blocking import Blocking, blocking
from liftbridge_client.sync.portal import Portal

if TYPE_CHECKING:
    import asyncio

    import pyarrow as pa

    from liftbridge_client.aio.column_publishing import ColumnPublisher


class SyncPublisher(Blocking[Publisher[Value]]):
    """Publishes to one stream, used with `with`; see `Publisher`."""

    def __enter__(self) -> Self:
        """Open the publisher; see `Publisher`."""
        self._run(self._original.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Wait for the acks in flight, then close; see `Publisher.aclose`."""
        self._portal.end(self._original.aclose(timeout))

    def publish(
        self,
        value: Value,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Ack:
        """Publish one message and wait for its ack; see `Publisher.publish`."""
        return self._run(
            self._original.publish(value, key=key, headers=headers, partition=partition)
        )

    def publish_nowait(
        self,
        value: Value,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Future[Ack]:
        """Publish one message without waiting for the broker; see `Publisher.publish_nowait`."""

        async def put() -> "asyncio.Future[Ack]":
            return self._original.publish_nowait(
                value, key=key, headers=headers, partition=partition
            )

        return self._portal.future_of(put())

    def publish_batch(
        self, messages: Sequence[Value | Outgoing[Value]], *, partition: int | None = None
    ) -> list[PublishResult]:
        """Publish messages and wait for all acks; see `Publisher.publish_batch`."""
        return self._run(self._original.publish_batch(messages, partition=partition))

    flush = blocking(Publisher.flush)


class SyncColumnPublisher:
    """Publishes columns of records to a stream, used with `with`; see `ColumnPublisher`."""

    def __init__(self, portal: Portal, publisher: "ColumnPublisher") -> None:
        self._portal = portal
        self._publisher = publisher

    def __enter__(self) -> Self:
        """Open the publisher; see `ColumnPublisher`."""
        self._portal.run(self._publisher.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.end(self._publisher.__aexit__(kind, error, trace))

    def put(self, records: "pa.RecordBatch") -> None:
        """Publish further records; see `ColumnPublisher.put`."""
        self._portal.run(self._publisher.put(records))

    def finish(self) -> Published:
        """Wait for all acks; see `ColumnPublisher.finish`."""
        return self._portal.run(self._publisher.finish())
