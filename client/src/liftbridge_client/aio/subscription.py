"""Reading a partition: messages one by one or in batches, across lost connections.

Servers of this project send whole stored batches (`FetchBatches`), decoded here hundreds at a time;
the original server, and resume and reverse reads, send messages one by one (`Subscribe`). After a
lost connection, both continue at the next offset. Both report the leader epochs of the records,
from which a reader detects that an unclean election removed records it has read (KIP-320).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

from google.protobuf.message import Message as ProtoMessage

from liftbridge_client import methods
from liftbridge_client.aio.cursors import fetch_cursor
from liftbridge_client.codecs import Codec
from liftbridge_client.core.batches import decode, to_message
from liftbridge_client.core.codec import subscribe_request
from liftbridge_client.core.deadlines import within
from liftbridge_client.core.history import ReadHistory, cut_at
from liftbridge_client.errors import (
    CallTimeoutError,
    EndOfStreamError,
    FencedError,
    LiftbridgeError,
    NotFoundError,
    RetriableError,
    TruncatedError,
    UsageError,
)
from liftbridge_client.events import SubscriptionReconnects, SubscriptionTruncated
from liftbridge_client.message_batch import MessageBatch
from liftbridge_client.model import Message, Start, Stop, Value
from liftbridge_client.transport import Reading
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

_Response = TypeVar("_Response", bound=ProtoMessage)

WAIT_FIRST_SECONDS: Final = 0.05
WAIT_MAX_SECONDS: Final = 1.0

EPOCH_HEADER: Final = "liftbridge-leader-epoch"
"""Response header of `Subscribe`: latest leader epoch of the log that is read."""

OnTruncation = Literal["raise", "continue"]


class Subscription(Generic[Value]):
    """Messages of one partition; iterate once, with `async for`, or use `batches`.

    Attributes:
        next_offset: First offset not delivered yet; `None` before the first message if the server
            decides where to start.
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
        on_truncation: OnTruncation = "raise",
        consumer: api_pb2.Consumer | None = None,
        stream_id: int = 0,
    ) -> None:
        """Describe what to read.

        With a `stream_id`, the stream must have it. With 0, the first stream that is found of the
        name gives it: its offsets mean nothing in a later one.
        """
        if reverse and start.kind == "cursor":
            raise UsageError(
                "a cursor is for reading forwards: it cannot start a reverse subscription"
            )
        self._client = client
        self._stream = stream
        self._partition = partition
        self._start = start
        self._stop = stop
        self._resume = resume
        self._reverse = reverse
        self._read_replica = read_replica
        self._codec = codec
        self._on_truncation = on_truncation
        self._consumer = consumer
        self._stream_id = stream_id
        self._history = ReadHistory()
        self._not_before = 0
        self._address = ""
        self._avoided: set[str] = set()
        self._end: int | None = None
        self._progress_at = 0.0
        self.next_offset = None

    async def __aiter__(self) -> AsyncGenerator[Message[Value], None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for message in batch:
                    yield message

    async def batches(self) -> AsyncGenerator[MessageBatch[Value], None]:
        """Iterate over batches of messages, as they arrive; ends at the stop position.

        Raises:
            FencedError: The consumer that it reads for lost the partition.
            NotFoundError: The stream or partition does not exist, or was deleted during the read,
                even if it was created again.
            TruncatedError: An unclean election removed delivered records; not raised if
                `on_truncation` is `continue`.
            FailedPreconditionError: The partition is, or was, paused.
            RetriableError: No broker could serve the partition within the retry time.
        """
        self._client.transport  # noqa: B018 - raises immediately if the client is not open
        loop = asyncio.get_running_loop()
        self._progress_at = loop.time()
        wait = WAIT_FIRST_SECONDS
        while True:
            before = self._progress_at
            try:
                async with aclosing(self._session()) as session:
                    async for batch in session:
                        self._progress_at = loop.time()
                        self._client.stats.received += len(batch)
                        yield batch
            except EndOfStreamError:
                return
            except TruncatedError as error:
                self._go_back(error)
            except RetriableError as error:
                if self._progress_at > before:
                    wait = WAIT_FIRST_SECONDS
                if not self._client.retry_seconds or self._seconds_left() <= wait:
                    raise
                await self._wait(wait, error)
                wait = min(2 * wait, WAIT_MAX_SECONDS)
            else:
                return

    async def _wait(self, seconds: float, cause: RetriableError) -> None:
        """Wait, then refresh which broker serves the partition."""
        self._avoided.add(self._address)
        self._client.stats.retries += 1
        self._client.hub.emit(
            SubscriptionReconnects(self._stream, self._partition, self.next_offset, cause)
        )
        await asyncio.sleep(seconds)
        with suppress(LiftbridgeError), within(self._seconds_left()):
            await self._client.refresh()

    def _seconds_left(self) -> float:
        """Return the seconds after which the subscription fails if nothing arrives."""
        until = self._progress_at + self._client.call_seconds
        return max(until - asyncio.get_running_loop().time(), 0.0)

    def _go_back(self, error: TruncatedError) -> None:
        """Continue at the offset where the log was truncated, or raise."""
        if self._on_truncation == "raise":
            raise error
        where = self._stream, self._partition, error.offset, error.next_offset
        self._client.hub.emit(SubscriptionTruncated(*where))
        self.next_offset = error.offset - (1 if self._reverse else 0)
        self._history = ReadHistory()

    async def _look_up_cursor(self) -> None:
        """Start after the cursor's message; the cursor is looked up once."""
        if self._start.kind == "cursor":
            name = self._start.cursor_id
            cursor = await fetch_cursor(self._client, self._stream, self._partition, name)
            self._start = Start.earliest() if cursor is None else Start.at(cursor + 1)

    def _session(self) -> AsyncGenerator[MessageBatch[Value], None]:
        # Only a call of this kind takes the seat of a group, and ends when another member gets it.
        is_plain = self._resume or self._reverse or self._consumer is not None
        if self._client.has_data and not is_plain:
            return self._read_batches()
        return self._read_messages()

    async def _find(self) -> str:
        """Choose the broker to read from: the leader, or a replica that has not failed yet."""
        if self._read_replica:
            where = self._stream, self._partition
            self._address = await self._client.replica_address(*where, self._avoided)
            if self._address in self._avoided:
                self._avoided.clear()  # all were tried
        else:
            self._address = await self._client.leader_address(self._stream, self._partition)
        return self._address

    # -- history ------------------------------------------------------------------------------

    async def _check_history(self) -> None:
        """Check that all delivered records are still in the log.

        Raises:
            NotFoundError: It is the log of another stream.
            TruncatedError: Some delivered records are not in the log.
        """
        if self._stream_id or self._history.latest:
            self._compare(await self._bounds(None))

    def _compare(self, bounds: data_pb2.PartitionBounds) -> None:
        """Raise `TruncatedError` if a log lacks, or has replaced, delivered records."""
        position = self.next_offset
        if position is None or not self._history.latest:
            return
        if self._reverse:
            position += 1  # the last delivered offset; only those below it are still to be read
        epochs = ((epoch.leader_epoch, epoch.start_offset) for epoch in bounds.epochs)
        cut = cut_at(epochs, bounds.unclean_epoch, self._history, position)
        if cut is not None:
            raise TruncatedError(
                f"an unclean election truncated {self._stream}/{self._partition} at offset {cut}: "
                f"the {position - cut} offsets read from there on are assigned again",
                offset=cut,
                next_offset=position,
            )

    async def _note_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """Note the leader epochs of the next records, if the log still has all delivered ones.

        Raises:
            TruncatedError: The log lacks delivered records.
            RetriableError: The epochs belong to another history than the log that was compared.
        """
        if epochs and self._history.latest not in (0, epochs[0][0]):
            bounds = await self._bounds(None)
            self._compare(bounds)
            epoch, start = epochs[0]
            log = [one.leader_epoch for one in bounds.epochs if one.start_offset <= start]
            if epoch < self._history.latest and epoch != max(log, default=0):
                raise RetriableError(
                    f"the leader epoch of {self._stream}/{self._partition} decreases at offset "
                    f"{start}: {epoch} after {self._history.latest}"
                )
        for epoch, start in epochs:
            self._history.note(epoch, start)

    async def _note_log(self, header: str | bytes | None) -> None:
        """Note the latest leader epoch of the log that is read; messages do not carry theirs.

        Raises:
            NotFoundError: It is the log of another stream.
            RetriableError: Another history has begun since the comparison.
        """
        if header is None:
            return  # the original server
        latest = int(header)
        bounds = await self._bounds(None)
        self._compare(bounds)
        known = [(one.leader_epoch, one.start_offset) for one in bounds.epochs]
        if known and bounds.unclean_epoch > latest and known[-1][0] > latest:
            raise RetriableError("the leader changed when the subscription began")
        if latest < self._history.latest:
            return  # a replica that lags behind
        self._history = ReadHistory()
        for epoch, start in known:
            if epoch <= latest:
                self._history.note(epoch, start)
        self._history.note(latest, bounds.log_end)  # asked was a replica that does not know it yet

    # -- whole batches ------------------------------------------------------------------------

    async def _read_batches(self) -> AsyncGenerator[MessageBatch[Value], None]:
        with within(self._seconds_left()):
            await self._look_up_cursor()
            if self.next_offset is None:
                await self._resolve()
            else:
                await self._check_history()
            address = await self._find()
        start = self.next_offset
        assert start is not None
        if self._end is not None and start >= self._end:
            return
        reading = self._client.transport.server_stream(
            address,
            methods.FETCH_BATCHES,
            data_pb2.FetchBatchesRequest(
                stream=self._stream,
                partition=self._partition,
                start_offset=start,
                follow=True,
                read_replica=self._read_replica,
                stream_id=self._stream_id,
            ),
        )
        try:
            while (response := await self._next(reading)) is not None:
                decoded = decode(response.data, start)
                await self._note_epochs(decoded.epochs)
                messages = self._wanted(decoded.messages)
                self.next_offset = start = response.next_offset
                if messages:
                    yield MessageBatch(self._stream, self._partition, start, messages, self._codec)
                if self._end is not None and start >= self._end:
                    return
            raise RetriableError("the broker closed the call")
        finally:
            reading.cancel()

    def _wanted(self, messages: list[Message]) -> list[Message]:
        """Keep messages before the stop position, and not older than the start time."""
        if self._end is not None and messages and messages[-1].offset >= self._end:
            messages = [m for m in messages if m.offset < self._end]
        if self._not_before:
            messages = [m for m in messages if m.timestamp >= self._not_before]
            if messages:
                self._not_before = 0
        return messages

    async def _next(self, reading: Reading[_Response]) -> _Response | None:
        """Read the next response; `None` at the end of the call.

        Raises:
            CallTimeoutError: No response arrived within the call timeout, though all messages up to
                the stop position were committed when the subscription began: the broker hangs, or a
                new leader does not know the high watermark yet.
        """
        if self._stop.kind != "latest":
            return await reading.read()
        limit = self._client.timeout_seconds
        try:
            async with asyncio.timeout(limit):
                return await reading.read()
        except TimeoutError:
            raise CallTimeoutError(
                f"nothing arrived from {self._stream}/{self._partition} for {limit:g} s, although "
                f"there is more after {self.next_offset}"
            ) from None

    async def _resolve(self) -> None:
        """Resolve the start and stop positions to offsets, once."""
        bounds = await self._bounds(None)
        first = bounds.log_start
        match self._start.kind:
            case "new":
                # Uncommitted records may still be replaced by others.
                first = bounds.high_watermark
            case "offset":
                # Waits for records that exist but are not committed yet; delivers nothing before
                # them.
                first = min(max(self._start.offset, 0), bounds.log_end)
            case "earliest" | "cursor":  # the cursor was looked up before
                pass
            case "latest":
                first = max(bounds.log_start, bounds.high_watermark - 1)
            case "time":
                self._not_before = self._start.timestamp
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
                stream=self._stream,
                partitions=[self._partition],
                timestamp=timestamp,
                read_replica=self._read_replica,
            ),
            leader_of=(self._stream, self._partition),
            read_replica=self._read_replica,
        )
        bounds: data_pb2.PartitionBounds = response.partitions[0]
        self._check_stream(bounds.stream_id)
        return bounds

    def _check_stream(self, found: int) -> None:
        """Note the id of the stream, or check it; of two streams the later one has a higher id.

        Raises:
            NotFoundError: The stream that was read is gone.
            RetriableError: The broker does not know yet that the stream was created again.
        """
        known = self._stream_id
        if found and known not in (0, found):
            text = f"stream {self._stream} has id {found}, not {known}: it was recreated"
            raise NotFoundError(text) if found > known else RetriableError(text)
        self._stream_id = found or known

    # -- message by message -------------------------------------------------------------------

    async def _read_messages(self) -> AsyncGenerator[MessageBatch[Value], None]:
        if self._reverse and self.next_offset is not None and self.next_offset < 0:
            return  # the oldest message was delivered before the connection broke
        with within(self._seconds_left()):
            await self._look_up_cursor()
            address = await self._find()
        start = self._start if self.next_offset is None else Start.at(self.next_offset)
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
                consumer=self._consumer,
            ),
        )
        step = -1 if self._reverse else 1
        try:
            await self._next(reading)  # the empty message that confirms the subscription
            await self._note_log((await reading.metadata()).get(EPOCH_HEADER))
            while (raw := await self._next(reading)) is not None:
                message = to_message(raw)
                self.next_offset = message.offset + step
                yield MessageBatch(
                    self._stream, self._partition, self.next_offset, (message,), self._codec
                )
            if self._consumer is not None:
                where = f"{self._stream}/{self._partition}"
                raise FencedError(f"{where} is no longer read by {self._consumer.consumerId}")
            raise RetriableError("the broker closed the call")
        except LiftbridgeError as error:
            if self._reverse and error.server_text == "EOF":
                return  # how the original ends a reverse subscription
            raise
        finally:
            reading.cancel()
