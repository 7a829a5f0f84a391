"""`PartitionBounds`, the ends of partition logs, and `AwaitNews`, which waits for new records."""

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Final

from liftbridge_broker.api.context import Context, refuse
from liftbridge_broker.api.grpc.call import Call
from liftbridge_broker.api.streams import check_named, decode
from liftbridge_broker.controller.state import StreamState
from liftbridge_broker.errors import (
    InvalidRequestError,
    LiftbridgeError,
    NotFoundError,
    NotLeaderError,
)
from liftbridge_broker.model.ids import Offset
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.reading.answers import Question, check_still
from liftbridge_broker.node.scheduling.steps import STEP, in_steps
from liftbridge_broker.storage.log import lookup
from liftbridge_broker.wire.listed import mapping, with_lists
from liftbridge_proto.ext.v1 import data_pb2

WAIT_MS_MAX: Final = 30_000

STREAM_COUNT_MAX: Final = 10_000
"""Maximum number of streams in an `AwaitNews` request; clients send several for more streams."""

PARTITIONS_A_SUBSCRIPTION: Final = 10
"""Number of partitions in a wait that cost about as much as one subscription."""

NEWS_COUNT_MAX: Final = 1_000
"""Maximum number of streams in an answer, because a look-up that fails raises an error."""


_BOUNDS: Final = with_lists(data_pb2.PartitionBoundsRequest)
_NEWS: Final = with_lists(data_pb2.AwaitNewsRequest)


class BoundsService:
    """Reports all named partitions or fails; without names, those that this broker serves."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def bounds(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `PartitionBounds`."""
        request = decode(call, _BOUNDS, raw)
        if request is None:
            return
        _check_wait(request.wait_ms)
        check_named("partitions", len(request.partitions))
        check_named("known_high_watermarks", len(request.known_high_watermarks))
        yield
        marks = mapping(request.known_high_watermarks)
        yield
        asked = yield from self._asked(request)
        known = {one: marks.get(one.number, -1) for one in asked}
        answer = partial(self._answer, call, request)
        if not request.wait_ms or not known or _has_passed(known.items()):
            yield from answer()
        else:
            wait = _Wait(self._context, call, len(known), request.wait_ms, answer)
            yield from wait.watch(known.items(), reads_replica=request.read_replica)

    def await_news(self, call: Call, raw: bytes) -> Iterator[None]:
        """Serve `AwaitNews`."""
        request = decode(call, _NEWS, raw)
        if request is None:
            return
        _check_wait(request.wait_ms)
        if len(request.streams) > STREAM_COUNT_MAX:
            raise InvalidRequestError(
                f"streams: {len(request.streams)} listed, at most {STREAM_COUNT_MAX}"
            )
        yield
        news, known = yield from self._news(call, request)
        if not request.wait_ms or not known or news:
            _reply_news(call, news)
        else:
            answer = partial(self._answer_again, call, request)
            wait = _Wait(self._context, call, len(known), request.wait_ms, answer)
            yield from wait.watch(known.items(), reads_replica=request.read_replica)

    def _answer_again(self, call: Call, request: data_pb2.AwaitNewsRequest) -> Iterator[None]:
        news, _ = yield from self._news(call, request)
        _reply_news(call, news)

    def _news(
        self, call: Call, request: data_pb2.AwaitNewsRequest
    ) -> Generator[None, None, tuple[list[str], dict[Partition, int]]]:
        """Return streams that may have news, perhaps not all; else the partitions to watch.

        Streams that the caller may not see have news, like those that do not exist.
        """
        node, shows = self._context.node, self._context.access.shows
        find = node.find_replica if request.read_replica else node.find_led
        news: list[str] = []
        quiet: dict[Partition, int] = {}
        # Of entries with the same name, the last counts.
        streams = {stream.name: stream.high_watermarks for stream in request.streams}
        check_named("high_watermarks", sum(map(len, streams.values())))
        yield
        for name, known in streams.items():
            if len(news) == NEWS_COUNT_MAX:
                break
            asked: dict[Partition, int] = {}
            try:
                if not shows(call.principal, name):
                    raise NotFoundError(f"no such stream: {name}")
                for number, mark in mapping(known).items():
                    asked[find(name, number)] = mark
                    if len(asked) % STEP == 0:
                        yield
            except LiftbridgeError:
                news.append(name)  # the answer to `PartitionBounds` has the reason
                continue
            finally:
                yield
            if _has_passed(asked.items()):
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
        self, request: data_pb2.PartitionBoundsRequest
    ) -> Generator[None, None, list[Partition]]:
        node, is_replica = self._context.node, request.read_replica
        stream = self._stream(request)
        asked: list[Partition] = []

        def add_named(number: int) -> None:
            find = node.find_replica if is_replica else node.find_led
            asked.append(find(request.stream, number))

        def add_held(number: int) -> None:
            held = node.partitions.get(stream.partitions[number].partition_id)
            if held is not None and (held.is_led or is_replica):
                asked.append(held)

        if request.partitions:
            yield from in_steps(dict.fromkeys(request.partitions), add_named)
        else:
            yield from in_steps(range(len(stream.partitions)), add_held)
        return asked

    def _answer(self, call: Call, request: data_pb2.PartitionBoundsRequest) -> Iterator[None]:
        call.authorize(request)  # the rules may have changed while it waited
        stream_id = self._stream(request).stream_id
        asked = yield from self._asked(request)
        yield from _Bounds(self._context, call, request, asked, stream_id).ask()


def _check_wait(wait_ms: int) -> None:
    if not 0 <= wait_ms <= WAIT_MS_MAX:
        raise InvalidRequestError(f"wait_ms {wait_ms}: must be 0 to {WAIT_MS_MAX}")


