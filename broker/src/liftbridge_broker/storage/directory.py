"""The layout of a data directory: its entries, their names, and unknown entries.

    identity            small file: id of this directory, id of the broker it belongs to
    clean               small file, only while no broker runs after a clean shutdown
    known               small file: metadata index whose fsync policies the logs' writer applied
    journal             small state of all partitions (journal.py)
    reserve             space set aside for a full disk (reserve.py)
    retired             small file, once its broker left the cluster permanently (retirement.py)
    streams/<stream id, 10 hex digits>-<name for people>/<partition>/   one log (log.py)
    trash/<partition id, 16 hex digits>-<wall clock ns, 20 digits>/     deleted logs and segments

A stream is found by its id; the name after it is for people, and no external text becomes a path
without encoding. Unknown entries are reported and never changed (storage policy 9).
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from liftbridge_broker.model.ids import (
    PARTITION_NUMBER_BITS,
    BrokerId,
    MetadataIndex,
    PartitionId,
    PartitionNumber,
    StreamId,
    StreamName,
    number_of,
    partition_id,
    stream_of,
)
from liftbridge_broker.ports.files import Files
from liftbridge_broker.storage.journal import JournalStamp
from liftbridge_broker.storage.smallfile import (
    forget_previous,
    read_small_file,
    remove_small_file,
    write_small_file,
)

IDENTITY: Final = "identity"
CLEAN: Final = "clean"
KNOWN: Final = "known"
JOURNAL: Final = "journal"
RESERVE: Final = "reserve"
RETIRED: Final = "retired"
STREAMS: Final = "streams"
TRASH: Final = "trash"
LOCK: Final = ".lock"
_KNOWN: Final = frozenset((IDENTITY, CLEAN, KNOWN, JOURNAL, RESERVE, RETIRED, STREAMS, TRASH, LOCK))
_SUFFIXES: Final = (".new", ".previous", ".damaged")
_STREAM: Final = re.compile(r"([0-9a-f]{10})-[A-Za-z0-9_.-]*")
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,7}")
_TRASHED: Final = re.compile(r"([0-9a-f]{16})-([0-9]{20})")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")
_READABLE_NAME_MAX: Final = 80


class Identity(NamedTuple):
    """Identity of a data directory.

    Attributes:
        data_dir_id: Random, created once for the directory; a different one means another disk.
        broker_id: Broker the directory belongs to.
    """

    data_dir_id: str
    broker_id: BrokerId


class CleanMarker(NamedTuple):
    """Written last in a clean shutdown.

    Attributes:
        broker_epoch: Epoch of the broker that stopped.
        journal: Stamp of the journal at that time; a marker with the stamp of another journal is
            outdated.
    """

    broker_epoch: int
    journal: JournalStamp


class Trashed(NamedTuple):
    """A deleted log, or segments that a log dropped, waiting for the purge."""

    path: str
    partition: PartitionId
    deleted_wall_ns: int


class DataDirectory:
    """Names and places in one data directory.

    Attributes:
        identity: Identity of the directory.
        is_identity_new: Whether this start created the identity: the directory was empty, or its
            identity was unreadable and it counts as another disk from now on.
        unknown: Paths that no part of the broker created, sorted; they are never changed.
    """

    def __init__(
        self, files: Files, identity: Identity, *, is_identity_new: bool, unknown: tuple[str, ...]
    ) -> None:
        self._files = files
        self.identity = identity
        self.is_identity_new = is_identity_new
        self.unknown = unknown
        self._streams: dict[StreamId, str] = {}
        self._partitions: dict[PartitionId, str] = {}
        self._unused: set[PartitionId] = set()

    @classmethod
    def open(cls, files: Files, fresh: Identity, known: Iterable[str] = ()) -> Self:
        """Read the layout, and create what is missing.

        Args:
            files: The data directory.
            fresh: Identity to write if there is no readable identity; a stored identity takes
                precedence.
            known: Further names in the root that belong to the caller.

        Raises:
            FilesError: The disk failed; the state of the directory is unknown.
        """
        stored = read_identity(files)
        if stored is None:
            write_identity(files, fresh)
        for name in (STREAMS, TRASH):
            files.make_directory(name)
        # A killed process may have left names that are visible and not durable.
        files.sync_directory("")
        files.sync_directory(STREAMS)
        directory = cls(files, stored or fresh, is_identity_new=stored is None, unknown=())
        directory._find(known)
        for path in directory._streams.values():
            files.sync_directory(path)
        return directory

    @classmethod
    def look(cls, files: Files, known: Iterable[str] = ()) -> Self:
        """Read the layout without changes, for tools; an unreadable identity is empty.

        Raises:
            FilesError: The disk failed to read.
        """
        stored = read_identity(files)
        nobody = Identity("", BrokerId(""))
        directory = cls(files, stored or nobody, is_identity_new=stored is None, unknown=())
        directory._find(known)
        return directory

    def logs(self) -> dict[PartitionId, str]:
        """Return the paths of the logs in the directory."""
        return dict(self._partitions)

    def log_path(self, partition: PartitionId) -> str | None:
        """Return the path of the log of a partition, `None` if it has no log."""
        return self._partitions.get(partition)

    def make_log(self, partition: PartitionId, name: StreamName) -> str:
        """Return the path of the log of a partition.

        Create its directory durably, unless it exists.

        Raises:
            FilesError: The directory may exist or not.
        """
        self.make_logs((partition,), name)
        self._unused.discard(partition)
        return self._partitions[partition]

    def is_unused(self, partition: PartitionId) -> bool:
        """Return whether a partition has no log, or only a directory that was not requested yet."""
        return partition in self._unused or partition not in self._partitions

    def make_logs(self, partitions: Sequence[PartitionId], name: StreamName) -> None:
        """Create missing directories of logs of one stream, durably.

        Raises:
            FilesError: Each directory may exist or not.
        """
        missing = [partition for partition in partitions if partition not in self._partitions]
        if not missing:
            return
        stream_path = self._make_stream(stream_of(missing[0]), name)
        paths = {one: f"{stream_path}/{number_of(one)}" for one in missing}
        for path in paths.values():
            self._files.make_directory(path)
        self._files.sync_directory(stream_path)
        self._partitions.update(paths)
        self._unused.update(paths)

    def _make_stream(self, stream: StreamId, name: StreamName) -> str:
        stream_path = self._streams.get(stream)
        if stream_path is None:
            readable = _UNSAFE.sub("_", name)[:_READABLE_NAME_MAX]
            stream_path = f"{STREAMS}/{stream:010x}-{readable}"
            self._files.make_directory(stream_path)
            self._files.sync_directory(STREAMS)
            self._streams[stream] = stream_path
        return stream_path

    def trash_logs(self, partitions: Sequence[PartitionId], wall_ns: int) -> list[Trashed]:
        """Move the logs of partitions to the trash, durably; those without a log are skipped.

        Their files must be closed.

        Raises:
            FilesError: Each log is in one of the two places.
        """
        found = [partition for partition in partitions if partition in self._partitions]
        trashed = [self._trashed(one, wall_ns) for one in found]
        for entry in trashed:
            self._files.rename(self._partitions[entry.partition], entry.path)
        if trashed:
            self._files.sync_directory(TRASH)
        streams = {stream_of(one): self._partitions.pop(one).rpartition("/")[0] for one in found}
        self._unused.difference_update(found)
        for stream, path in streams.items():
            self._files.sync_directory(path)
            if not self._files.list(path):
                self._files.remove(path)
                self._files.sync_directory(STREAMS)
                self._streams.pop(stream, None)
        return trashed

    def trash_files(self, partition: PartitionId, paths: Sequence[str], wall_ns: int) -> Trashed:
        """Move files that a log no longer needs to the trash.

        Not durable on its own: after a power cut they may be back in the former place, where they
        are obsolete.

        Raises:
            FilesError: Each file is in one of the two places.
        """
        trashed = self._trashed(partition, wall_ns)
        self._files.make_directory(trashed.path)
        for path in paths:
            self._files.rename(path, f"{trashed.path}/{path.rpartition('/')[2]}")
        return trashed

    def _trashed(self, partition: PartitionId, wall_ns: int) -> Trashed:
        """Return a free name in the trash."""
        while self._files.exists(target := f"{TRASH}/{partition:016x}-{wall_ns:020d}"):
            wall_ns += 1
        return Trashed(target, partition, wall_ns)

    def trash(self) -> tuple[Trashed, ...]:
        """Return the entries of the trash, the earliest deletion first."""
        trashed = [
            Trashed(f"{TRASH}/{name}", PartitionId(int(match[1], 16)), int(match[2]))
            for name in self._files.list(TRASH)
            if (match := _TRASHED.fullmatch(name))
        ]
        return tuple(sorted(trashed, key=lambda log: (log.deleted_wall_ns, log.path)))

    def read_clean_marker(self) -> CleanMarker | None:
        """Read the marker of a clean shutdown, `None` if there is no trustworthy marker."""
        data = read_small_file(self._files, CLEAN)
        # A marker has one version only; an older version was left by another program.
        return None if data is None or data.is_previous else _decode_marker(data.payload)

    def write_clean_marker(self, marker: CleanMarker) -> None:
        """Write the clean marker durably: everything is synced and closed.

        Last step of a shutdown.
        """
        payload = {
            "broker_epoch": marker.broker_epoch,
            "journal_generation": marker.journal.generation,
            "journal_length": marker.journal.length,
        }
        write_small_file(self._files, CLEAN, json.dumps(payload).encode())

    def remove_clean_marker(self) -> None:
        """Remove the marker durably; must return before the first append (C1)."""
        remove_small_file(self._files, CLEAN)

    def _find(self, known: Iterable[str]) -> None:
        """Fill the tables, and list unknown entries."""
        ours = _KNOWN.union(known)
        unknown = [name for name in self._files.list("") if _base(name) not in ours]
        unknown += self._find_logs()
        unknown += [
            f"{TRASH}/{name}" for name in self._files.list(TRASH) if not _TRASHED.fullmatch(name)
        ]
        self.unknown = tuple(sorted(unknown))

    def _find_logs(self) -> list[str]:
        """Fill the tables of streams and partitions; return entries that do not belong in them."""
        unknown = []
        for name in self._files.list(STREAMS):
            path = f"{STREAMS}/{name}"
            match = _STREAM.fullmatch(name)
            stream = StreamId(int(match[1], 16)) if match else StreamId(0)
            if not stream or stream in self._streams:
                unknown.append(path)
                continue
            self._streams[stream] = path
            for number in self._files.list(path):
                place = f"{path}/{number}"
                if _PARTITION.fullmatch(number) and int(number) < 1 << PARTITION_NUMBER_BITS:
                    key = partition_id(stream, PartitionNumber(int(number)))
                    self._partitions[key] = place
                else:
                    unknown.append(place)
        return unknown


def _base(name: str) -> str:
    """Return a name without the suffix for versions of small files and of the journal."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def write_identity(files: Files, identity: Identity) -> None:
    """Give a directory this identity, durably, and remove former versions."""
    write_small_file(files, IDENTITY, json.dumps(identity._asdict()).encode())
    forget_previous(files, IDENTITY)


