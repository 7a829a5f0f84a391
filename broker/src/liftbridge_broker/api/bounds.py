"""`PartitionBounds`, how far the logs of partitions go, and `AwaitNews`, when they go further."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from liftbridge_broker.api.call import Call
from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.streams import check_named, decode
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import (
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    NotLeaderError,
)
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.node.answers import Question
from liftbridge_broker.node.partition import Partition
from liftbridge_proto.ext.v1 import data_pb2

WAIT_MS_MAX: Final = 30_000

STREAM_COUNT_MAX: Final = 10_000
"""Streams in one `AwaitNews` request; a client that follows more sends several."""

PARTITIONS_A_SUBSCRIPTION: Final = 10
"""Waiting for this many partitions costs about as much as one subscription."""

NEWS_COUNT_MAX: Final = 1_000
"""Streams in one answer: looking up one that this broker does not serve raises an error."""


class BoundsService:
    """Tells of named partitions all or none, else of those served here."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def bounds(self, call: Call, raw: bytes) -> None:
        """Serve `PartitionBounds`."""
        request = decode(call, data_pb2.PartitionBoundsRequest, raw)
        if request is None:
            return
        _check_wait(request.wait_ms)
        check_named("partitions", len(request.partitions))
        asked = self._asked(request, self._stream(request))
        known = {one: request.known_high_watermarks.get(one.number, -1) for one in asked}
        if not request.wait_ms or not known or _has_passed(known):
            self._answer(call, request)
        else:
            _Wait(self._context, call, request, known, partial(self._answer, call, request))

    def await_news(self, call: Call, raw: bytes) -> None:
        """Serve `AwaitNews`."""
        request = decode(call, data_pb2.AwaitNewsRequest, raw)
        if request is None:
            return
        _check_wait(request.wait_ms)
        if len(request.streams) > STREAM_COUNT_MAX:
            raise InvalidRequestError(
                f"streams: {len(request.streams)} named, at most {STREAM_COUNT_MAX}"
            )
        news, known = self._news(request)
        if not request.wait_ms or not known or news:
            self._tell(call, request)
        else:
            _Wait(self._context, call, request, known, partial(self._tell, call, request))

    def _tell(self, call: Call, request: data_pb2.AwaitNewsRequest) -> None:
        news, _ = self._news(request)
        call.reply(data_pb2.AwaitNewsResponse(streams=news).SerializeToString())

    def _news(self, request: data_pb2.AwaitNewsRequest) -> tuple[list[str], dict[Partition, int]]:
        """Streams to ask for, perhaps not all; partitions of others with what is known of them."""
        node = self._context.node
        find = node.find_replica if request.read_replica else node.find_led
        news: list[str] = []
        quiet: dict[Partition, int] = {}
        # The last one counts of those that have the same name.
        for name, known in {one.name: one.high_watermarks for one in request.streams}.items():
            if len(news) == NEWS_COUNT_MAX:
                break
            try:
                asked = {find(name, number): mark for number, mark in known.items()}
            except LiftbridgeError:
                news.append(name)  # whoever asks for bounds is told why
                continue
            if _has_passed(asked):
                news.append(name)
            else:
                quiet.update(asked)
        return news, quiet

    def _stream(self, request: data_pb2.PartitionBoundsRequest) -> StreamState:
        stream = self._context.node.state.stream(request.stream)
        if stream is None:
            raise NotFoundError(f"no such stream: {request.stream}")
        return stream

    def _asked(
        self, request: data_pb2.PartitionBoundsRequest, stream: StreamState
    ) -> list[Partition]:
        node, is_replica = self._context.node, request.read_replica
        if request.partitions:
            find = node.find_replica if is_replica else node.find_led
            return [find(request.stream, number) for number in dict.fromkeys(request.partitions)]
        held = (node.partitions.get(state.partition_id) for state in stream.partitions)
        return [one for one in held if one is not None and (one.is_led or is_replica)]

    def _answer(self, call: Call, request: data_pb2.PartitionBoundsRequest) -> None:
        stream = self._stream(request)
        asked = self._asked(request, stream)
        _Bounds(self._context, call, request, asked, stream.stream_id).ask()


def _check_wait(wait_ms: int) -> None:
    if not 0 <= wait_ms <= WAIT_MS_MAX:
        raise InvalidRequestError(f"wait_ms {wait_ms}: must be 0 to {WAIT_MS_MAX}")


def _has_passed(known: Mapping[Partition, int]) -> bool:
    """Whether more is committed, as far as this broker knows, than a client knows of."""
    return any(one.log.high_watermark > mark for one, mark in known.items())


