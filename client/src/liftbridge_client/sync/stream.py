"""Blocking access to streams."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, cast, overload

from liftbridge_client.aio.publisher import IN_FLIGHT_DEFAULT
from liftbridge_client.aio.stream import Stream
from liftbridge_client.aio.streams import Streams
from liftbridge_client.aio.subscription import OnTruncation
from liftbridge_client.codecs import Codec
from liftbridge_client.core.arguments import checked
from liftbridge_client.core.partitioners import Partitioner, by_key
from liftbridge_client.model import (
    COLUMNS,
    Ack,
    AckPolicy,
    ColumnBatch,
    Numbering,
    PartitionBounds,
    PartitionInfo,
    Published,
    Start,
    Stop,
    StreamDescription,
    StreamInfo,
    StreamSettings,
    Value,
)
from liftbridge_client.sync.portal import Portal
from liftbridge_client.sync.publisher import SyncColumnPublisher, SyncPublisher
from liftbridge_client.sync.reading import SyncSubscription

if TYPE_CHECKING:
    import pyarrow as pa

    from liftbridge_client.aio.publisher import Publisher
    from liftbridge_client.aio.subscription import Subscription


class SyncStreams:
    """Create, find and delete streams; see `Streams`. Returned by `SyncClient.streams`."""

    def __init__(self, portal: Portal, streams: Streams) -> None:
        self._portal = portal
        self._streams = streams

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
        stream = self._portal.run(
            self._streams.create(
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
        return SyncStream(self._portal, self._streams.get(name))

    def delete(self, name: str) -> None:
        """Delete a stream and its data; see `Streams.delete`."""
        self._portal.run(self._streams.delete(name))

    def list(self, prefix: str = "", *, subject: str = "") -> Sequence[StreamInfo]:
        """List the streams in the metadata, sorted by name; see `Streams.list`."""
        return self._portal.run(self._streams.list(prefix, subject=subject))

    def await_news(
        self,
        known: Mapping[str, Mapping[int, int]],
        wait: timedelta,
        *,
        read_replica: bool = False,
    ) -> frozenset[str]:
        """Wait until more is committed in one of several streams; see `Streams.await_news`."""
        return self._portal.run(self._streams.await_news(known, wait, read_replica=read_replica))

    def describe(self, prefix: str = "") -> Iterator[StreamDescription]:
        """List streams with their settings in effect, by name; see `Streams.describe`."""
        return self._portal.iterate(self._streams.describe(prefix))


class SyncStream:
    """Blocking access to one stream; see `Stream`."""

    def __init__(self, portal: Portal, stream: Stream) -> None:
        self._portal = portal
        self._stream = stream

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._stream.name

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
        return self._portal.run(
            self._stream.publish(
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
        made = self._stream.publisher(
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
        made = self._stream.subscribe(
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

    def fetch_columns(
        self,
        partition: int = 0,
        start: int = 0,
        end: int = 0,
        *,
        columns: Sequence[str] = COLUMNS,
        max_bytes: int = 0,
        call_bytes: int = 0,
        read_replica: bool = False,
        stream_id: int = 0,
        unclean_epoch: int | None = None,
        prefetch: int = 1,
        broker: str = "",
    ) -> Iterator[ColumnBatch]:
        """Read a range of committed messages as Arrow columns; see `Stream.fetch_columns`."""
        return self._portal.iterate(
            self._stream.fetch_columns(
                partition,
                start,
                end,
                columns=columns,
                max_bytes=max_bytes,
                call_bytes=call_bytes,
                read_replica=read_replica,
                stream_id=stream_id,
                unclean_epoch=unclean_epoch,
                prefetch=prefetch,
                broker=broker,
            )
        )

    def fetch_arrow(
        self, *, partition: int = 0, start: int = 0, end: int = 0, max_bytes: int = 0
    ) -> Iterator["pa.RecordBatch"]:
        """Read a range of messages as Arrow record batches; see `Stream.fetch_arrow`."""
        return self._portal.iterate(
            self._stream.fetch_arrow(partition=partition, start=start, end=end, max_bytes=max_bytes)
        )

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
        made = self._stream.column_publisher(
            ack_policy=ack_policy, partitioner=partitioner, numbering=numbering
        )
        return SyncColumnPublisher(self._portal, made)

    @checked
    def restore(self, partition: int, batches: Iterable["pa.RecordBatch"]) -> int:
        """Restore records at their offsets, with timestamps and subjects; see `Stream.restore`.

        The calling thread consumes the batches.
        """
        restorer = self._stream.restorer(partition)
        try:
            for batch in batches:
                self._portal.run(restorer.put(batch))
            return self._portal.run(restorer.finish())
        finally:
            self._portal.end(restorer.aclose())

    # -- state --------------------------------------------------------------------------------

    def info(self) -> StreamInfo:
        """Fetch the stream from the metadata; see `Stream.info`."""
        return self._portal.run(self._stream.info())

    def partition_info(self, partition: int = 0) -> PartitionInfo:
        """Fetch the state of a partition from its leader; see `Stream.partition_info`."""
        return self._portal.run(self._stream.partition_info(partition))

    def bounds(
        self,
        *partitions: int,
        time: datetime | None = None,
        read_replica: bool = False,
        known: Mapping[int, int] | None = None,
        wait: timedelta = timedelta(0),
        broker: str = "",
    ) -> Sequence[PartitionBounds]:
        """Fetch offsets and sizes of partitions from their leaders; see `Stream.bounds`."""
        return self._portal.run(
            self._stream.bounds(
                *partitions,
                time=time,
                read_replica=read_replica,
                known=known,
                wait=wait,
                broker=broker,
            )
        )

    def pause(self, *partitions: int, resume_all: bool = False) -> None:
        """Pause ingestion and subscriptions of partitions; see `Stream.pause`."""
        self._portal.run(self._stream.pause(*partitions, resume_all=resume_all))

    def set_readonly(self, *partitions: int, readonly: bool = True) -> None:
        """Make partitions read-only, or writable again; see `Stream.set_readonly`."""
        self._portal.run(self._stream.set_readonly(*partitions, readonly=readonly))

    def alter(self, settings: StreamSettings) -> None:
        """Change settings; see `Stream.alter`."""
        self._portal.run(self._stream.alter(settings))

    def delete(self) -> None:
        """Delete the stream and its data; see `Stream.delete`."""
        self._portal.run(self._stream.delete())

    # -- cursors ------------------------------------------------------------------------------

    def set_cursor(
        self,
        cursor_id: str,
        offset: int,
        *,
        partition: int = 0,
        stream_id: int = 0,
        unclean_epoch: int | None = None,
    ) -> None:
        """Store a position in a partition under a name; see `Stream.set_cursor`."""
        self._portal.run(
            self._stream.set_cursor(
                cursor_id,
                offset,
                partition=partition,
                stream_id=stream_id,
                unclean_epoch=unclean_epoch,
            )
        )

    def fetch_cursor(self, cursor_id: str, *, partition: int = 0) -> int | None:
        """Fetch the offset of the last message processed; see `Stream.fetch_cursor`."""
        return self._portal.run(self._stream.fetch_cursor(cursor_id, partition=partition))
