import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.metadata_log import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Snapshot,
    SnapshotMeta,
)
from liftbridge_broker.raft.log import TAIL_BYTES_KEPT, Log
from liftbridge_testkit.raft.cluster import peer_of
from liftbridge_testkit.raft.storage import MemoryLog

ALONE = Configuration((peer_of("1"),))


def entry(index, term, data=b""):
    return Entry(index, term, EntryKind.COMMAND, data)


def log_of(*terms, commit=0, kept=None):
    storage = MemoryLog(ALONE)
    storage.load([entry(i, t) for i, t in enumerate(terms, 1)], HardState(9, None, commit))
    if kept is not None:
        storage.keep_snapshot(kept, b"state", ALONE, 0)
    return Log(storage, storage.hard_state())


def settle(log):
    """Persist everything; the storage of these tests takes no entries, so keep them in memory."""
    taken = log.take_unwritten()
    log.on_persisted(taken[0])
    return taken


def test_terms_are_known_from_the_snapshot_on():
    log = log_of(1, 1, 2, 3, kept=2)
    assert [log.term_at(i) for i in range(-1, 7)] == [None, 0, None, 1, 2, 3, None, None]
    assert (log.first_index, log.last_index, log.last_term) == (3, 4, 3)
    assert log_of().term_at(0) == 0


@pytest.mark.parametrize(
    ("index", "term", "found"),
    [
        (6, 9, (6, 4)),
        (99, 9, (6, 4)),
        (6, 3, (3, 2)),
        (2, 2, (2, 1)),
        (6, 1, (2, 1)),
        (6, 0, (0, 0)),
        (0, 5, (0, 0)),
    ],
)
def test_back_up_finds_the_last_place_of_a_term_not_above(index, term, found):
    assert log_of(1, 1, 2, 4, 4, 4).last_not_above(index, term) == found


def test_back_up_ends_where_the_log_is_compacted():
    log = log_of(1, 1, 2, 4, 4, 4, kept=4)
    assert log.last_not_above(6, 4) == (6, 4)
    assert log.last_not_above(6, 3) == (4, 0)


def test_entries_keep_both_bounds_but_give_one():
    log = log_of(1)
    log.append(tuple(entry(i, 1, b"xx") for i in range(2, 8)))
    assert [e.entry_index for e in log.entries(2, 8, 5, 10)] == [2, 3]
    assert [e.entry_index for e in log.entries(2, 8, 99, 3)] == [2, 3, 4]
    assert [e.entry_index for e in log.entries(2, 8, 1, 10)] == [2]
    assert [e.entry_index for e in log.entries(1, 8, 99, 10)] == [1]
    assert log.entries(8, 9, 99, 10) == ()


def test_truncated_write_is_not_durable():
    log = log_of(1)
    log.append((entry(2, 1), entry(3, 1)))
    _, taken = log.take_unwritten()
    assert [e.entry_index for e in taken] == [2, 3]
    log.append((entry(3, 2),))
    log.on_persisted(None)
    assert log.durable == 2
    assert log.take_unwritten() == (None, (entry(3, 2),))


def test_truncation_below_what_is_written_takes_it_all_back():
    log = log_of(1, 1, 1)
    log.append((entry(2, 2),))
    assert (log.last_index, log.durable, log.term_at(2), log.term_at(3)) == (2, 1, 2, None)


def test_committed_entries_are_told_once_and_only_when_durable():
    log = log_of(1)
    log.append((entry(2, 1), entry(3, 1)))
    log.commit_to(3)
    assert [e.entry_index for e in log.take_committed(100)] == [1]
    settle(log)
    assert [e.entry_index for e in log.take_committed(100)] == [2, 3]
    assert not log.has_committed()
    assert log.tail_bytes == 0


def test_long_durable_tail_leaves_the_memory():
    log = log_of()
    log.append((entry(1, 1, bytes(TAIL_BYTES_KEPT)), entry(2, 1, b"x")))
    assert log.tail_bytes == TAIL_BYTES_KEPT + 1
    settle(log)
    assert log.tail_bytes == 0


def test_snapshot_takes_the_place_of_the_log():
    log = log_of(1, 1, 1, commit=1)
    meta = SnapshotMeta(9, 4, ALONE, 1, bytes(32))
    snapshot = Snapshot(meta, b"s")
    log.restore(snapshot)
    assert (log.first_index, log.last_index, log.commit, log.delivered) == (10, 9, 9, 9)
    assert (log.term_at(9), log.term_at(3)) == (4, None)
    assert not log.is_durable(9)
    assert log.applicable == -1
    assert settle(log) == (snapshot, ())
    assert log.is_durable(9)
    assert log.applicable == 9


def test_newer_snapshot_during_the_write_of_another_is_still_to_be_written():
    log = log_of()
    first = Snapshot(SnapshotMeta(5, 1, ALONE, 0, bytes(32)), b"")
    second = Snapshot(SnapshotMeta(9, 1, ALONE, 0, bytes(32)), b"")
    log.restore(first)
    taken, _ = log.take_unwritten()
    log.restore(second)
    log.on_persisted(taken)
    assert not log.is_durable(9)
    assert log.take_unwritten() == (second, ())


def test_log_that_lost_committed_entries_is_refused():
    with pytest.raises(CorruptionError, match="3 was known to be committed"):
        log_of(1, 1, commit=3)


def test_unreadable_configuration_is_refused():
    storage = MemoryLog(ALONE)
    storage.load([Entry(1, 1, EntryKind.CONFIG, b"?")], HardState(1, None, 0))
    with pytest.raises(CorruptionError, match="metadata entry 1"):
        Log(storage, storage.hard_state())
