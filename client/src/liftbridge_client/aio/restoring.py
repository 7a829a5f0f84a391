"""Restore of records at their offsets, with their timestamps and subjects."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from liftbridge_client import methods
from liftbridge_client.aio.bounds import fetch_bounds
from liftbridge_client.core.codec import policy_of
from liftbridge_client.core.deadlines import within
from liftbridge_client.core.record_slices import check_batch, slices
from liftbridge_client.core.refusals import batch_error
from liftbridge_client.errors import (
    CallTimeoutError,
    LiftbridgeError,
    OutcomeUnknownError,
    RetriableError,
    TruncatedError,
    UsageError,
)
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session
    from liftbridge_client.transport import Duplex

REQUEST_RECORDS_MAX: Final = 8_192
REQUEST_BYTES_MAX: Final = 1024 * 1024
IN_FLIGHT_MAX: Final = 4
"""Requests that wait for their acks."""

WAIT_SECONDS: Final = 0.05

_NEEDED: Final = frozenset(("offset", "value"))
_TAKEN: Final = _NEEDED | {"timestamp", "key", "headers", "subject", "reply_subject"}


class Restorer:
    """Writes records of one partition in the order of their offsets, each once.

    A restore uses no sequences: after an unknown outcome, it continues at the log end offset. So no
    other publisher may write to the partition during a restore.

    Args:
        client: The session.
        stream: Name of the stream.
        partition: Number of the partition.
    """

    def __init__(self, client: "Session", stream: str, partition: int) -> None:
        self._client = client
        self._stream = stream
        self._partition = partition
        self._call: Duplex[data_pb2.PublishBatchRequest, data_pb2.PublishBatchResponse] | None = (
            None
        )
        self._unsent: deque[pa.RecordBatch] = deque()
        self._sent: deque[pa.RecordBatch] = deque()
        self._end = 0
        self._stored_end = 0
        self._acked_end = 0
        self._progress_at = 0.0

    async def put(self, records: pa.RecordBatch) -> None:
        """Append records; those that the log already holds are skipped.

        Args:
            records: Columns `offset` (increasing) and `value`, and any of `timestamp`, `key`,
                `headers`, `subject`, `reply_subject`.

        Raises:
            UsageError: A column is missing, unknown or has nulls, or offsets do not increase.
            RetriableError: No broker could accept the rest within the retry time.
            TruncatedError: An unclean election removed records that were acknowledged.
            LiftbridgeError: The broker refused the records.
        """
        self._progress_at = asyncio.get_running_loop().time()
        self._end = _checked_end(records, self._end)
        for piece, _ in slices(records, count_max=REQUEST_RECORDS_MAX, bytes_max=REQUEST_BYTES_MAX):
            left = _from(piece, self._stored_end)
            if left.num_rows:
                self._unsent.append(left)
                await self._go(IN_FLIGHT_MAX)

    async def finish(self) -> int:
        """Wait until all records are committed; return the first offset after them.

        Raises:
            LiftbridgeError: As for `put`.
        """
        self._progress_at = asyncio.get_running_loop().time()
        await self._go(0)
        if self._acked_end < self._end:
            # Records found in the log were not acknowledged to this client.
            with within(self._seconds_left()):
                self._acked_end = await self._committed_end(self._end)
        return self._end

    async def aclose(self) -> None:
        """End the call; records without an ack may or may not be stored."""
        self._leave()

    def _seconds_left(self) -> float:
        """Return the seconds after which the restore fails if no ack arrives."""
        until = self._progress_at + self._client.call_seconds
        return max(until - asyncio.get_running_loop().time(), 0.0)

    def _leave(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    @property
    def _where(self) -> str:
        return f"{self._stream}/{self._partition}"

    async def _go(self, most: int) -> None:
        """Send all queued requests, and read acks until at most `most` requests are pending."""
        while self._unsent or len(self._sent) > most:
            try:
                with within(self._seconds_left()):
                    call = self._call or await self._open()
                while self._unsent:
                    await call.write(self._request(self._unsent[0]))
                    self._sent.append(self._unsent.popleft())
                if len(self._sent) > most:
                    await self._read(call)
            except (RetriableError, OutcomeUnknownError) as error:
                await self._again(error)

    async def _open(self) -> "Duplex[data_pb2.PublishBatchRequest, data_pb2.PublishBatchResponse]":
        """Start a call at the log end offset."""
        client = self._client
        self._stored_end = await self._committed_end(self._acked_end)
        left = [_from(piece, self._stored_end) for piece in self._unsent]
        self._unsent = deque(piece for piece in left if piece.num_rows)
        address = await client.leader_address(self._stream, self._partition)
        call = client.transport.duplex(address, methods.PUBLISH_BATCH)
        await call.connected()
        self._call = call
        return call

    async def _committed_end(self, end_min: int) -> int:
        """Return the log end offset once all records are committed; it must be at least `end_min`.

        The next leader may lack uncommitted records. It would then accept the gap as intended.
        """
        while True:
            (bounds,) = await fetch_bounds(self._client, self._stream, (self._partition,))
            if bounds.log_end < end_min:
                raise TruncatedError(
                    f"an unclean election truncated {self._where} at offset {bounds.log_end}",
                    offset=bounds.log_end,
                    next_offset=end_min,
                )
            if bounds.high_watermark >= bounds.log_end:
                return bounds.log_end
            if self._seconds_left() <= WAIT_SECONDS:
                raise RetriableError(
                    f"{self._where} is committed up to {bounds.high_watermark} of {bounds.log_end}"
                )
            await asyncio.sleep(WAIT_SECONDS)

    async def _read(
        self, call: "Duplex[data_pb2.PublishBatchRequest, data_pb2.PublishBatchResponse]"
    ) -> None:
        seconds = min(self._client.timeout_seconds, self._seconds_left())
        try:
            async with asyncio.timeout(seconds):
                response = await call.read()
        except TimeoutError:
            raise CallTimeoutError(f"the broker has not answered for {seconds:g} s") from None
        if response is None:
            raise RetriableError("the broker closed the call")
        error = batch_error(response)
        if error is not None:
            raise error
        piece = self._sent.popleft()
        self._acked_end = _last_offset(piece) + 1
        self._client.stats.published += piece.num_rows
        self._progress_at = asyncio.get_running_loop().time()

    async def _again(self, error: LiftbridgeError) -> None:
        """Start another call after a pause, unless there was no progress within the retry time."""
        self._leave()
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._client.doubt_leader(self._stream, self._partition)
        if not self._client.retry_seconds or self._seconds_left() <= WAIT_SECONDS:
            raise error
        self._client.stats.retries += 1
        await asyncio.sleep(WAIT_SECONDS)

    def _request(self, piece: pa.RecordBatch) -> data_pb2.PublishBatchRequest:
        given: dict[str, Any] = {name: piece.column(name) for name in piece.schema.names}
        request = data_pb2.PublishBatchRequest(
            stream=self._stream,
            partition=self._partition,
            ack_policy=policy_of("all"),
            offsets=given["offset"].to_pylist(),
            values=given["value"].to_pylist(),
        )
        if "timestamp" in given:
            request.timestamps.extend(given["timestamp"].cast(pa.int64()).to_pylist())
        if "key" in given and given["key"].null_count < piece.num_rows:
            request.keys.extend(given["key"].fill_null(b"").to_pylist())
        if "subject" in given:
            request.subjects.extend(given["subject"].to_pylist())
        if "reply_subject" in given:
            request.reply_subjects.extend(given["reply_subject"].to_pylist())
        if "headers" in given:
            for pairs in given["headers"].to_pylist():
                request.headers.add(headers=dict(pairs))
        return request


def _checked_end(records: pa.RecordBatch, end: int) -> int:
    """Check that records can follow `end`, and return the first offset after them."""
    check_batch(records)
    names = set(records.schema.names)
    if not names >= _NEEDED or not names <= _TAKEN:
        raise UsageError(
            f"columns of a restore must be {', '.join(sorted(_NEEDED))} and any of "
            f"{', '.join(sorted(_TAKEN - _NEEDED))}, not {', '.join(sorted(names))}"
        )
    with_nulls = [name for name in names - {"key"} if records.column(name).null_count]
    if with_nulls:
        raise UsageError(
            f"columns of a restore must not have nulls: {', '.join(sorted(with_nulls))}"
        )
    if not records.num_rows:
        return end
    offsets = records.column("offset").to_numpy()
    if offsets[0] < end or (np.diff(offsets) <= 0).any():
        raise UsageError(f"offsets of a restore must be at least {end} and increasing")
    return int(offsets[-1]) + 1


def _from(piece: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    """Cut a slice to the records at or above an offset."""
    return piece.slice(int(np.searchsorted(piece.column("offset").to_numpy(), offset)))


def _last_offset(piece: pa.RecordBatch) -> int:
    return int(piece.column("offset")[-1].as_py())