def _reply_news(call: Call, news: list[str]) -> None:
    call.reply(data_pb2.AwaitNewsResponse(streams=news).SerializeToString())


def _has_passed(known: Iterable[tuple[Partition, int]]) -> bool:
    """Return whether this broker knows of more committed records than a client does."""
    return any(one.log.high_watermark > mark for one, mark in known)


class _Watch:
    """One partition of a wait; ends like a subscription (`node.partition.roles.Subscriber`)."""

    def __init__(
        self, partition: Partition, known: int, end: Callable[[], None], *, reads_replica: bool
    ) -> None:
        self._partition = partition
        self._end = end
        self.next_offset = Offset(max(0, known))
        self.reads_replica = reads_replica
        partition.readers.attach(self)
        partition.readers.wait_for_data(self._look)

    def _look(self) -> None:
        if self._partition.log.high_watermark > self.next_offset:
            self._end()
        else:
            self._partition.readers.wait_for_data(self._look)

    def on_closed(self, _error: LiftbridgeError) -> None:
        """End the wait: this broker no longer serves the partition.

        The next request gets the reason.
        """
        self._end()

    def close(self) -> None:
        """Stop waiting.

        A wait does not count as use of the partition, which may still be paused.
        """
        self._partition.readers.stop_waiting(self._look)
        self._partition.readers.detach(self)


class _Wait:
    """A call that waits until one of its partitions grows beyond what the client knows.

    While it waits, it counts against `subscriptions.max`, once for each `PARTITIONS_A_SUBSCRIPTION`
    partitions. One append may end ten thousand waits, and one wait may have as many partitions. So
    waits are answered and removed in the turns of clients.
    """

    def __init__(
        self,
        context: Context,
        call: Call,
        count: int,
        wait_ms: int,
        answer: Callable[[], Iterator[None]],
    ) -> None:
        self._weight = -(-count // PARTITIONS_A_SUBSCRIPTION)
        context.take_subscription(call, self._weight)
        self._context = context
        self._call = call
        self._answer = answer
        self._watches: list[_Watch] = []
        self._is_over = False
        self._end = context.in_turn(call, self._over)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(wait_ms / 1_000, self._end)
        call.on_cancel = self._stop

    def watch(
        self, known: Iterable[tuple[Partition, int]], *, reads_replica: bool
    ) -> Iterator[None]:
        """Start to wait; a partition that has already grown ends the wait."""
        for number, (partition, mark) in enumerate(known, 1):
            self._watches.append(_Watch(partition, mark, self._end, reads_replica=reads_replica))
            if partition.log.high_watermark > mark:
                self._end()  # it has grown since it was found
            if self._is_over:
                return
            if number % STEP == 0:
                yield

    def _over(self) -> None:
        """Answer that there may be news, or that the time has passed."""
        if not self._is_over:
            self._stop()
            self._call.on_cancel = _nothing
            self._call.go_on(self._answer())

    def _stop(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._context.do_later(self._forget())

    def _forget(self) -> Iterator[None]:
        yield from in_steps(self._watches, _Watch.close)
        self._context.release_subscription(self._call, self._weight)


def _nothing() -> None:
    """No-op: the wait has ended."""


class _Bounds:
    """An answer, sent once all its partitions may be reported."""

    def __init__(
        self,
        context: Context,
        call: Call,
        request: data_pb2.PartitionBoundsRequest,
        asked: list[Partition],
        stream_id: int,
    ) -> None:
        self._context = context
        self._call = call
        self._request = request
        self._asked = asked
        self._stream_id = stream_id
        self._open_count = len(asked)
        self._confirmed: dict[Partition, Offset] = {}

    def ask(self) -> Iterator[None]:
        """Query every partition; they share one confirmation by the metadata group."""
        if not self._asked:
            self._call.reply(data_pb2.PartitionBoundsResponse().SerializeToString())
        yield from in_steps(self._asked, self._ask)

    def _ask(self, partition: Partition) -> None:
        answered = partial(self._answered, partition)
        as_replica = self._request.read_replica
        self._context.ask(self._call, partition, Question.END, answered, as_replica=as_replica)

    def _answered(self, partition: Partition, error: LiftbridgeError | None) -> None:
        self._open_count -= 1
        is_elsewhere = isinstance(error, NotLeaderError) and not self._request.partitions
        if error is None:
            self._confirmed[partition] = partition.log.high_watermark
        elif not is_elsewhere:
            refuse(self._call, error)
        if self._open_count == 0:
            self._call.go_on(self._fill())

    def _fill(self) -> Iterator[None]:
        """Report each partition; in steps, because reading a log may take a while."""
        request, found = self._request, data_pb2.PartitionBoundsResponse()
        timestamp = request.timestamp if request.HasField("timestamp") else None
        for partition in self._asked:
            seen = self._confirmed.get(partition)
            if seen is not None:
                check_still(partition, seen, as_replica=request.read_replica)
                unclean_epoch = self._context.node.state.unclean_epoch(partition.partition_id)
                target = found.partitions.add(
                    stream_id=self._stream_id, unclean_epoch=unclean_epoch
                )
                _fill_bounds(partition, timestamp, target)
                yield
        self._call.reply(found.SerializeToString())


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
        # An uncommitted record may still be replaced.
        found = lookup.offset_for_timestamp(log, timestamp)
        target.timestamp_offset = min(found, log.high_watermark)  # guard A.time
    target.first_timestamp = lookup.first_timestamp(log) or 0
    target.last_timestamp = lookup.last_timestamp(log) or 0
