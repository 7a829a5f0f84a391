"""`recover`: starts a new metadata group from one broker's data when the old group cannot continue.

With a leaked key, or a version that trusted any message, an attacker can raise the terms of a group
so far that its members refuse one another permanently. No broker may run during a recovery. The
directory with the longest good log becomes the only member of a new group; the other brokers get
its snapshot and are admitted again. Entries whose term leaps are not trusted. Partition logs stay
unchanged.

The new group continues at a metadata index far above the old one: stream ids and leader epochs are
such indexes, and those known only to a lost entry must not be assigned again.

Files of the old group stay beside the new ones as `<name>.before-recovery-<number>`. The recovery
swaps them by renaming, and first lists them in the file `recovery`, so that the next run completes
an interrupted run; a broker that is started in between refuses, or finds the old group.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from liftbridge_broker.adapters.disk.files import LocalFiles
from liftbridge_broker.adapters.disk.lock import DirectoryLock
from liftbridge_broker.adapters.disk.offline import reading
from liftbridge_broker.adapters.disk.offline_metadata import METADATA_DIRECTORY, copy_of_metadata
from liftbridge_broker.adapters.memory.files import MemoryFiles
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.errors import CorruptionError, FilesError, InvalidRequestError
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.model.metadata_log import Configuration, HardState, Peer, Snapshot
from liftbridge_broker.node.metadata.consensus import recovered_metadata
from liftbridge_broker.node.metadata.driver import restore
from liftbridge_broker.ports.files import FileEvent, Files
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.raft.types import TERM_LEAP_MAX
from liftbridge_broker.storage.directory import (
    Identity,
    note_known_index,
    read_identity,
    read_known_index,
)
from liftbridge_broker.storage.offline import proven_index
from liftbridge_broker.storage.raft_log.log import RaftLog
from liftbridge_broker.storage.raft_log.snapshots import SUFFIX, read_snapshot, snapshot_of
from liftbridge_broker.storage.retirement import is_retired
from liftbridge_broker.storage.smallfile import (
    SMALL_FILE_BYTES_MAX,
    read_small_file,
    remove_small_file,
    write_small_file,
)
from liftbridge_broker.wire.snapshots import decode_state, encode_state

INDEX_GAP: Final = 1 << 20
"""Number of metadata indexes to skip: more than the entries that only other brokers may have."""

_PLAN: Final = f"{METADATA_DIRECTORY}/recovery"
_NEW: Final = ".recovered"
_ASIDE: Final = ".before-recovery-"


class Recoverable(NamedTuple):
    """Data from which a new group would start.

    Attributes:
        broker: Owner of the directory.
        cluster_id: Its cluster.
        voters: Voters of the group that cannot continue.
        term: Term that the broker has seen.
        last_index: Index of the last entry.
        good_index: Index of the last trusted entry.
        good_term: Its term.
        commit_index: Index up to which entries are known to be committed.
        new_index: Index from which the new group continues.
        streams: Number of streams in it.
        partitions: Number of partitions of these streams.
    """

    broker: str
    cluster_id: str
    voters: tuple[str, ...]
    term: int
    last_index: int
    good_index: int
    good_term: int
    commit_index: int
    new_index: int
    streams: int
    partitions: int


class Found(NamedTuple):
    """Content of a directory, and the snapshot from which the new group starts."""

    report: Recoverable
    snapshot: Snapshot


def recover_lines(root: Path, *, snapshot: Path | None, is_applied: bool, output: str) -> list[str]:
    """Describe what recovery would do, and do it if `is_applied`.

    Args:
        root: The data directory.
        snapshot: Snapshot that another broker recovered; `None` for the first broker.
        is_applied: Whether to recover; otherwise nothing is written.
        output: `table` or `json`.

    Raises:
        FilesError: The directory cannot be used, or a broker runs on it.
        CorruptionError: Its metadata are damaged.
        InvalidRequestError: Another directory or another snapshot is required.
    """
    if not is_applied:
        with reading(root) as files:
            if files.exists(_PLAN):
                raise InvalidRequestError(
                    f"Invalid directory, a recovery of {root} was interrupted: complete it with "
                    "--apply"
                )
            return _lines(find(files, snapshot), root, snapshot, output, path="")
    with _writing(root) as files:
        if files.exists(_PLAN):
            finish(files)
            return [f"Done: the interrupted recovery of {root} is complete."]
        found = find(files, snapshot)
        commit_index = MetadataIndex(found.report.commit_index)
        note_known_index(files, read_known_index(files, commit_index))
        path = apply(files, found.snapshot)
        return _lines(found, root, snapshot, output, path=str(root / path))


@contextmanager
def _writing(root: Path) -> Iterator[LocalFiles]:
    """A data directory to modify, locked as a broker locks it; errors as in `reading`."""
    with reading(root):
        pass  # it is a data directory: no lock file is created in any other
    lock = DirectoryLock(root)
    files = LocalFiles(root, post=_unused, deliver=_unused_events)
    try:
        yield files
    finally:
        files.shut_down()
        lock.release()


def find(files: Files, snapshot: Path | None) -> Found:
    """Return the content of a directory, and the start of the new group; errors as above."""
    identity = _identity(files)
    copy, _ = copy_of_metadata(files)
    log = RaftLog.open(copy, directory=METADATA_DIRECTORY, index_min=proven_index(files))
    good_index, good_term = _good_end(log)
    state, _ = restore(recovered_metadata(log, good_index))
    if not state.cluster_id:
        raise InvalidRequestError("Invalid directory, its broker never belonged to a cluster")
    recoverable = Recoverable(
        broker=identity.broker_id,
        cluster_id=state.cluster_id,
        voters=tuple(peer.broker for peer in log.configuration.voters),
        term=log.hard_state().term,
        last_index=log.last_index,
        good_index=good_index,
        good_term=good_term,
        commit_index=min(log.hard_state().commit, good_index),
        new_index=good_index + INDEX_GAP,
        streams=len(state.streams),
        partitions=state.partition_count,
    )
    if snapshot is not None:
        return _given(recoverable, snapshot)
    me = Configuration((Peer(identity.broker_id, identity.data_dir_id),))
    return Found(recoverable, _moved(state, recoverable.new_index, good_term + 1, me))


def _identity(files: Files) -> Identity:
    identity = read_identity(files)
    if identity is None:
        raise FilesError("the directory does not name its broker")
    if is_retired(files, identity):
        raise InvalidRequestError(
            "Invalid directory, its broker left the cluster and can never vote again"
        )
    return identity


def _good_end(log: RaftLog) -> tuple[int, int]:
    """Return index and term of the last entry before a term that no election can reach."""
    meta = log.snapshot_meta
    index, term = meta.last_index, meta.term
    count = log.last_index - index
    for entry in log.entries(index + 1, log.last_index + 1, 1 << 62) if count else ():
        if entry.term > term + TERM_LEAP_MAX:
            break
        index, term = entry.entry_index, entry.term
    return index, term


def _moved(state: ClusterState, index: int, term: int, members: Configuration) -> Snapshot:
    state.applied_index = MetadataIndex(index)
    return snapshot_of(index, term, members, encode_state(state))


def _given(report: Recoverable, path: Path) -> Found:
    """Read the snapshot that another broker recovered, of the same cluster and not older.

    Raises:
        InvalidRequestError: The snapshot does not match.
        FilesError: The snapshot cannot be read.
    """
    copy = MemoryFiles()
    stem = path.name.removesuffix(SUFFIX)
    try:
        copy.make_directory(METADATA_DIRECTORY)
        with path.open("rb") as file:
            # No snapshot is as long: a truncated one is refused as damaged.
            data = file.read(2 * SMALL_FILE_BYTES_MAX)
        copy.put(f"{METADATA_DIRECTORY}/{path.name}", data)
    except OSError as error:
        raise FilesError(f"cannot read {path}: {error.strerror}") from error
    index = int(stem) if stem.isdecimal() else 0
    found = read_snapshot(copy, METADATA_DIRECTORY, index, EMPTY) if index else None
    if found is None:
        raise InvalidRequestError(
            f"Invalid snapshot, {path} is not a snapshot, or is damaged or renamed"
        )
    state = decode_state(found.state)
    if state.cluster_id != report.cluster_id:
        raise InvalidRequestError(
            f"Invalid snapshot, it belongs to cluster {state.cluster_id}, this directory to "
            f"{report.cluster_id}"
        )
    if len(found.meta.configuration.voters) != 1 or index <= INDEX_GAP:
        # With a snapshot of the old group, a member would vote again in terms that it has seen.
        raise InvalidRequestError(
            f"Invalid snapshot, it is not from a recovery: {path} belongs to the former "
            "group; use the file that the recovery of the first broker named"
        )
    source = found.meta.term - 1, index - INDEX_GAP
    if (report.good_term, report.good_index) > source:
        raise InvalidRequestError(
            f"Invalid snapshot, it covers entries up to {source[1]} of term {source[0]}, and this "
            f"directory has entries up to {report.good_index} of term {report.good_term}: recover "
            "this directory first, and use its snapshot on the other brokers"
        )
    members = state.streams.values()
    return Found(
        report._replace(
            new_index=index,
            streams=len(state.streams),
            partitions=sum(len(stream.partitions) for stream in members),
        ),
        found,
    )


# -- writing --------------------------------------------------------------------------------------


def apply(files: Files, snapshot: Snapshot) -> str:
    """Replace the metadata log, which is set aside, by a new log with a snapshot.

    Returns:
        Path of the snapshot, for the other brokers.

    Raises:
        FilesError: The disk failed; the next run restarts or continues.
    """
    made = _new_files(snapshot)
    old = files.list(METADATA_DIRECTORY)
    number = 1 + max((_number(name) for name in old), default=0)
    for name, data in made.items():
        _write(files, f"{METADATA_DIRECTORY}/{name}{_NEW}", data)
    files.sync_directory(METADATA_DIRECTORY)
    plan = {
        "aside": [name for name in old if _ASIDE not in name and not name.endswith(_NEW)],
        "number": number,
        # The snapshot comes first: a log without it refuses to start.
        "new": sorted(made, key=lambda name: not name.endswith(SUFFIX)),
    }
    write_small_file(files, _PLAN, json.dumps(plan).encode())
    finish(files)
    return f"{METADATA_DIRECTORY}/{next(name for name in made if name.endswith(SUFFIX))}"


def finish(files: Files) -> None:
    """Carry out the plan, or the rest of it."""
    found = read_small_file(files, _PLAN)
    if found is None:
        raise CorruptionError("the recovery plan is damaged", path=_PLAN)
    plan = json.loads(found.payload)
    suffix = f"{_ASIDE}{plan['number']}"
    for name in plan["aside"]:
        path = f"{METADATA_DIRECTORY}/{name}"
        if files.exists(path) and not files.exists(path + suffix):
            files.rename(path, path + suffix)
    files.sync_directory(METADATA_DIRECTORY)
    for name in plan["new"]:
        path = f"{METADATA_DIRECTORY}/{name}"
        if files.exists(path + _NEW):
            files.rename(path + _NEW, path)
    files.sync_directory(METADATA_DIRECTORY)
    remove_small_file(files, _PLAN)


def _new_files(snapshot: Snapshot) -> dict[str, bytes]:
    """Return the files of a log that starts with a snapshot, as a start would create them."""
    copy = MemoryFiles()
    log = RaftLog.open(copy, directory=METADATA_DIRECTORY)
    log.install(snapshot)
    log.append((), HardState(snapshot.meta.term, None, snapshot.meta.last_index))
    log.close()
    names = [name for name in copy.list(METADATA_DIRECTORY) if name != "reserve"]
    return {name: copy.content(f"{METADATA_DIRECTORY}/{name}") for name in names}


def _number(name: str) -> int:
    number = name.partition(_ASIDE)[2]
    return int(number) if number.isdecimal() else 0


def _write(files: Files, path: str, data: bytes) -> None:
    files.remove(path)
    handle = files.open(path, create=True)
    try:
        files.append(handle, data)
        files.sync(handle)
    finally:
        files.close(handle)


# -- reports --------------------------------------------------------------------------------------


def _lines(found: Found, root: Path, snapshot: Path | None, output: str, *, path: str) -> list[str]:
    report = found.report
    lost = report.last_index - report.good_index
    if output == "json":
        shown = {
            **report._asdict(),
            "directory": str(root),
            "unbelieved_entries": lost,
            "applied": bool(path),
            "snapshot": path,
        }
        return json.dumps(shown, indent=2).splitlines()
    lines = [
        f"directory        {root}, of broker {report.broker}",
        f"cluster          {report.cluster_id}, voters {', '.join(report.voters) or 'unknown'}",
        f"term             {report.term}{_verdict(report)}",
        f"entries          up to {report.last_index}, committed at least to {report.commit_index}",
        f"trusted          up to {report.good_index} of term {report.good_term}",
        f"new group        from index {report.new_index} on",
        f"holds            {report.streams} streams, {report.partitions} partitions",
        "",
    ]
    if snapshot is None:
        lines += _bound(report)
    if not path:
        return [*lines, "Nothing was written. To recover, run this again with --apply."]
    if snapshot is None:
        return [*lines, f"Done. Recover the other brokers with --snapshot and a copy of {path}"]
    return [*lines, "Done. The broker that wrote the snapshot admits this one to the new group."]


def _verdict(report: Recoverable) -> str:
    is_poisoned = report.term > report.good_term + TERM_LEAP_MAX
    return ", which no election can have reached" if is_poisoned else ""


def _bound(report: Recoverable) -> Sequence[str]:
    """Describe possible losses."""
    most, count = len(report.voters) // 2 + 1, len(report.voters)
    return [
        f"No acknowledged metadata change is lost if, among {most} of the {count} voters, this one",
        "has the highest trusted term and, among equal terms, the highest trusted index.",
        "Otherwise the changes after its last entry are lost: streams created, deleted or altered",
        "since, and in-sync sets, so messages that only other brokers hold may be lost.",
        "",
    ]


def _unused(*_call: object) -> None:
    """No-op: no call uses a token here."""


def _unused_events(_events: Sequence[FileEvent]) -> None:
    """No-op: no event can arrive."""
