"""Bounded reads of whole stored batches, which continue at another broker after a failure."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from liftbridge_client import methods
from liftbridge_client.aio.bounds import fetch_bounds
from liftbridge_client.core.batches import Batch, walk
from liftbridge_client.core.deadlines import within
from liftbridge_client.core.history import ReadHistory, cut_at
from liftbridge_client.errors import (
    CallTimeoutError,
    FailedPreconditionError,
    LiftbridgeError,
    OutOfRangeError,
    RetriableError,
    ServerError,
    TruncatedError,
)
from liftbridge_client.model import ColumnBatch
from liftbridge_client.transport import Reading
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

WAIT_SECONDS: Final = 0.05
STREAM_ID_SHIFT: Final = 24
"""Bits of a partition's id below those of its stream."""

Item = TypeVar("Item")


class BulkRange(NamedTuple):
    """Range of a partition to read, with options.

    Attributes:
        start: First offset.
        end: First offset not to read; 0 means the high watermark at the time of the call.
        bytes_max: Size after which the read ends, though at least one batch is read; 0 means no
            limit.
        read_replica: Whether to read from in-sync replicas instead of the leader.
        is_strict: Whether offsets that the log does not hold are an error.
        stream_id: Id that the stream must have, 0 for any.
        call_bytes: Size of each request, at least one batch; 0 means no limit.
        broker: Id of the only broker to read from, a replica or the leader; empty for any.
        unclean_epoch: History to read, as a leader epoch; `None` for any.
    """

    start: int
    end: int
    bytes_max: int
    read_replica: bool = False
    is_strict: bool = False
    stream_id: int = 0
    call_bytes: int = 0
    broker: str = ""
    unclean_epoch: int | None = None


class BulkPiece(NamedTuple):
    """One response and the batches in it."""

    response: data_pb2.FetchBatchesResponse
    batches: Sequence[Batch]


