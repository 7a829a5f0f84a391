"""A Raft log on files in memory for unit tests."""

from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, HardState, Peer
from liftbridge_broker.ports.files import Token
from liftbridge_broker.storage.raft_log.log import RaftLog
from liftbridge_testkit.memory_files import MemoryFiles

SYNC_TOKEN = Token(7)
FIRST_WAL = "metadata/00000000000000000001.wal"
ME = Peer(BrokerId("a"), "disk-a")
ALONE = Configuration((ME,))


def opened(files: MemoryFiles, index_min: int = 0, snapshots_kept: int = 2) -> RaftLog:
    """Open the log of a data directory with one voter."""
    return RaftLog.open(files, bootstrap=ALONE, index_min=index_min, snapshots_kept=snapshots_kept)


def restarted(files: MemoryFiles) -> RaftLog:
    """Cut the power, lose all unsynced data, and open the log again."""
    files.crash(None)
    return opened(files)


def entry(index: int, term: int = 1) -> Entry:
    """Return an entry whose data contain its index."""
    return Entry(index, term, EntryKind.COMMAND, b"command %d of %d" % (index, term))


def append(files: MemoryFiles, log: RaftLog, *indexes: int, term: int = 1) -> None:
    """Write entries, wait for the sync and mark all of them as committed."""
    entries = [entry(index, term) for index in indexes]
    persist(files, log, entries, HardState(term, ME, log.hard_state().commit))
    log.mark(log.last_index)


def persist(
    files: MemoryFiles, log: RaftLog, entries: list[Entry], hard_state: HardState | None
) -> None:
    """Write, and wait for the sync."""
    log.append(entries, hard_state)
    log.submit_sync(SYNC_TOKEN)
    for event in files.calls.pump():
        assert event.error is None
        log.on_synced()


def held(log: RaftLog) -> list[Entry]:
    """Return all entries of a log."""
    first, end = log.first_index, log.last_index + 1
    return list(log.entries(first, end, 1 << 40)) if first < end else []