class _Watch:
    """One partition that is waited for; ended as a subscription is (`node.roles.Subscriber`)."""

    def __init__(
        self, partition: Partition, known: int, end: Callable[[], None], *, reads_replica: bool
    ) -> None:
        self._partition = partition
        self._end = end
        self.next_offset = Offset(max(0, known))
        self.reads_replica = reads_replica
        partition.attach(self)
        partition.wait_for_data(self._look)

    def _look(self) -> None:
        if self._partition.log.high_watermark > self.next_offset:
            self._end()
        else:
            self._partition.wait_for_data(self._look)

    def on_closed(self, _error: LiftbridgeError) -> None:
        """The partition serves no longer: whoever asks again is told why."""
        self._end()

    def close(self) -> None:
        """Wait no longer. Asking how far a log goes is no use of it: it may be paused still."""
        self._partition.stop_waiting(self._look)
        del self._partition.subscribers[self]


class _Wait:
    """A call that waits until one of its partitions goes further than the client knows.

    While it waits it counts against `subscriptions.max`, once for each `PARTITIONS_A_SUBSCRIPTION`
    partitions. `done` is called in a turn of its own: what ends the wait is in the middle of
    something.
    """

    def __init__(
        self,
        context: Context,
        call: Call,
        request: data_pb2.PartitionBoundsRequest | data_pb2.AwaitNewsRequest,
        known: Mapping[Partition, int],
        done: Callable[[], None],
    ) -> None:
        self._weight = -(-len(known) // PARTITIONS_A_SUBSCRIPTION)
        context.take_subscription(self._weight)
        self._context = context
        self._call = call
        self._done = done
        self._watches = [
            _Watch(one, mark, self._end, reads_replica=request.read_replica)
            for one, mark in known.items()
        ]
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(request.wait_ms / 1_000, self._end)
        call.on_cancel = self._stop

    def _stop(self) -> None:
        self._context.subscription_count -= self._weight
        self._timer.cancel()
        for watch in self._watches:
            watch.close()

    def _end(self) -> None:
        self._stop()
        self._call.on_cancel = _nothing
        self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        if not self._call.is_open:
            return
        try:
            self._done()
        except LiftbridgeError as error:
            refuse(self._call, error)


def _nothing() -> None:
    """Nobody waits any longer."""


class _Bounds:
    """One answer, given when all its partitions may be told of."""

    def __init__(
        self,
        context: Context,
        call: Call,
        request: data_pb2.PartitionBoundsRequest,
        asked: Sequence[Partition],
        stream_id: int,
    ) -> None:
        self._context = context
        self._call = call
        self._request = request
        self._asked = asked
        self._stream_id = stream_id
        self._open_count = len(asked)
        self._found: dict[Partition, data_pb2.PartitionBounds] = {}

    def ask(self) -> None:
        """Ask for every partition; they share one question to the metadata group."""
        if not self._asked:
            self._reply(())
        for partition in self._asked:
            self._context.ask(
                partition,
                Question.END,
                partial(self._answered, partition),
                as_replica=self._request.read_replica,
            )

    def _answered(self, partition: Partition, error: LiftbridgeError | None) -> None:
        self._open_count -= 1
        request = self._request
        if error is None:
            timestamp = request.timestamp if request.HasField("timestamp") else None
            target = data_pb2.PartitionBounds(stream_id=self._stream_id)
            try:
                _fill_bounds(partition, timestamp, target)
                self._found[partition] = target
            except LiftbridgeError as failed:
                error = failed
        is_elsewhere = isinstance(error, NotLeaderError) and not request.partitions
        if error is not None and not is_elsewhere:
            refuse(self._call, error)
        elif self._open_count == 0:
            self._reply([self._found[one] for one in self._asked if one in self._found])

    def _reply(self, found: Sequence[data_pb2.PartitionBounds]) -> None:
        response = data_pb2.PartitionBoundsResponse(partitions=found)
        self._call.reply(response.SerializeToString())


def _fill_bounds(
    partition: Partition, timestamp: int | None, target: data_pb2.PartitionBounds
) -> None:
    log = partition.log
    target.partition = partition.number
    target.log_start = log.log_start_offset
    target.high_watermark = log.high_watermark
    target.log_end = log.log_end_offset
    target.bytes = log.size_bytes
    target.segments = log.segment_count
    for epoch, start in log.epochs.entries:
        target.epochs.add(leader_epoch=epoch, start_offset=start)
    if timestamp is not None:
        # A record that is not committed may yet give its place to another one.
        found = log.offset_for_timestamp(timestamp)
        target.timestamp_offset = min(found, log.high_watermark)  # guard A.time
    target.first_timestamp = log.first_timestamp() or 0
    target.last_timestamp = log.last_timestamp() or 0