class BulkRead:
    """A bounded read of one partition.

    Args:
        client: The session.
        stream: Name of the stream.
        partition: Number of the partition.
        wanted: Range to read.
    """

    def __init__(self, client: "Session", stream: str, partition: int, wanted: BulkRange) -> None:
        self._client = client
        self._stream = stream
        self._partition = partition
        self._wanted = wanted
        self._position = wanted.start
        self._end = wanted.end
        self._left = wanted.bytes_max
        self._is_cut = False
        self._history = ReadHistory()
        self._stream_id = wanted.stream_id
        self._avoided: set[str] = set()
        self._progress_at = 0.0

    async def pieces(self) -> AsyncGenerator[BulkPiece, None]:
        """Yield responses in order, with all records of the range acknowledged before the call.

        Raises:
            RetriableError: No broker could serve the rest within the retry time.
            OutOfRangeError: A strict read asks for offsets that the log does not hold.
            FailedPreconditionError: The stream was recreated, or has another history.
            TruncatedError: An unclean election removed records that were already returned.
            LiftbridgeError: The broker refused.
        """
        client, loop = self._client, asyncio.get_running_loop()
        self._progress_at = loop.time()
        while True:
            address = ""
            try:
                with within(self._seconds_left()):
                    if self._history.latest:
                        await self._check_history()
                    address = await self._address()
                async with aclosing(self._read(address)) as pieces:
                    async for piece in pieces:
                        self._progress_at = loop.time()
                        yield piece
            except RetriableError:
                self._doubt(address)
                if not client.retry_seconds or self._seconds_left() <= WAIT_SECONDS:
                    raise
                await asyncio.sleep(WAIT_SECONDS)
            except LiftbridgeError:
                self._doubt(address)
                raise
            else:
                if not self._is_cut:
                    return

    def _seconds_left(self) -> float:
        """Return the seconds after which the read fails if nothing arrives."""
        until = self._progress_at + self._client.call_seconds
        return max(until - asyncio.get_running_loop().time(), 0.0)

    async def _next(
        self, reading: Reading[data_pb2.FetchBatchesResponse]
    ) -> data_pb2.FetchBatchesResponse | None:
        """Read the next response; `None` at the end of the call.

        Raises:
            CallTimeoutError: No response within the timeout of an attempt, though the data is
                committed.
        """
        limit = min(self._client.timeout_seconds, self._seconds_left())
        try:
            async with asyncio.timeout(limit):
                return await reading.read()
        except TimeoutError:
            raise CallTimeoutError(
                f"nothing arrived from {self._stream}/{self._partition} for {limit:g} s"
            ) from None

    async def _address(self) -> str:
        if self._wanted.broker:
            return await self._client.broker_address(
                self._wanted.broker, self._stream, self._partition
            )
        if self._wanted.read_replica:
            return await self._client.replica_address(self._stream, self._partition, self._avoided)
        return await self._client.leader_address(self._stream, self._partition)

    def _doubt(self, address: str) -> None:
        if address:
            self._avoided.add(address)
        self._client.doubt_leader(self._stream, self._partition)

    async def _read(self, address: str) -> AsyncGenerator[BulkPiece, None]:
        wanted = self._wanted
        limit = min((size for size in (self._left, wanted.call_bytes) if size), default=0)
        taken, self._is_cut = 0, False
        request = data_pb2.FetchBatchesRequest(
            stream=self._stream,
            partition=self._partition,
            start_offset=self._position,
            end_offset=self._end,
            max_bytes=limit,
            read_replica=wanted.read_replica or bool(wanted.broker),
            is_strict=wanted.is_strict,
            stream_id=self._stream_id,
            unclean_epoch=wanted.unclean_epoch,
        )
        reading = self._client.transport.server_stream(address, methods.FETCH_BATCHES, request)
        try:
            while (response := await self._next(reading)) is not None:
                batches = list(walk(response.data))
                if batches and self._history.latest not in (0, batches[0].leader_epoch):
                    await self._check_history()
                self._take(response, batches)
                taken += len(response.data)
                yield BulkPiece(response, batches)
                if wanted.bytes_max and not self._left:
                    return
            self._is_cut = 0 < limit <= taken
        finally:
            reading.cancel()

    def _take(self, response: data_pb2.FetchBatchesResponse, batches: Sequence[Batch]) -> None:
        """Check that a response continues where the last one ended, and advance past it."""
        where, position = f"{self._stream}/{self._partition}", self._position
        for batch in batches:
            stream_id = batch.partition_id >> STREAM_ID_SHIFT
            if self._stream_id not in (0, stream_id):
                raise FailedPreconditionError(
                    f"stream {self._stream} has id {stream_id}, not {self._stream_id}: "
                    "it was recreated"
                )
            self._stream_id = stream_id
            if batch.base_offset != position:
                if batch is not batches[0] or batch.base_offset < position:
                    raise ServerError(
                        f"batches of {where} do not adjoin: {batch.base_offset} after {position}"
                    )
                if self._wanted.is_strict:
                    raise OutOfRangeError(
                        f"offset {position} of {where} is out of range: the log holds offsets "
                        f"from {response.log_start} on"
                    )
            if batch.leader_epoch < self._history.latest:
                raise ServerError(
                    f"the leader epoch of {where} decreases at offset {batch.base_offset}: "
                    f"{batch.leader_epoch} after {self._history.latest}"
                )
            self._history.note(batch.leader_epoch, batch.base_offset)
            position = batch.last_offset + 1
        self._position = response.next_offset
        self._end = self._end or response.high_watermark  # further calls do not go beyond it
        self._left -= min(self._left, len(response.data))

    async def _check_history(self) -> None:
        """Check that all returned records are still in the log.

        Raises:
            TruncatedError: Some returned records are not in the log.
        """
        (bounds,) = await fetch_bounds(self._client, self._stream, (self._partition,))
        epochs = ((epoch.leader_epoch, epoch.start_offset) for epoch in bounds.epochs)
        cut = cut_at(epochs, bounds.unclean_epoch or 0, self._history, self._position)
        if cut is not None:
            raise TruncatedError(
                f"an unclean election truncated {self._stream}/{self._partition} at offset {cut}",
                offset=cut,
                next_offset=self._position,
            )


async def columns_of(
    client: "Session", stream: str, partition: int, wanted: BulkRange, columns: Sequence[str]
) -> AsyncGenerator[ColumnBatch, None]:
    """Convert the responses of a bulk read to Arrow columns."""
    from liftbridge_client.columns import from_batches  # noqa: PLC0415 - pyarrow is heavy

    async with aclosing(BulkRead(client, stream, partition, wanted).pieces()) as pieces:
        async for response, batches in pieces:
            records = from_batches(response.data, batches, columns)
            client.stats.received += records.num_rows
            yield ColumnBatch(
                records, response.next_offset, response.high_watermark, response.log_start
            )


async def ahead(source: AsyncGenerator[Item, None], count: int) -> AsyncGenerator[Item, None]:
    """Prefetch up to `count` items of a generator, at least one."""
    queue: asyncio.Queue[Item | None] = asyncio.Queue(count)

    async def fill() -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    await queue.put(item)
        finally:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    task = asyncio.get_running_loop().create_task(fill())
    try:
        while not (task.done() and queue.empty()):
            item = await queue.get()
            if item is not None:
                yield item
        task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that a reader that stops early logs no error
