"""One stream and its operations."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, overload

from liftbridge_client import methods
from liftbridge_client.aio.bounds import await_news, fetch_bounds
from liftbridge_client.aio.bulk import BulkRange, ahead, columns_of
from liftbridge_client.aio.cursors import fetch_cursor, set_cursor
from liftbridge_client.aio.publisher import IN_FLIGHT_DEFAULT, Publisher
from liftbridge_client.aio.subscription import OnTruncation, Subscription
from liftbridge_client.codecs import Codec
from liftbridge_client.core.arguments import checked_calls
from liftbridge_client.core.codec import (
    ack_of,
    bounds_of,
    check_in_force,
    fill_settings,
    own_options,
    partition_of,
    policy_of,
)
from liftbridge_client.core.deadlines import one_deadline, within
from liftbridge_client.core.message_parts import check_message
from liftbridge_client.core.partitioners import Partitioner, by_key, choose
from liftbridge_client.errors import NotFoundError
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
    StreamInfo,
    StreamSettings,
    Value,
    to_ns,
)
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    import pyarrow as pa

    from liftbridge_client.aio.column_publishing import ColumnPublisher
    from liftbridge_client.aio.restoring import Restorer
    from liftbridge_client.aio.session import Session

_deadline = one_deadline(attrgetter("_client.call_seconds"))


@checked_calls
class Stream:
    """One stream, by name.

    Attributes:
        name: Name of the stream.
    """

    name: str

    def __init__(self, client: "Session", name: str) -> None:
        self._client = client
        self.name = name

    # -- publishing ---------------------------------------------------------------------------

    @overload
    async def publish(
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
    async def publish(
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

    async def publish(
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
        """Publish one message and wait for its ack; for many, use `publisher`.

        Args:
            value: Value.
            key: Key; decides the partition unless one is given.
            headers: Headers.
            partition: Partition; `None` uses the partitioner.
            ack_policy: When the message counts as published; the call returns immediately with
                `none`.
            expected_offset: Offset it must get under optimistic concurrency control; -1 for any.
            partitioner: Chooses the partition if none is given.

        Returns:
            Where the message is stored; `None` with policy `none`.

        Raises:
            UsageError: The value, the key, a header or the ack policy is invalid.
            AckTimeoutError: No ack in time; the message may be stored.
            OutcomeUnknownError: The connection broke before the ack; the message may be stored.
            RefusedError: The server refused the message.
        """
        check_message(value, key, headers)
        policy = policy_of(ack_policy)
        with within(self._client.call_seconds):
            info = await self._client.stream_info(self.name)
            chosen = choose(partitioner, key, partition, len(info.partitions))
            response = await self._client.call(
                methods.PUBLISH,
                api_pb2.PublishRequest(
                    stream=self.name,
                    partition=chosen,
                    key=key,
                    value=value,
                    headers=headers or {},
                    ackPolicy=policy,
                    expectedOffset=expected_offset,
                ),
                leader_of=(self.name, chosen),
                is_repeatable=False,
            )
        if ack_policy == "none":
            return None
        self._client.stats.published += 1
        return ack_of(response.ack, chosen)

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
    ) -> Publisher[bytes]: ...

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
    ) -> Publisher[Value]: ...

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
    ) -> Publisher[Value]:
        """Create a publisher for many messages, to enter with `async with`.

        Args:
            codec: Encodes values; without one, values are bytes.
            ack_policy: When a message counts as published.
            partitioner: Chooses partitions; by key if `None`.
            max_in_flight: Maximum number of messages that wait for acks, at most 1,000,000.
            on_full: Whether publishing waits for room or raises `FullError`.
            idempotent: Whether retries never store a message twice; needs a server of this project.
            name: Name of an idempotent publisher, to continue after a restart; random if empty.
            linger: Time that a batch waits for more messages, at most 1 min; by default one turn of
                the event loop.
        """
        return Publisher(
            self._client,
            self.name,
            ack_policy=ack_policy,
            partitioner=partitioner,
            max_in_flight=max_in_flight,
            on_full=on_full,
            idempotent=idempotent,
            name=name,
            linger=linger,
            codec=codec,
        )

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
    ) -> Subscription[bytes]: ...

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
    ) -> Subscription[Value]: ...

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
    ) -> Subscription[Value]:
        """Subscribe to the messages of one partition, to iterate with `async for`.

        Args:
            codec: Decodes values; without one, values are bytes.
            partition: Number of the partition.
            start: Where to start; `None` is after the last message.
            stop: Where to stop; `None` is never.
            resume: Whether to resume a paused partition.
            reverse: Whether to read backwards, from the newest message to the oldest.
            read_replica: Whether to read from an in-sync replica, one in the client's zone if any.
            on_truncation: What to do when an unclean election removed records that were already
                delivered: raise `TruncatedError`, or continue where the log was truncated.
        """
        return Subscription(
            self._client,
            self.name,
            partition,
            start=start or Start.new(),
            stop=stop or Stop.never(),
            resume=resume,
            reverse=reverse,
            read_replica=read_replica,
            codec=codec,
            on_truncation=on_truncation,
        )

    async def fetch_columns(
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
    ) -> AsyncGenerator[ColumnBatch, None]:
        """Read a bounded range of committed messages as Arrow columns, one batch per response.

        If a broker fails, the read continues at another one, exactly after the last batch. An
        offset that the log does not hold is an error: missing records are never skipped.

        Args:
            partition: Number of the partition.
            start: First offset.
            end: First offset not to read; 0 means the high watermark at the time of the call.
            columns: Columns to read, of `liftbridge_client.columns.FIELDS`.
            max_bytes: Number of bytes after which the read ends; 0 for no limit.
            call_bytes: Size of each request to a broker in bytes, which bounds the buffer for a
                slow reader; 0 for no limit.
            read_replica: Whether to read from in-sync replicas instead of the leader.
            stream_id: Id that the stream must have, as returned by `bounds`; 0 for any.
            unclean_epoch: History to read, as returned by `bounds`; `None` for any.
            prefetch: Number of batches to prepare ahead, at most 1,000; 0 for none.
            broker: Id of the only broker to read from, a replica or the leader; empty for any.

        Raises:
            UsageError: A column does not exist.
            OutOfRangeError: The start is below the log start offset or above the high watermark, or
                retention removes records before they are read.
            FailedPreconditionError: The stream has another id or history, or gets another one.
            RetriableError: No broker could serve the rest within the retry time.
            TruncatedError: An unclean election removed records that were already returned.
            UnimplementedError: The server is not of this project.
        """
        from liftbridge_client.columns import check_columns  # noqa: PLC0415 - pyarrow is heavy

        check_columns(columns)
        wanted = BulkRange(
            start,
            end,
            max_bytes,
            read_replica,
            is_strict=True,
            stream_id=stream_id,
            unclean_epoch=unclean_epoch,
            call_bytes=call_bytes,
            broker=broker,
        )
        made = columns_of(self._client, self.name, partition, wanted, columns)
        async with aclosing(ahead(made, prefetch) if prefetch else made) as batches:
            async for batch in batches:
                yield batch

    async def fetch_arrow(
        self, *, partition: int = 0, start: int = 0, end: int = 0, max_bytes: int = 0
    ) -> AsyncGenerator["pa.RecordBatch", None]:
        """Read a bounded range as record batches of offset, timestamp, key and value.

        Args:
            partition: Number of the partition.
            start: First offset; raised to the log start offset if below it.
            end: First offset not to read; 0 means the high watermark at the time of the call.
            max_bytes: Number of bytes after which the read ends; 0 for no limit.

        Raises:
            LiftbridgeError: As for `fetch_columns`, except `OutOfRangeError`.
        """
        wanted = BulkRange(start, end, max_bytes)
        made = columns_of(self._client, self.name, partition, wanted, COLUMNS)
        async with aclosing(made) as batches:
            async for batch in batches:
                yield batch.records

    async def publish_columns(
        self,
        batches: Iterable["pa.RecordBatch"],
        *,
        ack_policy: AckPolicy = "leader",
        partitioner: Partitioner | None = None,
        numbering: Numbering | None = None,
    ) -> Published:
        """Publish records in columns and wait for all acks.

        Args:
            batches: Column `value`, and any of `key`, `headers` (a map) and `partition`.
            ack_policy: When a record counts as published.
            partitioner: Chooses partitions without a column `partition`; by key if `None`.
            numbering: Makes the call idempotent, so that it can be repeated unchanged; with `None`,
                a record may be stored twice if a call breaks.

        Raises:
            UsageError: A column is missing, unknown, of a wrong type or has nulls, or a partition
                does not exist.
            FailedPreconditionError: The stream accepts no batches.
            LiftbridgeError: A record is not stored, or may not be stored. Other records may be
                stored.
        """
        async with self.column_publisher(
            ack_policy=ack_policy, partitioner=partitioner, numbering=numbering
        ) as publisher:
            for batch in batches:
                await publisher.put(batch)
            return await publisher.finish()

    def column_publisher(
        self,
        *,
        ack_policy: AckPolicy = "leader",
        partitioner: Partitioner | None = None,
        numbering: Numbering | None = None,
    ) -> "ColumnPublisher":
        """Create the publisher behind `publish_columns`, to enter with `async with`."""
        from liftbridge_client.aio.column_publishing import ColumnPublisher  # noqa: PLC0415 - pyarrow is heavy

        return ColumnPublisher(
            self._client,
            self.name,
            ack_policy=ack_policy,
            partitioner=partitioner or by_key,
            numbering=numbering,
        )

    async def restore(self, partition: int, batches: Iterable["pa.RecordBatch"]) -> int:
        """Restore records at their offsets, with timestamps and subjects, with ack policy `all`.

        No other publisher may write to the partition during a restore. Records that the log already
        holds are skipped, so an interrupted restore can be repeated unchanged.

        Args:
            partition: Number of the partition.
            batches: Columns `offset` (increasing) and `value`, and any of `timestamp` (not
                decreasing), `key`, `headers`, `subject`, `reply_subject`, as returned by
                `fetch_columns`. Missing offsets are also missing in the restored log.

        Returns:
            First offset after the records.

        Raises:
            UsageError: A column is missing, unknown or has nulls, or offsets do not increase.
            RetriableError: No broker could accept the rest within the retry time.
            TruncatedError: An unclean election removed records that were acknowledged.
            LiftbridgeError: The broker refused the records.
        """
        restorer = self.restorer(partition)
        try:
            for batch in batches:
                await restorer.put(batch)
            return await restorer.finish()
        finally:
            await restorer.aclose()

    def restorer(self, partition: int) -> "Restorer":
        """Create the writer behind `restore`."""
        from liftbridge_client.aio.restoring import Restorer  # noqa: PLC0415 - pyarrow is heavy

        return Restorer(self._client, self.name, partition)

    # -- state --------------------------------------------------------------------------------

    @_deadline
    async def info(self) -> StreamInfo:
        """Fetch the stream from the metadata."""
        await self._client.refresh()
        return await self._client.stream_info(self.name)

    @_deadline
    async def partition_info(self, partition: int = 0) -> PartitionInfo:
        """Fetch the state of a partition from its leader."""
        response = await self._client.call(
            methods.FETCH_PARTITION_METADATA,
            api_pb2.FetchPartitionMetadataRequest(stream=self.name, partition=partition),
            leader_of=(self.name, partition),
        )
        return partition_of(response.metadata)

    async def bounds(
        self,
        *partitions: int,
        time: datetime | None = None,
        read_replica: bool = False,
        known: Mapping[int, int] | None = None,
        wait: timedelta = timedelta(0),
        broker: str = "",
    ) -> Sequence[PartitionBounds]:
        """Fetch offsets and sizes of partitions from their leaders, of all partitions by default.

        Args:
            partitions: Numbers of partitions.
            time: If given, also look up the first offset stored at or after it.
            read_replica: Whether to ask in-sync replicas instead of leaders.
            known: High watermarks by partition that the caller knows; the call returns when more is
                committed in one of them.
            wait: Limit for that wait, at most 30 s.
            broker: Id of the only broker to ask, which must be in sync; empty for leaders.

        Raises:
            UsageError: The wait is negative or too long.
            RetriableError: No broker could answer for a partition within the retry time.
        """
        timestamp = to_ns(time) if time is not None else None
        with within(self._client.call_seconds + max(wait.total_seconds(), 0.0)):
            if known is not None:
                await await_news(
                    self._client, self.name, known, wait.total_seconds(), read_replica=read_replica
                )
            found = await fetch_bounds(
                self._client,
                self.name,
                partitions,
                timestamp=timestamp,
                read_replica=read_replica,
                broker=broker,
            )
        return [bounds_of(bounds) for bounds in found]

    @_deadline
    async def pause(self, *partitions: int, resume_all: bool = False) -> None:
        """Pause ingestion and subscriptions of partitions, of all partitions by default.

        Args:
            partitions: Numbers of partitions.
            resume_all: Whether a publish to one partition resumes all.
        """
        request = api_pb2.PauseStreamRequest(
            name=self.name, partitions=partitions, resumeAll=resume_all
        )
        await self._client.call(methods.PAUSE_STREAM, request)

    @_deadline
    async def set_readonly(self, *partitions: int, readonly: bool = True) -> None:
        """Make partitions read-only, or writable again; all partitions by default."""
        request = api_pb2.SetStreamReadonlyRequest(
            name=self.name, partitions=partitions, readonly=readonly
        )
        await self._client.call(methods.SET_READONLY, request)

    @_deadline
    async def alter(self, settings: StreamSettings) -> None:
        """Change settings; a `None` leaves a setting unchanged. Needs a server of this project.

        Raises:
            UnimplementedError: A broker is too old for a retention cursor and ignored it.
        """
        request = data_pb2.AlterStreamRequest(name=self.name, options=own_options(settings))
        fill_settings(settings, request.settings)
        response = await self._client.call(methods.ALTER_STREAM, request)
        check_in_force(self.name, settings, response.options)

    @_deadline
    async def delete(self) -> None:
        """Delete the stream and its data.

        Raises:
            NotFoundError: The stream does not exist.
        """
        request = api_pb2.DeleteStreamRequest(name=self.name)
        try:
            await self._client.call(methods.DELETE_STREAM, request)
        except NotFoundError as error:
            if not error.may_be_done:  # otherwise an attempt of this call deleted it
                raise
        await self._client.refresh()

    # -- cursors ------------------------------------------------------------------------------

    @_deadline
    async def set_cursor(
        self,
        cursor_id: str,
        offset: int,
        *,
        partition: int = 0,
        stream_id: int = 0,
        unclean_epoch: int | None = None,
    ) -> None:
        """Store a position in a partition under a name.

        Neither the stream nor the partition needs to exist.

        Args:
            cursor_id: Name of the cursor.
            offset: Offset of the last message processed; `Start.cursor` continues at the next one.
            partition: Number of the partition.
            stream_id: Id that the stream must have, as returned by `bounds`; 0 for any.
            unclean_epoch: History that was read, as `bounds` returned it before; `None` for any.

        Raises:
            FailedPreconditionError: The stream was recreated with another id, or an unclean
                election came after `bounds`; nothing is stored.
            ServerError: Cursors are off (`cursors.stream.partitions` is 0).
            UnimplementedError: The server cannot compare ids, so nothing is stored.
        """
        cursor = api_pb2.SetCursorRequest(
            stream=self.name, partition=partition, cursorId=cursor_id, offset=offset
        )
        await set_cursor(self._client, cursor, stream_id, unclean_epoch)

    @_deadline
    async def fetch_cursor(self, cursor_id: str, *, partition: int = 0) -> int | None:
        """Fetch the offset of the last message processed; `None` if the cursor is not set."""
        return await fetch_cursor(self._client, self.name, partition, cursor_id)
