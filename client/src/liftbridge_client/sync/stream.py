"""Blocking access to streams."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, cast, overload

from liftbridge_client.aio.publisher import IN_FLIGHT_DEFAULT
from liftbridge_client.aio.stream import Stream
from liftbridge_client.aio.streams import Streams
from liftbridge_client.aio.subscription import OnTruncation
from liftbridge_client.codecs import Codec
from liftbridge_client.core.arguments import checked
from liftbridge_client.core.partitioners import Partitioner, by_key
from liftbridge_client.model import (
    Ack,
    AckPolicy,
    Numbering,
    Published,
    Start,
    Stop,
    StreamSettings,
    Value,
)
from liftbridge_client.sync.blocking import Blocking, blocking, iterating
from liftbridge_client.sync.publisher import SyncColumnPublisher, SyncPublisher
from liftbridge_client.sync.reading import SyncSubscription

if TYPE_CHECKING:
    import pyarrow as pa

    from liftbridge_client.aio.publisher import Publisher
    from liftbridge_client.aio.subscription import Subscription


class SyncStreams(Blocking[Streams]):
    """Create, find and delete streams; see `Streams`. Returned by `SyncClient.streams`."""

    def create(
        self,
        name: str,
        *,
        subject: str = "",
        partitions: int = 1,
        replication: int = 1,
        group: str = "",
        settings: StreamSettings | None = None,
        if_not_exists: bool = False,
    ) -> "SyncStream":
        """Create a stream; see `Streams.create`."""
        stream = self._run(
            self._original.create(
                name,
                subject=subject,
                partitions=partitions,
                replication=replication,
                group=group,
                settings=settings,
                if_not_exists=if_not_exists,
            )
        )
        return SyncStream(self._portal, stream)

    def get(self, name: str) -> "SyncStream":
        """Get a stream by name, without asking a server; see `Streams.get`."""
        return SyncStream(self._portal, self._original.get(name))

    delete = blocking(Streams.delete)
    list = blocking(Streams.list)
    await_news = blocking(Streams.await_news)
    describe = iterating(Streams.describe)


class SyncStream(Blocking[Stream]):
    """Blocking access to one stream; see `Stream`."""

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._original.name

    # -- publishing ---------------------------------------------------------------------------

    @overload
    def publish(
        self,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        ack_policy: Literal["leader", "all"] = "leader",
        expected_offset: int = -1,
        partitioner: Partitioner = by_key,
    ) -> Ack: ...

    @overload
    def publish(
        self,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        ack_policy: Literal["none"],
        expected_offset: int = -1,
        partitioner: Partitioner = by_key,
    ) -> None: ...

    def publish(
        self,
        value: bytes,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        ack_policy: AckPolicy = "leader",
        expected_offset: int = -1,
        partitioner: Partitioner = by_key,
    ) -> Ack | None:
        """Publish one message and wait for its ack; see `Stream.publish`."""
        return self._run(
            self._original.publish(
                value,
                key=key,
                headers=headers,
                partition=partition,
                ack_policy=ack_policy,
                expected_offset=expected_offset,
                partitioner=partitioner,
            )
        )

    @overload
    def publisher(
        self,
        *,
        codec: None = None,
        ack_policy: AckPolicy = "leader",
        partitioner: Partitioner | None = None,
        max_in_flight: int = IN_FLIGHT_DEFAULT,
        on_full: Literal["wait", "raise"] = "wait",
        idempotent: bool = False,
        name: str = "",
        linger: timedelta = timedelta(0),
    ) -> SyncPublisher[bytes]: ...

    @overload
    def publisher(
        self,
        *,
        codec: Codec[Value],
        ack_policy: AckPolicy = "leader",
        partitioner: Partitioner | None = None,
        max_in_flight: int = IN_FLIGHT_DEFAULT,
        on_full: Literal["wait", "raise"] = "wait",
        idempotent: bool = False,
        name: str = "",
        linger: timedelta = timedelta(0),
    ) -> SyncPublisher[Value]: ...

    def publisher(
        self,
        *,
        codec: Codec[Value] | None = None,
        ack_policy: AckPolicy = "leader",
        partitioner: Partitioner | None = None,
        max_in_flight: int = IN_FLIGHT_DEFAULT,
        on_full: Literal["wait", "raise"] = "wait",
        idempotent: bool = False,
        name: str = "",
        linger: timedelta = timedelta(0),
    ) -> SyncPublisher[Value]:
        """Create a publisher for many messages, to enter with `with`; see `Stream.publisher`."""
        made = self._original.publisher(
            codec=codec,
            ack_policy=ack_policy,
            partitioner=partitioner,
            max_in_flight=max_in_flight,
            on_full=on_full,
            idempotent=idempotent,
            name=name,
            linger=linger,
        )
        return SyncPublisher(self._portal, cast("Publisher[Value]", made))

    # -- reading ------------------------------------------------------------------------------

    @overload
    def subscribe(
        self,
        *,
        codec: None = None,
        partition: int = 0,
        start: Start | None = None,
        stop: Stop | None = None,
        resume: bool = False,
        reverse: bool = False,
        read_replica: bool = False,
        on_truncation: OnTruncation = "raise",
    ) -> SyncSubscription[bytes]: ...

    @overload
    def subscribe(
        self,
        *,
        codec: Codec[Value],
        partition: int = 0,
        start: Start | None = None,
        stop: Stop | None = None,
        resume: bool = False,
        reverse: bool = False,
        read_replica: bool = False,
        on_truncation: OnTruncation = "raise",
    ) -> SyncSubscription[Value]: ...

    def subscribe(
        self,
        *,
        codec: Codec[Value] | None = None,
        partition: int = 0,
        start: Start | None = None,
        stop: Stop | None = None,
        resume: bool = False,
        reverse: bool = False,
        read_replica: bool = False,
        on_truncation: OnTruncation = "raise",
    ) -> SyncSubscription[Value]:
        """Subscribe to one partition, to iterate with `for`; see `Stream.subscribe`."""
        made = self._original.subscribe(
            codec=codec,
            partition=partition,
            start=start,
            stop=stop,
            resume=resume,
            reverse=reverse,
            read_replica=read_replica,
            on_truncation=on_truncation,
        )
        return SyncSubscription(self._portal, cast("Subscription[Value]", made))

    fetch_columns = iterating(Stream.fetch_columns)
    fetch_arrow = iterating(Stream.fetch_arrow)

    @checked
    def publish_columns(
        self,
        batches: Iterable["pa.RecordBatch"],
        *,
        ack_policy: AckPolicy = "leader",
        partitioner: Partitioner | None = None,
        numbering: Numbering | None = None,
    ) -> Published:
        """Publish records in columns and wait for all acks; see `Stream.publish_columns`.

        The calling thread consumes the batches.
        """
        with self.column_publisher(
            ack_policy=ack_policy, partitioner=partitioner, numbering=numbering
        ) as publisher:
            for batch in batches:
                publisher.put(batch)
            return publisher.finish()

    def column_publisher(
        self,
        *,
        ack_policy: AckPolicy = "leader",
        partitioner: Partitioner | None = None,
        numbering: Numbering | None = None,
    ) -> SyncColumnPublisher:
        """Create the publisher behind `publish_columns`, to enter with `with`."""
        made = self._original.column_publisher(
            ack_policy=ack_policy, partitioner=partitioner, numbering=numbering
        )
        return SyncColumnPublisher(self._portal, made)

    @checked
    def restore(self, partition: int, batches: Iterable["pa.RecordBatch"]) -> int:
        """Restore records at their offsets, with timestamps and subjects; see `Stream.restore`.

        The calling thread consumes the batches.
        """
        restorer = self._original.restorer(partition)
        try:
            for batch in batches:
                self._run(restorer.put(batch))
            return self._run(restorer.finish())
        finally:
            self._portal.end(restorer.aclose())

    # -- state --------------------------------------------------------------------------------

    info = blocking(Stream.info)
    partition_info = blocking(Stream.partition_info)
    bounds = blocking(Stream.bounds)
    pause = blocking(Stream.pause)
    set_readonly = blocking(Stream.set_readonly)
    alter = blocking(Stream.alter)
    delete = blocking(Stream.delete)

    # -- cursors ------------------------------------------------------------------------------

    set_cursor = blocking(Stream.set_cursor)
    fetch_cursor = blocking(Stream.fetch_cursor)
