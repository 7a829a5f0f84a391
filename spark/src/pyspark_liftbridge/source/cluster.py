"""What a query asks of brokers: which partitions there are, and where they begin and end."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from liftbridge_client import NotFoundError, SyncClient, TlsFiles, connect_sync
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import Connection, OptionError, SourceOptions, Subscription
from pyspark_liftbridge.plan.places import Bounds, Known

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MICROSECOND_NS: Final = 1_000

_clients: Final[dict[tuple[int, Connection, int], SyncClient]] = {}


def client_of(connection: Connection, retry_ns: int) -> SyncClient:
    """The client of this process for a connection, made on first use and kept.

    Spark forks its workers and uses each for many tasks; a client does not survive a fork.

    Args:
        connection: Brokers and files.
        retry_ns: How long it tries to find a broker that can serve.

    Raises:
        LiftbridgeError: No broker answers in that time.
    """
    key = (os.getpid(), connection, retry_ns)
    client = _clients.get(key)
    if client is None:
        ca, cert, secret = (
            Path(path) if path else None
            for path in (connection.ca, connection.cert, connection.key)
        )
        tls = TlsFiles(ca=ca, cert=cert, key=secret) if ca or cert else None
        retry_time = timedelta(microseconds=retry_ns // _MICROSECOND_NS)
        client = connect_sync(",".join(connection.servers), tls=tls, retry_time=retry_time)
        client.__enter__()
        _clients[key] = client
    return client


def partitions_of(client: SyncClient, wanted: Subscription) -> Mapping[str, tuple[int, ...]]:
    """Partitions of a query by stream.

    Raises:
        OptionError: A stream or partition that is named does not exist.
        LiftbridgeError: The brokers do not tell.
    """
    if wanted.pattern is not None:
        found = {
            info.name: tuple(sorted(info.partitions))
            for info in client.streams.list()
            if wanted.pattern.fullmatch(info.name) and not info.name.startswith("__")
        }
        return dict(sorted(found.items()))
    names = wanted.streams if wanted.partitions is None else tuple(wanted.partitions)
    assert names is not None
    return {name: _numbers(client, name, wanted) for name in sorted(names)}


def _numbers(client: SyncClient, name: str, wanted: Subscription) -> tuple[int, ...]:
    try:
        there = client.streams.get(name).info().partitions
    except NotFoundError:
        raise OptionError(f"stream {name} does not exist") from None
    if wanted.partitions is None:
        return tuple(sorted(there))
    lacking = [number for number in wanted.partitions[name] if number not in there]
    if lacking:
        raise OptionError(
            f"option 'assign': stream {name} has no partition "
            f"{', '.join(map(str, lacking))}; it has 0 to {max(there)}"
        )
    return wanted.partitions[name]


def bounds_of(
    client: SyncClient, partitions: Mapping[str, tuple[int, ...]], options: SourceOptions
) -> Bounds:
    """Bounds of partitions.

    Raises:
        LiftbridgeError: A stream is gone, or a partition has nobody who tells.
    """
    found: dict[PartitionId, Known] = {}
    for name, numbers in partitions.items():
        stream = client.streams.get(name)
        for one in stream.bounds(*numbers, read_replica=options.fetch.read_replica):
            found[PartitionId(name, one.partition)] = Known(
                one.stream_id, one.log_start, one.high_watermark, one.bytes
            )
    return found


def offsets_by_time(
    client: SyncClient, times: Mapping[PartitionId, int]
) -> Mapping[PartitionId, int]:
    """Offset of the first record at or after a time (Unix nanoseconds), by partition.

    Raises:
        LiftbridgeError: As `bounds_of`.
    """
    alike: dict[tuple[str, int], list[int]] = {}
    for one, time_ns in times.items():
        alike.setdefault((one.stream, time_ns), []).append(one.number)
    found: dict[PartitionId, int] = {}
    for (name, time_ns), numbers in alike.items():
        time = _EPOCH + timedelta(microseconds=time_ns // _MICROSECOND_NS)
        for bounds in client.streams.get(name).bounds(*numbers, time=time):
            assert bounds.timestamp_offset is not None
            found[PartitionId(name, bounds.partition)] = bounds.timestamp_offset
    return found
