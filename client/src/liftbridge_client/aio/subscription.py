"""Reading a partition: messages one by one or in batches, across lost connections.

Servers of this project hand out whole stored batches (`FetchBatches`), decoded here hundreds at a
time; from the original, and for resume, reverse and replica reads, messages come one by one
(`Subscribe`). Either way a lost connection is made again where it broke.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from google.protobuf.message import Message as ProtoMessage

from liftbridge_client import methods
from liftbridge_client.aio.cursors import fetch_cursor
from liftbridge_client.codecs import Codec
from liftbridge_client.core.batches import decode_messages, to_message
from liftbridge_client.core.codec import subscribe_request
from liftbridge_client.errors import (
    CallTimeoutError,
    EndOfStreamError,
    LiftbridgeError,
    RetriableError,
    UsageError,
)
from liftbridge_client.events import SubscriptionReconnects
from liftbridge_client.message_batch import MessageBatch
from liftbridge_client.model import Message, Start, Stop, Value
from liftbridge_client.transport import Reading
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

_Response = TypeVar("_Response", bound=ProtoMessage)

WAIT_FIRST_SECONDS: Final = 0.05
WAIT_MAX_SECONDS: Final = 1.0


class Subscription(Generic[Value]):
    """Messages of one partition; iterate it once, with `async for`, or use `batches`.

    Attributes:
        next_offset: First offset not given out yet, `None` before the first message when the
            server decides where to begin.
    """

    next_offset: int | None

    def __init__(
        self,
        client: "Session",
        stream: str,
        partition: int,
        *,
        start: Start,
        stop: Stop,
        resume: bool,
        reverse: bool,
        read_replica: bool,
        codec: Codec[Value] | None,
    ) -> None:
        if reverse and start.kind == "cursor":
            raise UsageError("a cursor tells where to go on, not where to go back from")
        self._client = client
        self._stream = stream
        self._partition = partition
        self._start = start
        self._stop = stop
        self._resume = resume
        self._reverse = reverse
        self._read_replica = read_replica
        self._codec = codec
        self._end: int | None = None
        self._progress_at = 0.0
        self.next_offset = None

    async def __aiter__(self) -> AsyncGenerator[Message[Value], None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for message in batch:
                    yield message

    async def batches(self) -> AsyncGenerator[MessageBatch[Value], None]:
        """Messages as they come together; ends at the stop position.

        Raises:
            NotFoundError: The stream or partition does not exist, or was deleted meanwhile.
            FailedPreconditionError: The partition is, or was, paused.
            RetriableError: The broker stayed away for longer than the retry time.
        """
        self._client.transport  # noqa: B018 - says at once that the client is not open
        loop = asyncio.get_running_loop()
        self._progress_at = loop.time()
        wait = WAIT_FIRST_SECONDS
        while True:
            before = self._progress_at
            try:
                if self._start.kind == "cursor":
                    self._start = await self._behind_cursor()
                async with aclosing(self._session()) as session:
                    async for batch in session:
                        self._progress_at = loop.time()
                        self._client.stats.received += len(batch)
                        yield batch
            except EndOfStreamError:
                return
            except RetriableError as error:
                cause = error
                if self._progress_at > before:
                    wait = WAIT_FIRST_SECONDS
                if loop.time() - self._progress_at > self._client.retry_seconds:
                    raise
            else:
                return
            self._client.stats.retries += 1
            self._client.hub.emit(
                SubscriptionReconnects(self._stream, self._partition, self.next_offset, cause)
            )
            await asyncio.sleep(wait)
            wait = min(2 * wait, WAIT_MAX_SECONDS)
            try:
                await self._client.refresh()
            except LiftbridgeError:
                continue

    async def _behind_cursor(self) -> Start:
        name = self._start.cursor_id
        found = await fetch_cursor(self._client, self._stream, self._partition, name)
        return Start.earliest() if found is None else Start.at(found + 1)

    def _session(self) -> AsyncGenerator[MessageBatch[Value], None]:
        is_plain = self._resume or self._reverse or self._read_replica
        if self._client.has_data and not is_plain:
            return self._read_batches()
        return self._read_messages()

    # -- whole batches ------------------------------------------------------------------------

    async def _read_batches(self) -> AsyncGenerator[MessageBatch[Value], None]:
        if self.next_offset is None:
            await self._resolve()
        start = self.next_offset
        assert start is not None
        if self._end is not None and start >= self._end:
            return
        address = await self._client.leader_address(self._stream, self._partition)
        reading = self._client.transport.server_stream(
            address,
            methods.FETCH_BATCHES,
            data_pb2.FetchBatchesRequest(
                stream=self._stream, partition=self._partition, start_offset=start, follow=True
            ),
        )
        try:
            while (response := await self._next(reading)) is not None:
                messages = decode_messages(response.data, start)
                start = response.next_offset
                if self._end is not None and start >= self._end:
                    messages = [m for m in messages if m.offset < self._end]
                self.next_offset = start
                if messages:
                    yield MessageBatch(self._stream, self._partition, start, messages, self._codec)
                if self._end is not None and start >= self._end:
                    return
            raise RetriableError("the broker ended the call")
        finally:
            reading.cancel()

    async def _next(self, reading: Reading[_Response]) -> _Response | None:
        """What comes next; `None` at the end of the call.

        Raises:
            CallTimeoutError: Nothing came for the time of a call, though all up to the stop
                position was there when the subscription began: the broker hangs, or another one
                leads that does not know yet how far the messages are committed.
        """
        if self._stop.kind != "latest":
            return await reading.read()
        limit = self._client.timeout_seconds
        try:
            async with asyncio.timeout(limit):
                return await reading.read()
        except TimeoutError:
            raise CallTimeoutError(
                f"nothing came of {self._stream}/{self._partition} for {limit:g} s, and there is "
                f"more behind {self.next_offset}"
            ) from None

    async def _resolve(self) -> None:
        """Turn the positions into offsets, once."""
        bounds = await self._bounds(None)
        first = bounds.log_start
        match self._start.kind:
            case "new":
                first = bounds.log_end
            case "offset":
                first = min(max(self._start.offset, 0), bounds.high_watermark)
            case "earliest" | "cursor":  # a cursor was looked up before
                pass
            case "latest":
                first = max(bounds.log_start, bounds.high_watermark - 1)
            case "time":
                first = (await self._bounds(self._start.timestamp)).timestamp_offset
        match self._stop.kind:
            case "never":
                self._end = None
            case "offset":
                self._end = self._stop.offset + 1
            case "latest":
                self._end = bounds.high_watermark
            case "time":
                self._end = (await self._bounds(self._stop.timestamp + 1)).timestamp_offset
        self.next_offset = first

    async def _bounds(self, timestamp: int | None) -> data_pb2.PartitionBounds:
        response = await self._client.call(
            methods.PARTITION_BOUNDS,
            data_pb2.PartitionBoundsRequest(
                stream=self._stream, partitions=[self._partition], timestamp=timestamp
            ),
            leader_of=(self._stream, self._partition),
        )
        return response.partitions[0]

    # -- message by message -------------------------------------------------------------------

    async def _read_messages(self) -> AsyncGenerator[MessageBatch[Value], None]:
        if self._reverse and self.next_offset is not None and self.next_offset < 0:
            return  # the oldest message was given out before the connection broke
        start = self._start if self.next_offset is None else Start.at(self.next_offset)
        address = await self._client.leader_address(self._stream, self._partition)
        reading = self._client.transport.server_stream(
            address,
            methods.SUBSCRIBE,
            subscribe_request(
                self._stream,
                self._partition,
                start,
                self._stop,
                resume=self._resume,
                reverse=self._reverse,
                read_replica=self._read_replica,
            ),
        )
        step = -1 if self._reverse else 1
        try:
            await self._next(reading)  # the empty message that tells that the subscription stands
            while (raw := await self._next(reading)) is not None:
                message = to_message(raw)
                self.next_offset = message.offset + step
                yield MessageBatch(
                    self._stream, self._partition, self.next_offset, (message,), self._codec
                )
        except LiftbridgeError as error:
            if self._reverse and error.server_text == "EOF":
                return  # how the original ends a reverse subscription
            raise
        finally:
            reading.cancel()
