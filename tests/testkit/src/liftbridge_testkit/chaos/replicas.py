"""Reads the disks of stopped brokers: every record of a partition, replica by replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftbridge_broker.adapters.disk.offline import METADATA_NAMES, reading
from liftbridge_broker.logformat.batch import HEADER_SIZE
from liftbridge_broker.logformat.frames import decode_frame, iter_frames
from liftbridge_broker.model.ids import PartitionNumber, StreamId, partition_id
from liftbridge_broker.storage.log.scan import LogFile, scan_batches
from liftbridge_broker.storage.offline import inspect
from liftbridge_testkit.checker import VIOLATIONS_MAX, Stored, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from liftbridge_broker.model.ids import Offset, PartitionId
    from liftbridge_broker.ports.files import Files

PROMISE: Final = "replicas"


class ReplicaRecord(NamedTuple):
    """One record of one replica.

    Attributes:
        offset: Its offset.
        leader_epoch: Epoch of the batch it is in.
        frame: Its bytes as stored.
        value: Its value.
    """

    offset: int
    leader_epoch: int
    frame: bytes
    value: bytes


def read_replicas(directories: Mapping[str, Path], stream: str) -> dict[str, list[ReplicaRecord]]:
    """Return every record of partition 0 of a stream, by broker, of the brokers that have it.

    Raises:
        CorruptionError: A log is damaged.
        FilesError: A broker still runs.
    """
    found = {}
    for name, directory in directories.items():
        with reading(directory) as files:
            for log in inspect(files, METADATA_NAMES).logs:
                if log.stream == stream and log.partition == 0:
                    partition = partition_id(StreamId(log.stream_id), PartitionNumber(0))
                    paths = [(segment.path, segment.base) for segment in log.segments]
                    found[name] = [
                        record
                        for path, base in paths
                        for record in _records(files, partition, path, base)
                    ]
    return found


def _records(
    files: Files, partition: PartitionId, path: str, base: Offset
) -> Iterator[ReplicaRecord]:
    handle = files.open(path)
    try:
        file = LogFile(files, handle, path, partition, files.size(handle))
        for position, header in scan_batches(file, start=0, base_offset=base, verified=True):
            batch = file.read(position, header.size)
            for at, end, offset in iter_frames(batch, HEADER_SIZE, header.size):
                value = decode_frame(batch, at, end).value
                yield ReplicaRecord(offset, header.leader_epoch, batch[at:end], value)
    finally:
        files.close(handle)


def check_replicas(replicas: Mapping[str, Sequence[ReplicaRecord]], count: int) -> list[Violation]:
    """Return violations for differences between the replicas, and for missing replicas.

    Args:
        replicas: Result of `read_replicas`, after everything was in sync and stopped.
        count: Replicas there must be.
    """
    found = []
    if len(replicas) < count:
        found.append(Violation(PROMISE, f"only {sorted(replicas)} hold one of {count} replicas"))
    names = sorted(replicas, key=lambda name: -len(replicas[name]))
    if not names:
        return found
    longest = replicas[names[0]]
    for name in names[1:]:
        records = replicas[name]
        if len(records) != len(longest):
            text = f"{name} holds {len(records)} records, {names[0]} {len(longest)}"
            found.append(Violation(PROMISE, text))
        for one, other in zip(longest, records, strict=False):
            if one != other:
                text = f"{names[0]} has {_shown(one)} where {name} has {_shown(other)}"
                found.append(Violation(PROMISE, text))
                break
    return found[:VIOLATIONS_MAX]


def stored(records: Sequence[ReplicaRecord]) -> list[Stored]:
    """Return the records of a replica as a reader would see them."""
    return [Stored(record.offset, record.value) for record in records]


def _shown(record: ReplicaRecord) -> str:
    return f"offset {record.offset} of epoch {record.leader_epoch}, {record.value[:24]!r}"
