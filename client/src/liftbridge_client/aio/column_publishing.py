"""Column publishing: whole batches for each partition, without an object for each message."""

import asyncio
from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from liftbridge_client.aio.identity import PublisherIdentity, register, takes_single
from liftbridge_client.aio.items import Item
from liftbridge_client.aio.lane import BATCH_BYTES_MAX, BATCH_COUNT_MAX, Lane
from liftbridge_client.core.codec import policy_of
from liftbridge_client.core.deadlines import one_deadline
from liftbridge_client.core.partitioners import Partitioner, choose
from liftbridge_client.core.record_slices import check_batch, slices
from liftbridge_client.errors import (
    ClosedError,
    FailedPreconditionError,
    LiftbridgeError,
    UsageError,
)
from liftbridge_client.model import Ack, AckPolicy, Numbering, Published, PublishResult

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

IN_FLIGHT_MAX: Final = 65_536
IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bounds on the number and the bytes of records that wait for acks."""

_NEEDED: Final = frozenset(("value",))
_TAKEN: Final = _NEEDED | {"key", "headers", "partition"}


class ColumnPublisher:
    """Publishes columns of records to a stream, in order within a partition; use `async with`.

    Args:
        client: The session.
        stream: Name of the stream.
        ack_policy: When a record counts as published.
        partitioner: How partitions are chosen without a column `partition`.
        numbering: Makes it idempotent; with `None`, a record may be stored twice if a call breaks.
    """

    def __init__(
        self,
        client: "Session",
        stream: str,
        *,
        ack_policy: AckPolicy,
        partitioner: Partitioner,
        numbering: Numbering | None,
    ) -> None:
        policy_of(ack_policy)  # raises if unknown
        self.client = client
        self.stream_name = stream
        self.ack_policy: AckPolicy = ack_policy
        self.identity: PublisherIdentity | None = None
        self.takes_single = False
        self._partitioner = partitioner
        self._numbering = numbering
        self._partition_count = 0
        self._next_sequences: dict[int, int] = {}
        self._lanes: dict[int, Lane] = {}
        self._known: dict[int, int] = {}
        self._in_flight = self._in_flight_bytes = 0
        self._acked_count = self._known_count = 0
        self._settled = asyncio.Event()
        self._error: LiftbridgeError | None = None
        self._is_open = False

    @one_deadline(attrgetter("client.call_seconds"))
    async def __aenter__(self) -> Self:
        """Look up the stream and, with a numbering, register.

        Raises:
            NotFoundError: The stream does not exist.
            UnimplementedError: The server does not support idempotent publishing.
            FailedPreconditionError: The stream accepts no batches: it has a queue group or
                optimistic concurrency control.
        """
        self._partition_count = len((await self.client.stream_info(self.stream_name)).partitions)
        self.takes_single = await takes_single(self.client, self.stream_name)
        if self._numbering is not None:
            self.identity, found = await register(
                self.client, self.stream_name, self._numbering.name, is_single=self.takes_single
            )
            self._next_sequences = dict(found)
        elif self.client.has_data and self.takes_single:
            raise FailedPreconditionError(
                f"stream {self.stream_name} accepts no batches, because it has a queue group or "
                "optimistic concurrency control: publish its messages one by one"
            )
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the calls; records without an ack may or may not be stored."""
        self._is_open = False
        await asyncio.gather(*(lane.aclose() for lane in self._lanes.values()))

    async def put(self, records: pa.RecordBatch) -> None:
        """Publish further records; waits only for room in the window.

        Args:
            records: Column `value`, and any of `key` (null or empty for none), `headers` (a map,
                null or empty for none) and `partition`.

        Raises:
            UsageError: A column is missing, unknown, of a wrong type or has nulls, or a partition
                does not exist.
            ClosedError: The publisher is not open.
            LiftbridgeError: A record, of these or of earlier ones, is not or may not be stored.
        """
        self._check_open()
        for partition, part in self._by_partition(records):
            rest = self._unknown(partition, part)
            for piece, size in slices(rest, count_max=BATCH_COUNT_MAX, bytes_max=BATCH_BYTES_MAX):
                await self._until_room(piece.num_rows)
                self._in_flight += piece.num_rows
                self._in_flight_bytes += size
                self._lane(partition).put(_item(piece, size))

    async def finish(self) -> Published:
        """Wait for all acks.

        Raises:
            LiftbridgeError: As for `put`.
        """
        self._check_open()
        while self._in_flight and self._error is None:
            self._settled.clear()
            await self._settled.wait()
        self._raise()
        return Published(self._acked_count, self._known_count)

    def on_settled(self, item: Item) -> None:
        """Make room in the window after an item got its outcome."""
        self._in_flight -= len(item.values)
        self._in_flight_bytes -= item.size_bytes
        assert item.whole is not None
        results = item.whole.result()
        errors = [result for result in results if not isinstance(result, Ack)]
        self._acked_count += len(results) - len(errors)
        if errors and self._error is None:
            self._error = errors[0]
        self._settled.set()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError("the publisher is not open: enter it with `async with` or `with`")

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    async def _until_room(self, count: int) -> None:
        while self._in_flight and (
            self._in_flight + count > IN_FLIGHT_MAX or self._in_flight_bytes > IN_FLIGHT_BYTES_MAX
        ):
            self._raise()
            self._settled.clear()
            await self._settled.wait()
        self._raise()

    def _by_partition(self, records: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Iterate over the partitions, with the records of each."""
        _check(records)
        numbers = self._partitions(records)
        columns = records.select([name for name in records.schema.names if name != "partition"])
        for number in np.unique(numbers):
            rows = np.flatnonzero(numbers == number)
            yield int(number), columns if len(rows) == len(numbers) else columns.take(rows)

    def _partitions(self, records: pa.RecordBatch) -> npt.NDArray[np.int64]:
        count = self._partition_count
        if "partition" in records.schema.names:
            named = records.column("partition").to_numpy()
            if len(named):
                for extreme in (int(named.min()), int(named.max())):
                    choose(self._partitioner, b"", extreme, count)
            return np.asarray(named, np.int64)
        keys = (
            records.column("key").to_pylist()
            if "key" in records.schema.names
            else [b""] * records.num_rows
        )
        return np.fromiter(
            (choose(self._partitioner, key or b"", None, count) for key in keys),
            np.int64,
            records.num_rows,
        )

    def _unknown(self, partition: int, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that are not stored yet."""
        if self._numbering is None:
            return records
        first = self._numbering.first_sequence
        stored = self._known.get(partition, max(self._next_sequences.get(partition, 0) - first, 0))
        known = min(stored, records.num_rows)
        self._known[partition] = stored - known
        self._known_count += known
        return records.slice(known)

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            first = self._next_sequences.get(partition, 0)
            if self._numbering is not None:
                first = max(first, self._numbering.first_sequence)
            lane = Lane(self, partition, first, has_own_numbers=self._numbering is not None)
            self._lanes[partition] = lane
        return lane


def _check(records: pa.RecordBatch) -> None:
    check_batch(records)
    names = set(records.schema.names)
    if not names >= _NEEDED or not names <= _TAKEN:
        raise UsageError(
            f"columns to publish must be {', '.join(sorted(_NEEDED))} and any of "
            f"{', '.join(sorted(_TAKEN - _NEEDED))}, not {', '.join(sorted(names))}"
        )
    for name in sorted(names & {"value", "partition"}):
        if records.column(name).null_count:
            raise UsageError(
                f"column {name} has {records.column(name).null_count} nulls: must have none"
            )
    for name in sorted(names & {"value", "key"}):
        if not _is_bytes(records.column(name).type):
            kind = records.column(name).type
            raise UsageError(f"column {name} is of type {kind}: cast it to {pa.binary()}")
    if "partition" in names and not pa.types.is_integer(records.column("partition").type):
        kind = records.column("partition").type
        raise UsageError(f"column partition is of type {kind}: cast it to {pa.int32()}")
    if "headers" in names:
        _check_headers(records.column("headers"))


def _check_headers(headers: pa.Array) -> None:
    kind = headers.type
    if not pa.types.is_map(kind) or not (_is_text(kind.key_type) and _is_bytes(kind.item_type)):
        wanted = pa.map_(pa.string(), pa.binary())
        raise UsageError(f"column headers is of type {kind}: cast it to {wanted}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _item(records: pa.RecordBatch, size: int) -> Item:
    columns: dict[str, list[Any]] = {
        name: records.column(name).to_pylist() for name in records.schema.names
    }
    whole: asyncio.Future[list[PublishResult]] = asyncio.get_running_loop().create_future()
    count = records.num_rows
    keys = [key or b"" for key in columns["key"]] if "key" in columns else [b""] * count
    headers: list[Mapping[str, bytes] | None] = (
        [dict(pairs) if pairs else None for pairs in columns["headers"]]
        if "headers" in columns
        else [None] * count
    )
    return Item(columns["value"], keys, headers, size, whole=whole)
