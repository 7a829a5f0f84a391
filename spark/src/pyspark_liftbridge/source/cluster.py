"""Requests of a query to brokers: partitions and their bounds.

An original server does not report bounds; then they are derived from metadata and from the first
message of a subscription, one partition after another.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar

from liftbridge_client import (
    InvalidRequestError,
    NotFoundError,
    RetriableError,
    Start,
    Stop,
    StreamInfo,
    SyncClient,
    SyncStream,
    TlsFiles,
    Token,
    connect_sync,
)
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import Connection, OptionError, SourceOptions, Subscription
from pyspark_liftbridge.plan.places import Bounds, Known
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.units import MICROSECOND_NS

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_CALL_MIN: Final = timedelta(seconds=1)
_CALL_MAX: Final = timedelta(seconds=5)
"""Limit for a single call: at most the limit for all calls, unless that is too short."""

_Answer = TypeVar("_Answer")

_clients: Final[dict[tuple[int, Connection, int, bool], SyncClient]] = {}


class PausedError(RuntimeError):
    """A partition is paused, and the query may not resume it."""


def client_of(connection: Connection, retry_ns: int, *, is_plain: bool = False) -> SyncClient:
    """Return this process's client for a connection, created on first use and kept.

    Spark forks its workers and uses each for many tasks; a client does not survive a fork.

    Args:
        connection: Brokers and files.
        retry_ns: Retry time of the client.
        is_plain: Whether it makes only calls of the original server.

    Raises:
        LiftbridgeError: No broker answers within the retry time.
    """
    key = (os.getpid(), connection, retry_ns, is_plain)
    client = _clients.get(key)
    if client is None:
        ca, cert, secret = (
            Path(path) if path else None
            for path in (connection.ca, connection.cert, connection.key)
        )
        client = connect_sync(
            ",".join(connection.servers),
            tls=TlsFiles(ca=ca, cert=cert, key=secret) if ca or cert else None,
            token=Token(file=Path(connection.token_file)) if connection.token_file else None,
            retry_time=(retry_time := timedelta(microseconds=retry_ns // MICROSECOND_NS)),
            timeout=min(_CALL_MAX, max(_CALL_MIN, retry_time)),
        )
        client.__enter__()
        client.has_data &= not is_plain
        _clients[key] = client
    return client


def ask(options: SourceOptions, question: Callable[[SyncClient], _Answer]) -> _Answer:
    """Call brokers while a query is planned.

    Retries `fetch.retries` times while no broker can answer, all within `fetch.timeout`.

    Raises:
        OptionError: The stream or partition does not exist.
        LiftbridgeError: No broker answers.
    """
    for left in range(options.fetch.retries, -1, -1):
        try:
            return question(planner_of(options))
        except RetriableError:
            if not left:
                raise
    raise AssertionError("the last answer is given or raised")


def planner_of(options: SourceOptions) -> SyncClient:
    """Return the client that plans a query.

    Raises:
        LiftbridgeError: No broker answers.
    """
    return client_of(options.connection, options.fetch.timeout_ns // (options.fetch.retries + 1))


def bounds_at_start(
    client: SyncClient, options: SourceOptions, *, running: Collection[str] | None = None
) -> Bounds:
    """Fetch the bounds of all partitions of a starting query, after resuming paused ones.

    Args:
        client: Client for the requests.
        options: Options of the query.
        running: As for `partitions_of`.

    Raises:
        OptionError: A stream, a partition or the encoding does not exist.
        PausedError: A partition is paused and must not be resumed.
        LiftbridgeError: No broker answers.
    """
    if options.fetch.encoding == "raw" and not client.has_data:
        raise OptionError(
            "option 'fetch.encoding': raw needs brokers of this project; subscribe works with all"
        )
    wanted = partitions_of(client, options.subscription, running=running)
    for name, info in streams_of(client).items():
        for number in wanted.get(name, ()):
            if info.partitions[number].paused:
                _resume(client, PartitionId(name, number), options)
    return bounds_of(client, wanted, options)


def _resume(client: SyncClient, partition: PartitionId, options: SourceOptions) -> None:
    """Resume a paused partition by a subscription, the only call that does so."""
    if not options.fetch.resumes:
        raise _paused(partition)
    stream = client.streams.get(partition.stream)
    _first(stream, partition.number, Start.earliest(), 0, resume=True)


def check_not_paused(client: SyncClient, partition: PartitionId, cause: Exception) -> None:
    """Raise a more specific error if a refusal was caused by a paused partition.

    Raises:
        PausedError: The partition is paused.
    """
    stream = streams_of(client).get(partition.stream)
    if stream is not None and stream.partitions[partition.number].paused:
        raise _paused(partition) from cause


def _paused(partition: PartitionId) -> PausedError:
    where = f"{partition.stream}/{partition.number}"
    return PausedError(f"partition {where} is paused; set resume=true to resume it")


def streams_of(client: SyncClient) -> Mapping[str, StreamInfo]:
    """Fetch all streams by name.

    Raises:
        LiftbridgeError: The brokers do not answer.
    """
    return {info.name: info for info in client.streams.list()}


def partitions_of(
    client: SyncClient,
    wanted: Subscription,
    *,
    running: Collection[str] | None = None,
    there: Mapping[str, StreamInfo] | None = None,
) -> Mapping[str, tuple[int, ...]]:
    """List the partitions of a query by stream.

    Args:
        client: Client for the requests.
        wanted: Streams or partitions to read.
        running: Streams that the query started with, `None` before the start. Before the start,
            named streams and partitions must exist; later, they may be deleted.
        there: All streams, `None` to fetch them.

    Raises:
        OptionError: A named stream or partition does not exist.
        LiftbridgeError: The brokers do not answer.
    """
    there = streams_of(client) if there is None else there
    if wanted.pattern is None:
        names = set(wanted.streams or wanted.partitions or ())
    else:
        names = {name for name in there if wanted.pattern.fullmatch(name)} | set(running or ())
    partitions: dict[str, tuple[int, ...]] = {}
    for name in sorted(name for name in names if not name.startswith("__")):
        try:
            # The broker that answered may lag behind another broker.
            info = there.get(name) or client.streams.get(name).info()
        except NotFoundError:
            if running is None:
                raise OptionError(f"stream {name} does not exist") from None
            continue
        partitions[name] = _numbers(info, wanted, may_lack=running is not None)
    return partitions


def _numbers(info: StreamInfo, wanted: Subscription, *, may_lack: bool) -> tuple[int, ...]:
    there = tuple(sorted(info.partitions))
    if wanted.partitions is None:
        return there
    named = wanted.partitions[info.name]
    lacking = [str(number) for number in named if number not in there]
    if lacking and not may_lack:
        raise OptionError(
            f"option 'assign': stream {info.name} has no partition {', '.join(lacking)}; "
            f"it has 0 to {max(there)}"
        )
    return tuple(number for number in named if number in there)


def bounds_of(
    client: SyncClient, partitions: Mapping[str, tuple[int, ...]], options: SourceOptions
) -> Bounds:
    """Fetch the bounds of partitions.

    Raises:
        LiftbridgeError: A stream was deleted, or no broker can answer for a partition.
    """
    return {
        PartitionId(name, number): known
        for name, numbers in partitions.items()
        for number, known in _bounds(client.streams.get(name), numbers, client, options)
    }


def _bounds(
    stream: SyncStream, numbers: tuple[int, ...], client: SyncClient, options: SourceOptions
) -> Iterator[tuple[int, Known]]:
    if client.has_data:
        # Compare an archive with the leader's log: a follower may not have truncated its own yet.
        read_replica = options.fetch.read_replica and options.archive is None
        for one in stream.bounds(*numbers, read_replica=read_replica):
            known = Known(one.stream_id, one.log_start, one.high_watermark, one.bytes)
            if not read_replica:
                known = known._replace(unclean_epoch=one.unclean_epoch, epochs=one.epochs)
            yield one.partition, known
        return
    # The creation time distinguishes a stream from another stream of the same name.
    stream_id = (stream.info().created - _EPOCH) // _MICROSECOND
    for number in numbers:
        latest = stream.partition_info(number).high_watermark + 1
        yield number, Known(stream_id, _first(stream, number, Start.earliest(), latest), latest, 0)


def _first(
    stream: SyncStream, number: int, start: Start, latest: int, *, resume: bool = False
) -> int:
    """Find the offset of the first message from a position on, at most `latest`."""
    try:
        reading = stream.subscribe(partition=number, start=start, stop=Stop.latest(), resume=resume)
        return next((min(message.offset, latest) for message in reading), latest)
    except InvalidRequestError:
        return latest  # the subscription would start after its end


def known_of(client: SyncClient, wanted: Range, options: SourceOptions) -> Known:
    """Fetch the bounds of a range's partition, from the stream that has the name now.

    Raises:
        NotFoundError: No stream has the name.
        LiftbridgeError: As `bounds_of`.
    """
    bounds = bounds_of(client, {wanted.stream: (wanted.partition,)}, options)
    return bounds[PartitionId(wanted.stream, wanted.partition)]


def offsets_by_time(
    client: SyncClient, times: Mapping[PartitionId, int]
) -> Mapping[PartitionId, int]:
    """Look up the first record at or after a time (Unix nanoseconds), by partition.

    Raises:
        LiftbridgeError: As `bounds_of`.
    """
    alike: dict[tuple[str, int], list[int]] = {}
    for one, time_ns in times.items():
        alike.setdefault((one.stream, time_ns), []).append(one.number)
    offsets: dict[PartitionId, int] = {}
    for (name, time_ns), numbers in alike.items():
        stream, time = (
            client.streams.get(name),
            _EPOCH + _MICROSECOND * (time_ns // MICROSECOND_NS),
        )
        if client.has_data:
            for bounds in stream.bounds(*numbers, time=time):
                assert bounds.timestamp_offset is not None
                offsets[PartitionId(name, bounds.partition)] = bounds.timestamp_offset
            continue
        for number in numbers:
            latest = stream.partition_info(number).high_watermark + 1
            offsets[PartitionId(name, number)] = _first(stream, number, Start.time(time), latest)
    return offsets
