"""One stream, and everything done with it."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, overload

from liftbridge_client import methods
from liftbridge_client.aio.bounds import await_news, fetch_bounds
from liftbridge_client.aio.bulk import BulkRange, BulkRead, ahead
from liftbridge_client.aio.cursors import fetch_cursor, set_cursor
from liftbridge_client.aio.publisher import IN_FLIGHT_DEFAULT, Publisher
from liftbridge_client.aio.subscription import OnTruncation, Subscription
from liftbridge_client.codecs import Codec
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
from liftbridge_client.errors import NotFoundError, UsageError
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


class Stream:
    """One stream, by name.

    Attributes:
        name: Its name.
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
            partition: Partition; `None` asks the partitioner.
            ack_policy: When it counts as published; `none` waits for nothing.
            expected_offset: On streams with optimistic concurrency control, the offset the
                message must get; -1 for any.
            partitioner: How the partition is chosen.

        Returns:
            Where it is stored, `None` with policy `none`.

        Raises:
            UsageError: The value, the key, a header or the ack policy is none.
            AckTimeoutError: No ack in time; the message may be stored.
            OutcomeUnknownError: The connection broke before the ack; the message may be stored.
            RefusedError: The server refused it.
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
        """A publisher for many messages, to be entered with `async with`.

        Args:
            codec: Makes the bytes of values; without one, values are bytes.
            ack_policy: When a message counts as published.
            partitioner: How partitions are chosen; by key when `None`.
            max_in_flight: Messages that may wait for their acks.
            on_full: Whether publishing waits for room or raises `FullError`.
            idempotent: Whether retries never store a message twice; needs a server of this project.
            name: Name of an idempotent publisher, to go on after a restart; random when empty.
            linger: How long a batch waits for more messages; by default one turn of the loop.
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
        """Messages of one partition, to be iterated with `async for`.

        Args:
            codec: Makes values of the bytes; without one, values are bytes.
            partition: Number of the partition.
            start: Where to begin; `None` is behind the last message.
            stop: Where to end; `None` is never.
            resume: Whether a paused partition is resumed.
            reverse: Whether messages come newest first, up to the oldest.
            read_replica: Whether a replica in sync is read in place of the leader; one in the
                client's zone, where zones are known.
            on_truncation: What happens when an unclean election took back records that were given
                out: `TruncatedError`, or the subscription goes on where the log was cut off.
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
        prefetch: int = 1,
        broker: str = "",
    ) -> AsyncGenerator[ColumnBatch, None]:
        """A bounded range of committed messages as Arrow columns, a batch for each response.

        It goes on at another broker where one fails, exactly behind what it gave. An offset that
        the log does not hold is an error: what is missing is never passed over.

        Args:
            partition: Number of the partition.
            start: First offset.
            end: First offset not wanted; 0 means what is committed at the time of the call.
            columns: Which, of `liftbridge_client.columns.FIELDS`; others are not made.
            max_bytes: Bytes after which the read ends; 0 means no limit.
            call_bytes: Bytes that a broker is asked for at a time, and so what waits here for a
                slow reader; 0 means no limit.
            read_replica: Whether replicas in sync are read in place of the leader.
            stream_id: Id that the stream must have, as `bounds` tells it; 0 for any.
            prefetch: Batches that are made before they are asked for; 0 makes none.
            broker: Id of the one broker that is read, a replica or the leader; empty for any.

        Raises:
            UsageError: A column does not exist.
            OutOfRangeError: The start is below the log start, also when retention removes what is
                still to be read, or beyond what is committed.
            FailedPreconditionError: The stream has another id, or was made anew meanwhile.
            RetriableError: Nobody could serve the rest for the retry time.
            TruncatedError: An unclean election took back records that were given out.
            UnimplementedError: The server is not of this project.
        """
        from liftbridge_client.columns import check_columns  # noqa: PLC0415 - pyarrow is heavy

        check_columns(columns)
        if prefetch < 0:
            raise UsageError(f"prefetch {prefetch}: must not be negative")
        wanted = BulkRange(
            start,
            end,
            max_bytes,
            read_replica,
            is_strict=True,
            stream_id=stream_id,
            call_bytes=call_bytes,
            broker=broker,
        )
        made = self._columns(partition, wanted, columns)
        async with aclosing(ahead(made, prefetch) if prefetch else made) as batches:
            async for batch in batches:
                yield batch

    async def fetch_arrow(
        self, *, partition: int = 0, start: int = 0, end: int = 0, max_bytes: int = 0
    ) -> AsyncGenerator["pa.RecordBatch", None]:
        """As `fetch_columns` with offset, timestamp, key and value, from the log start at least.

        Args:
            partition: Number of the partition.
            start: First offset; below the log start it means that.
            end: First offset not wanted; 0 means what is committed at the time of the call.
            max_bytes: Bytes after which the read ends; 0 means no limit.

        Raises:
            LiftbridgeError: As `fetch_columns`, except `OutOfRangeError`.
        """
        wanted = BulkRange(start, end, max_bytes)
        async with aclosing(self._columns(partition, wanted, COLUMNS)) as batches:
            async for batch in batches:
                yield batch.records

    async def _columns(
        self, partition: int, wanted: BulkRange, columns: Sequence[str]
    ) -> AsyncGenerator[ColumnBatch, None]:
        from liftbridge_client.columns import from_batches  # noqa: PLC0415 - pyarrow is heavy

        async with aclosing(
            BulkRead(self._client, self.name, partition, wanted).pieces()
        ) as pieces:
            async for response, batches in pieces:
                records = from_batches(response.data, batches, columns)
                self._client.stats.received += records.num_rows
                yield ColumnBatch(
                    records, response.next_offset, response.high_watermark, response.log_start
                )

    async def publish_columns(
        self,
        batches: Iterable["pa.RecordBatch"],
        *,
        ack_policy: AckPolicy = "leader",
        partitioner: Partitioner | None = None,
        numbering: Numbering | None = None,
    ) -> Published:
        """Publish records in columns, and wait for all acks.

        Args:
            batches: Column `value`, and any of `key`, `headers` (a map) and `partition`.
            ack_policy: When a record counts as published.
            partitioner: How partitions are chosen without a column `partition`; by key when `None`.
            numbering: Makes it idempotent, so that it can be repeated as it was; `None` may store a
                record twice when a call breaks.

        Raises:
            UsageError: A column is missing, of no use, or has nulls, or a partition does not exist.
            FailedPreconditionError: The stream takes no batches.
            LiftbridgeError: A record is not, or may not be, stored; others may be.
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
        """What `publish_columns` publishes with, to be entered with `async with`."""
        from liftbridge_client.aio.column_publishing import ColumnPublisher  # noqa: PLC0415 - pyarrow is heavy

        return ColumnPublisher(
            self._client,
            self.name,
            ack_policy=ack_policy,
            partitioner=partitioner or by_key,
            numbering=numbering,
        )

    async def restore(self, partition: int, batches: Iterable["pa.RecordBatch"]) -> int:
        """Put records back at their offsets, with timestamps and subjects, acknowledged by all.

        Nobody else may write to the partition meanwhile. What the log holds already is left out, so
        a restore that broke off is repeated as it was.

        Args:
            partition: Number of the partition.
            batches: Columns `offset` (increasing) and `value`, and any of `timestamp` (not
                decreasing), `key`, `headers`, `subject`, `reply_subject`, as `fetch_columns` gives
                them. Offsets that are missing are missing there as well.

        Returns:
            First offset behind the records.

        Raises:
            UsageError: A column is missing or of no use, or offsets do not increase.
            RetriableError: Nobody could take the rest for the retry time.
            TruncatedError: An unclean election took back records that were acknowledged.
            LiftbridgeError: The broker refused.
        """
        restorer = self.restorer(partition)
        try:
            for batch in batches:
                await restorer.put(batch)
            return await restorer.finish()
        finally:
            await restorer.aclose()

    def restorer(self, partition: int) -> "Restorer":
        """What `restore` writes with."""
        from liftbridge_client.aio.restoring import Restorer  # noqa: PLC0415 - pyarrow is heavy

        return Restorer(self._client, self.name, partition)

    # -- state --------------------------------------------------------------------------------

    @_deadline
    async def info(self) -> StreamInfo:
        """The stream as metadata tells of it, asked for anew."""
        await self._client.refresh()
        return await self._client.stream_info(self.name)

    @_deadline
    async def partition_info(self, partition: int = 0) -> PartitionInfo:
        """A partition as its leader tells of it."""
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
        """Offsets and sizes of partitions, all of them when none is named; every leader is asked.

        Args:
            partitions: Numbers of partitions.
            time: When given, the first offset stored at or after it is looked up as well.
            read_replica: Whether replicas in sync are asked in place of leaders.
            known: High watermarks by partition that the caller knows; the answer comes when more is
                committed in one of them.
            wait: How long that is waited for, at most 30 s.
            broker: Id of the one broker that answers, which must be in sync; empty for leaders.

        Raises:
            UsageError: The wait is negative or too long.
            RetriableError: A partition had nobody who could tell for the retry time.
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
        """Stop intake and subscriptions of partitions, all of them when none is named.

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
        """Refuse publishes to partitions, or accept them again; all of them when none is named."""
        request = api_pb2.SetStreamReadonlyRequest(
            name=self.name, partitions=partitions, readonly=readonly
        )
        await self._client.call(methods.SET_READONLY, request)

    @_deadline
    async def alter(self, settings: StreamSettings) -> None:
        """Change settings; what is `None` stays. Needs a server of this project.

        Raises:
            UnimplementedError: A broker is too old for a retention cursor, and passed it over.
        """
        request = data_pb2.AlterStreamRequest(name=self.name, options=own_options(settings))
        fill_settings(settings, request.settings)
        response = await self._client.call(methods.ALTER_STREAM, request)
        check_in_force(self.name, settings, response.options)

    @_deadline
    async def delete(self) -> None:
        """Delete the stream with its data.

        Raises:
            NotFoundError: There is no such stream.
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
        self, cursor_id: str, offset: int, *, partition: int = 0, stream_id: int = 0
    ) -> None:
        """Store a position in a partition under a name; neither needs to exist, nor to stay.

        Args:
            cursor_id: The name.
            offset: Of the last message processed: `Start.cursor` goes on at the next one.
            partition: Number of the partition.
            stream_id: Id that the stream must have, as `bounds` tells it; 0 for any.

        Raises:
            FailedPreconditionError: The stream has another id: it was made anew; nothing is stored.
            ServerError: Cursors are off (`cursors.stream.partitions` is 0).
            UnimplementedError: The server compares no ids, and stores nothing with one.
        """
        cursor = api_pb2.SetCursorRequest(
            stream=self.name, partition=partition, cursorId=cursor_id, offset=offset
        )
        await set_cursor(self._client, cursor, stream_id)

    @_deadline
    async def fetch_cursor(self, cursor_id: str, *, partition: int = 0) -> int | None:
        """Offset of the last message processed; `None` when none is stored, or no such stream."""
        return await fetch_cursor(self._client, self.name, partition, cursor_id)