def read_known_index(files: Files, applied_index: MetadataIndex) -> MetadataIndex:
    """Return the metadata index whose fsync policies the previous broker applied; 0 for none.

    At most `applied_index`, because later entries may belong to a discarded history.

    A start that ends before its session may apply more metadata than that broker knew. So may a
    start after a kill between the commit of a change and its effect (C1).

    Raises:
        FilesError: The disk refused.
    """
    data = read_small_file(files, KNOWN)
    if data is None or data.is_previous or not data.payload.isdigit():
        return MetadataIndex(0)
    return min(MetadataIndex(int(data.payload)), applied_index)


def note_known_index(files: Files, applied_index: MetadataIndex) -> None:
    """Record durably that logs are synced by the fsync policies in these metadata.

    Raises:
        FilesError: The note may be lost: the next start then knows an earlier index or none.
    """
    write_small_file(files, KNOWN, b"%d" % applied_index)


def read_identity(files: Files) -> Identity | None:
    """Read the identity of a directory, `None` if it is missing or unreadable."""
    data = read_small_file(files, IDENTITY)
    values = _object(data.payload) if data else {}
    data_dir_id, broker_id = values.get("data_dir_id"), values.get("broker_id")
    if not isinstance(data_dir_id, str) or not isinstance(broker_id, str):
        return None
    return Identity(data_dir_id, BrokerId(broker_id))


def _decode_marker(payload: bytes) -> CleanMarker | None:
    values = _object(payload)
    epoch, generation, length = (
        values.get(key) for key in ("broker_epoch", "journal_generation", "journal_length")
    )
    if not isinstance(epoch, int) or not isinstance(generation, int) or not isinstance(length, int):
        return None
    return CleanMarker(epoch, JournalStamp(generation, length))


def _object(payload: bytes) -> dict[str, object]:
    """Return the JSON object in a payload, empty if it is not an object."""
    try:
        value = json.loads(payload)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
