"""Blocking publishers for many messages, one by one or in columns."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self

from liftbridge_client.aio.publisher import Outgoing, Publisher
from liftbridge_client.model import Ack, Published, PublishResult, Value
from liftbridge_client.sync.portal import Portal

if TYPE_CHECKING:
    import asyncio

    import pyarrow as pa

    from liftbridge_client.aio.column_publishing import ColumnPublisher


class SyncPublisher(Generic[Value]):
    """Same as `Publisher`, used with `with`."""

    def __init__(self, portal: Portal, publisher: Publisher[Value]) -> None:
        self._portal = portal
        self._publisher = publisher

    def __enter__(self) -> Self:
        """Same as in `Publisher`."""
        self._portal.run(self._publisher.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, timeout: timedelta = timedelta(seconds=10)) -> None:
        """Same as `Publisher.aclose`."""
        self._portal.end(self._publisher.aclose(timeout))

    def publish(
        self,
        value: Value,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Ack:
        """Same as `Publisher.publish`."""
        return self._portal.run(
            self._publisher.publish(value, key=key, headers=headers, partition=partition)
        )

    def publish_nowait(
        self,
        value: Value,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Future[Ack]:
        """Same as `Publisher.publish_nowait`; waits for the event loop, not for the broker."""

        async def put() -> "asyncio.Future[Ack]":
            return self._publisher.publish_nowait(
                value, key=key, headers=headers, partition=partition
            )

        return self._portal.future_of(put())

    def publish_batch(
        self, messages: Sequence[Value | Outgoing[Value]], *, partition: int | None = None
    ) -> list[PublishResult]:
        """Same as `Publisher.publish_batch`."""
        return self._portal.run(self._publisher.publish_batch(messages, partition=partition))

    def flush(self) -> None:
        """Same as `Publisher.flush`."""
        self._portal.run(self._publisher.flush())


class SyncColumnPublisher:
    """Same as `ColumnPublisher`, used with `with`."""

    def __init__(self, portal: Portal, publisher: "ColumnPublisher") -> None:
        self._portal = portal
        self._publisher = publisher

    def __enter__(self) -> Self:
        """Same as in `ColumnPublisher`."""
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
        """Same as `ColumnPublisher.put`."""
        self._portal.run(self._publisher.put(records))

    def finish(self) -> Published:
        """Same as `ColumnPublisher.finish`."""
        return self._portal.run(self._publisher.finish())
