"""Publishing many messages, in batches, with or without an await for each message."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, Self, cast

from liftbridge_client.aio.identity import PublisherIdentity, register, takes_single
from liftbridge_client.aio.items import Item
from liftbridge_client.aio.lane import BATCH_BYTES_MAX, BATCH_COUNT_MAX, Lane
from liftbridge_client.codecs import Codec, encoded
from liftbridge_client.core.arguments import checked
from liftbridge_client.core.codec import policy_of
from liftbridge_client.core.deadlines import one_deadline
from liftbridge_client.core.message_parts import (
    MESSAGE_HEADERS_MAX,
    REQUEST_HEADERS_MAX,
    check_message,
)
from liftbridge_client.core.partitioners import Partitioner, by_key, choose
from liftbridge_client.errors import (
    AckTimeoutError,
    ClosedError,
    CodecError,
    FullError,
    LiftbridgeError,
)
from liftbridge_client.model import Ack, AckPolicy, PublishResult, Value

if TYPE_CHECKING:
    from liftbridge_client.aio.session import Session

IN_FLIGHT_DEFAULT: Final = 10_000
IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024


class Outgoing(NamedTuple, Generic[Value]):
    """A message to publish; `publish_batch` accepts these or bare values."""

    value: Value
    key: bytes = b""
    headers: Mapping[str, bytes] | None = None
    partition: int | None = None


class Publisher(Generic[Value]):
    """Publishes to one stream; created by `Stream.publisher`, used with `async with`.

    Messages published within one turn of the event loop, or within `linger`, are sent as one batch.
    At most `max_in_flight` messages, and 64 MiB, wait for acks. To streams with a queue group or
    optimistic concurrency control, messages are sent one by one, as the broker decides on each.
    """

    def __init__(
        self,
        client: "Session",
        stream_name: str,
        *,
        ack_policy: AckPolicy,
        partitioner: Partitioner | None,
        max_in_flight: int,
        on_full: Literal["wait", "raise"],
        idempotent: bool,
        name: str,
        linger: timedelta,
        codec: Codec[Value] | None,
    ) -> None:
        policy_of(ack_policy)  # raises if unknown
        self.client = client
        self.stream_name = stream_name
        self.ack_policy: AckPolicy = ack_policy
        self.identity: PublisherIdentity | None = None
        self.takes_single = False
        self._codec = codec
        self._partitioner = partitioner or by_key
        self._max_in_flight = max_in_flight
        self._on_full = on_full
        self._idempotent = idempotent
        self._name = name or secrets.token_hex(16)
        self._linger = linger.total_seconds()
        self._partition_count = 0
        self._lanes: dict[int, Lane] = {}
        self._open: dict[int, Item] = {}
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._next_sequences: Mapping[int, int] = {}
        self._settled = asyncio.Event()
        self._flush_handle: asyncio.Handle | None = None
        self._is_open = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @one_deadline(attrgetter("client.call_seconds"))
    async def __aenter__(self) -> Self:
        """Look up the stream and, for an idempotent publisher, register it.

        Raises:
            NotFoundError: The stream does not exist.
            UnimplementedError: The server does not support idempotent publishing.
            FailedPreconditionError: The stream accepts no idempotent publisher: it has a queue
                group or optimistic concurrency control.
        """
        info = await self.client.stream_info(self.stream_name)
        self._partition_count = len(info.partitions)
        self.takes_single = await takes_single(self.client, self.stream_name)
        if self._idempotent:
            self.identity, self._next_sequences = await register(
                self.client, self.stream_name, self._name, is_single=self.takes_single
            )
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @checked
    async def aclose(self, timeout: timedelta = timedelta(seconds=10)) -> None:  # noqa: ASYNC109 - how long to wait is the argument
        """Wait for the acks in flight, then close.

        Raises:
            AckTimeoutError: Some acks are missing; the text has their number, and the futures show
                which they are.
        """
        if not self._is_open:
            return
        missing = 0
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await self.flush()
        except TimeoutError:
            missing = self._in_flight
        self._is_open = False
        await asyncio.gather(*(lane.aclose() for lane in self._lanes.values()))
        if missing:
            raise AckTimeoutError(f"{missing} messages were not acknowledged in time")

    async def publish(
        self,
        value: Value,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Ack:
        """Publish one message and wait for its ack; waits first for room in the window.

        Raises:
            UsageError: The value, the key or a header has the wrong type.
            CodecError: The codec cannot encode the value.
            FullError: The window is full, and `on_full` is `raise`.
            ClosedError: The publisher is not open.
            LiftbridgeError: The message is not stored, or may not be stored.
        """
        data = self._encoded(value)
        check_message(data, key, headers)
        await self._wait_for_room()
        return await self._put(Outgoing(data, key, headers, partition))

    def publish_nowait(
        self,
        value: Value,
        *,
        key: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> "asyncio.Future[Ack]":
        """Publish one message; the future receives its ack.

        Raises:
            UsageError: The value, the key or a header has the wrong type.
            CodecError: The codec cannot encode the value.
            FullError: The window is full.
            ClosedError: The publisher is not open.
        """
        data = self._encoded(value)
        check_message(data, key, headers)
        if not self._has_room():
            raise FullError(f"{self._in_flight} messages are waiting for acks")
        return self._put(Outgoing(data, key, headers, partition))

    @checked
    async def publish_batch(
        self, messages: Sequence[Value | Outgoing[Value]], *, partition: int | None = None
    ) -> list[PublishResult]:
        """Publish messages and wait for all acks; return a result for each, in the same order.

        Waits for room in the window regardless of `on_full`, because every message needs a result.
        A value that the codec cannot encode has the result `CodecError`; the rest is published.

        Args:
            messages: Values or `Outgoing`.
            partition: Partition for messages that name none; `None` uses the partitioner.

        Raises:
            UsageError: A value, a key or a header has the wrong type, or a partition does not
                exist; nothing is published.
            ClosedError: The publisher is not open.
        """
        self._check_open()
        is_bare = self._codec is None and set(map(type, messages)) <= {bytes}
        if is_bare and (partition is not None or self._partition_count == 1):
            values = cast("list[bytes]", list(messages))
            return await self._put_values(values, partition or 0)
        results: list[Ack | BaseException | None] = []
        futures = []
        for outgoing in self._ready(messages, partition):
            if isinstance(outgoing, CodecError):
                results.append(outgoing)
                continue
            if not self._has_room():
                await self._until_room()
            futures.append(self._put(outgoing))
            results.append(None)
        outcomes = iter(await asyncio.gather(*futures, return_exceptions=True))
        return [_result(next(outcomes) if result is None else result) for result in results]

    def _ready(
        self, messages: Sequence[Value | Outgoing[Value]], partition: int | None
    ) -> list[Outgoing[bytes] | CodecError]:
        """Encode and check all messages before any is published."""
        ready: list[Outgoing[bytes] | CodecError] = []
        for message in messages:
            outgoing = message if isinstance(message, Outgoing) else Outgoing(message)
            _, key, headers, named = outgoing
            try:
                data = self._encoded(outgoing.value)
            except CodecError as error:
                ready.append(error)
                continue
            check_message(data, key, headers)
            asked = partition if named is None else named
            chosen = choose(self._partitioner, key, asked, self._partition_count)
            ready.append(Outgoing(data, key, headers, chosen))
        return ready

    def _encoded(self, value: Value) -> bytes:
        """Encode a value; without a codec, values are bytes."""
        return cast("bytes", value) if self._codec is None else encoded(self._codec, value)

    async def _put_values(self, values: list[bytes], partition: int) -> list[PublishResult]:
        """Queue whole batches, without a future for each message."""
        choose(self._partitioner, b"", partition, self._partition_count)
        self._flush()
        wholes: list[asyncio.Future[list[PublishResult]]] = []
        count_max = min(BATCH_COUNT_MAX, self._max_in_flight)
        start = 0
        while start < len(values):
            chunk, size = _chunk(values, start, count_max)
            end = start + len(chunk)
            if self._in_flight and not self._has_room(end - start):
                await self._until_room(end - start)
            self._check_open()
            whole = self._running_loop().create_future()
            count = end - start
            item = Item(chunk, [b""] * count, [None] * count, size, whole=whole)
            self._send(partition, item)
            wholes.append(whole)
            start = end
        results: list[PublishResult] = []
        for whole in wholes:
            results += await whole
        return results

    async def flush(self) -> None:
        """Wait until every message published so far has its result."""
        self._flush()
        while self._in_flight:
            self._settled.clear()
            await self._settled.wait()

    # -- inside -------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError("the publisher is not open: enter it with `async with` or `with`")

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop, which must be the publisher's.

        Raises:
            UsageError: Another loop runs, which an ack would not wake.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.client.transport.check_loop()
        return loop

    def _has_room(self, count: int = 1) -> bool:
        is_few = self._in_flight + count <= self._max_in_flight
        return is_few and self._in_flight_bytes < IN_FLIGHT_BYTES

    async def _wait_for_room(self) -> None:
        self._check_open()
        if self._has_room():
            return
        if self._on_full == "raise":
            raise FullError(f"{self._in_flight} messages are waiting for acks")
        await self._until_room()

    async def _until_room(self, count: int = 1) -> None:
        self._flush()
        while not self._has_room(count):
            self._settled.clear()
            await self._settled.wait()

    def _put(self, outgoing: Outgoing[bytes]) -> "asyncio.Future[Ack]":
        self._check_open()
        partition = choose(
            self._partitioner, outgoing.key, outgoing.partition, self._partition_count
        )
        size = len(outgoing.value) + len(outgoing.key)
        header_count = 0
        if outgoing.headers:
            size += sum(map(len, outgoing.headers)) + sum(map(len, outgoing.headers.values()))
            header_count = len(outgoing.headers)
        item = self._open.get(partition)
        if item is not None and (
            header_count > MESSAGE_HEADERS_MAX
            or item.size_bytes + size > BATCH_BYTES_MAX
            or item.header_count + header_count > REQUEST_HEADERS_MAX
        ):
            # Start a new batch: if a broker refuses one for its size, the messages before are
            # unaffected.
            self._lane(partition).put(self._open.pop(partition))
            item = None
        if item is None:
            item = self._open[partition] = Item()
        loop = self._running_loop()
        future: asyncio.Future[Ack] = loop.create_future()
        item.values.append(outgoing.value)
        item.keys.append(outgoing.key)
        item.headers.append(outgoing.headers)
        item.futures.append(future)
        item.size_bytes += size
        item.header_count += header_count
        self._in_flight += 1
        self._in_flight_bytes += size
        if (
            len(item.values) >= BATCH_COUNT_MAX
            or item.size_bytes >= BATCH_BYTES_MAX
            or header_count > MESSAGE_HEADERS_MAX
        ):
            self._lane(partition).put(self._open.pop(partition))
        elif self._flush_handle is None:
            self._flush_handle = (
                loop.call_later(self._linger, self._flush)
                if self._linger
                else loop.call_soon(self._flush)
            )
        return future

    def _send(self, partition: int, item: Item) -> None:
        self._in_flight += len(item.values)
        self._in_flight_bytes += item.size_bytes
        self._lane(partition).put(item)

    def _flush(self) -> None:
        """Pass the open batches to their lanes."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        opened, self._open = self._open, {}
        for partition, item in opened.items():
            self._lane(partition).put(item)

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            first = self._next_sequences.get(partition, 0)
            lane = self._lanes[partition] = Lane(self, partition, first)
        return lane

    def on_settled(self, item: Item) -> None:
        """Make room in the window after an item got its outcome."""
        self._in_flight -= len(item.values)
        self._in_flight_bytes -= item.size_bytes
        self._settled.set()


def _chunk(values: list[bytes], start: int, count_max: int) -> tuple[list[bytes], int]:
    """Take the values of the next batch, at most `BATCH_BYTES_MAX` unless it is one value.

    Small values are measured in one step (bench: row batch publish).
    """
    chunk = values[start : start + count_max]
    size = sum(map(len, chunk))
    if size <= BATCH_BYTES_MAX:
        return chunk, size
    count, size = 1, len(chunk[0])
    while count < len(chunk) and size + len(chunk[count]) <= BATCH_BYTES_MAX:
        size += len(chunk[count])
        count += 1
    return chunk[:count], size


def _result(result: "Ack | BaseException") -> PublishResult:
    if isinstance(result, Ack | LiftbridgeError):
        return result
    raise result
