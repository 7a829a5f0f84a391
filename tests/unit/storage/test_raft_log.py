"""The Raft log: synced before it counts, torn ends cut, everything else refused."""

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Peer,
    SnapshotMeta,
)
from liftbridge_broker.raft import configuration as configurations
from liftbridge_broker.storage.raft_log.log import RaftLog
from liftbridge_broker.storage.raft_log.records import (
    RECORD_HEADER_SIZE,
    RecordKind,
    encode_record,
    scan,
)
from liftbridge_testkit.memory_files import MemoryFiles
from liftbridge_testkit.raft_logs import (
    ALONE,
    FIRST_WAL,
    ME,
    append,
    entry,
    held,
    opened,
    persist,
    restarted,
)

OTHER = Peer(BrokerId("b"), "disk-b")
PAIR = Configuration((ME, OTHER))


def test_an_empty_directory_begins_with_its_bootstrap() -> None:
    log = opened(MemoryFiles())

    assert (log.first_index, log.last_index, log.hard_state()) == (1, 0, HardState(0, None, 0))
    assert log.snapshot_meta == SnapshotMeta(0, 0, ALONE, 0, b"")
    assert log.term_at(0) == 0


def test_the_bootstrap_is_kept_and_another_one_ignored_later() -> None:
    files = MemoryFiles()
    opened(files)
    files.crash(None)

    log = RaftLog.open(files, bootstrap=PAIR)

    assert log.snapshot_meta.configuration == ALONE


def test_a_directory_without_bootstrap_has_no_voters() -> None:
    files = MemoryFiles()
    RaftLog.open(files)
    files.crash(None)

    assert RaftLog.open(files).snapshot_meta.configuration == Configuration(())


def test_what_was_synced_is_there_after_a_power_cut() -> None:
    files = MemoryFiles()
    log = opened(files)
    persist(files, log, [entry(1), entry(2)], HardState(3, OTHER, 1))
    log.append([entry(3)], None)

    log = restarted(files)

    assert held(log) == [entry(1), entry(2)]
    assert log.hard_state() == HardState(3, OTHER, 1)
    assert not log.findings


def test_a_hard_state_alone_survives() -> None:
    files = MemoryFiles()
    log = opened(files)
    persist(files, log, [], HardState(9, ME, 0))

    assert restarted(files).hard_state() == HardState(9, ME, 0)


def test_conflicting_entries_take_the_place_of_the_tail() -> None:
    files = MemoryFiles()
    log = opened(files)
    persist(files, log, [entry(1), entry(2), entry(3)], HardState(1, ME, 1))
    persist(files, log, [entry(2, 2)], HardState(2, None, 1))
    expected = [entry(1), entry(2, 2)]
    assert held(log) == expected

    log = restarted(files)

    assert held(log) == expected
    assert log.term_at(2) == 2
    assert log.term_at(3) is None


def test_a_cut_below_the_beginning_of_a_file_survives() -> None:
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1, 2)
    log.save_snapshot(1, b"one")
    persist(files, log, [entry(3)], None)
    log.save_snapshot(2, b"two")
    persist(files, log, [entry(3, 2), entry(4, 2)], HardState(2, None, 2))

    log = restarted(files)

    assert [one for one in held(log) if one.entry_index > 2] == [entry(3, 2), entry(4, 2)]


def test_entries_are_given_in_pieces_of_a_size() -> None:
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1, 2, 3)

    assert log.entries(1, 4, 0) == [entry(1)]
    assert log.entries(1, 4, 2 * len(entry(1).data)) == [entry(1), entry(2)]
    assert log.entries(2, 3, 1000) == [entry(2)]


def test_configurations_are_followed_and_cut_with_their_entries() -> None:
    files = MemoryFiles()
    log = opened(files)
    config = Entry(2, 1, EntryKind.CONFIG, configurations.encode(PAIR))
    persist(files, log, [entry(1), config], HardState(1, ME, 1))
    assert log.config_entries() == [config]
    assert log.configuration == PAIR

    persist(files, log, [entry(2, 2)], HardState(2, None, 1))

    assert (log.configuration, log.config_entries()) == (ALONE, [])
    assert restarted(files).configuration == ALONE


def test_a_cut_carries_the_configuration_that_is_in_force_again() -> None:
    files = MemoryFiles()
    log = opened(files, snapshots_kept=1)
    config = Entry(8, 1, EntryKind.CONFIG, configurations.encode(PAIR))
    first = [entry(number) for number in range(1, 8)]
    persist(files, log, [*first, config], HardState(1, ME, 4))
    log.save_snapshot(4, b"four")
    persist(files, log, [entry(number, 2) for number in range(6, 11)], HardState(2, None, 10))
    log.save_snapshot(9, b"nine")

    # Only the file is read that begins with the configuration and cuts it away.
    files.remove(FIRST_WAL)
    log = opened(files, snapshots_kept=1)

    assert log.snapshot_meta.configuration == ALONE
    assert (log.configuration, log.last_index) == (ALONE, 10)


@pytest.mark.parametrize(
    ("kind", "index", "term"),
    [
        (RecordKind.COMMAND, 4, 2),
        (RecordKind.COMMAND, 2, 2),
        (RecordKind.COMMAND, 3, 1),
        (RecordKind.CUT, 1, 2),
        (RecordKind.CUT, 2, 2),
        (RecordKind.BASE, 1, 2),
    ],
)
def test_whole_records_that_follow_from_nothing_are_refused(
    kind: RecordKind, index: int, term: int
) -> None:
    files = MemoryFiles()
    log = opened(files)
    persist(files, log, [entry(1, 2), entry(2, 2)], HardState(2, ME, 2))
    data = files.content(FIRST_WAL)
    chain = scan(data, FIRST_WAL).chain
    payload = bytes(20) if kind is RecordKind.BASE else b""
    record, _ = encode_record(kind, index, term, payload, synced_bytes=0, chain=chain)
    files.put(FIRST_WAL, data + record)

    with pytest.raises(CorruptionError, match=f"{kind.name.lower()} of index {index} .* is out of"):
        opened(files)


def test_layout_is_fixed() -> None:
    files = MemoryFiles()
    log = opened(files)
    log.append([Entry(1, 1, EntryKind.COMMAND, b"xy")], HardState(1, ME, 0))

    header = "4c424d4c00020000000000000000000100000000de3e906d"
    base = (
        "4c425242 00000024 7e83f5f0 de3e906d 0000000000000000 0000000000000000 0000000000000000"
        "0000000000000000 0000000000000000 0000 0010 01 0001 0000 0001 61 0006 6469736b2d61"
    )
    command = "4c425243 00000002 0d580b6c 7e83f5f0 0000000000000001 0000000000000001"
    state = "4c425248 00000008 f589ce62 0d580b6c 0000000000000000 0000000000000001"
    synced = "0000000000000064"
    assert files.content(FIRST_WAL) == bytes.fromhex(
        f"{header}{base}{command}{synced} 7879 {state}{synced} 61006469736b2d61"
    )


def test_an_entry_that_recovery_tells_is_durable_from_then_on() -> None:
    files = MemoryFiles()
    log = opened(files)
    log.append([entry(1)], HardState(1, ME, 0))
    files.kill()

    assert held(opened(files)) == [entry(1)]
    assert held(restarted(files)) == [entry(1)]


def test_a_torn_end_is_cut_and_kept_aside() -> None:
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1)
    whole = files.content(FIRST_WAL)
    files.put(FIRST_WAL, whole + b"LBRC torn")

    log = opened(files)

    assert held(log) == [entry(1)]
    assert log.findings == [f"cut 9 torn bytes from {FIRST_WAL} at byte {len(whole)}"]
    assert files.content(FIRST_WAL) == whole
    assert files.durable_content(FIRST_WAL + ".cut") == b"LBRC torn"
    append(files, log, 2)
    assert held(restarted(files)) == [entry(1), entry(2)]


def test_a_write_torn_at_every_byte_loses_only_itself() -> None:
    """R3."""
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1)
    whole = files.content(FIRST_WAL)
    log.append([entry(2)], HardState(2, OTHER, 1))
    data = files.content(FIRST_WAL)

    for length in range(len(whole), len(data) + 1):
        torn = MemoryFiles()
        torn.put(FIRST_WAL, data[:length])
        log = opened(torn)
        entries, state = held(log), log.hard_state()
        assert entries in ([entry(1)], [entry(1), entry(2)])
        assert state in (HardState(1, ME, 1), HardState(2, OTHER, 1))
        # A prefix of the writes: no hard state without the entries before it.
        assert state.term == 1 or len(entries) == 2
        log.close()


def test_every_flipped_bit_is_refused_or_cuts_only_what_was_not_synced() -> None:
    """R4."""
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1)
    append(files, log, 2, 3)
    synced = len(files.content(FIRST_WAL)) - mark_size()
    log.append([entry(4)], HardState(7, OTHER, 3))
    data = files.content(FIRST_WAL)
    outcomes = {"same": 0, "cut": 0, "refused": 0}

    for bit in range(len(data) * 8):
        damaged = MemoryFiles()
        damaged.put(FIRST_WAL, data)
        damaged.flip_bit(FIRST_WAL, bit)
        before = damaged.content(FIRST_WAL)
        found = opened_or_refused(damaged)
        if found is None:
            assert bit // 8 < synced
            assert damaged.paths() == (FIRST_WAL,)
            assert damaged.content(FIRST_WAL) == before
            outcomes["refused"] += 1
            continue
        assert bit // 8 >= synced
        assert held(found)[:3] == [entry(1), entry(2), entry(3)]
        assert held(found)[3:] in ([], [entry(4)])
        assert found.hard_state() in (
            HardState(1, ME, 3), HardState(7, OTHER, 3), HardState(1, ME, 1)
        )  # fmt: skip
        outcomes["cut" if found.findings else "same"] += 1
    assert outcomes["refused"] == synced * 8
    assert outcomes["cut"] > 0


def opened_or_refused(files: MemoryFiles) -> RaftLog | None:
    """The log, `None` when it refuses to start."""
    try:
        return opened(files)
    except CorruptionError:
        return None


def mark_size() -> int:
    """Length of the record behind the last sync."""
    return RECORD_HEADER_SIZE + len(f"{ME.broker}\0{ME.data_dir_id}")


def test_rot_names_file_and_position() -> None:
    files = MemoryFiles()
    log = opened(files)
    begin = len(files.content(FIRST_WAL))
    append(files, log, 1)
    files.kill()
    files.flip_bit(FIRST_WAL, (begin + RECORD_HEADER_SIZE) * 8)

    with pytest.raises(CorruptionError) as caught:
        opened(files)

    assert caught.value.text == (
        "metadata log: a record was synced and is damaged, so answered changes would be lost "
        f"({FIRST_WAL} at byte {begin})"
    )


def test_a_lost_end_is_told_by_what_other_files_know() -> None:
    files = MemoryFiles()
    log = opened(files)
    begin = len(files.content(FIRST_WAL))
    append(files, log, 1)
    data = files.content(FIRST_WAL)

    for length in range(begin, begin + RECORD_HEADER_SIZE + len(entry(1).data)):
        files.put(FIRST_WAL, data[:length])
        with pytest.raises(CorruptionError, match="entry 1 was synced and is missing"):
            opened(files, index_min=1)


def test_a_file_without_whole_header_and_base_is_refused() -> None:
    files = MemoryFiles()
    log = opened(files)
    data = files.content(FIRST_WAL)
    log.close()

    for length in range(len(data)):
        files.put(FIRST_WAL, data[:length])
        with pytest.raises(CorruptionError, match=r"damaged (header|base)"):
            opened(files)


def test_records_in_the_wrong_order_are_refused() -> None:
    files = MemoryFiles()
    log = opened(files)
    begin = len(files.content(FIRST_WAL))
    persist(files, log, [entry(1)], None)
    middle = len(files.content(FIRST_WAL))
    persist(files, log, [entry(2)], None)
    end = len(files.content(FIRST_WAL))
    append(files, log, 3)
    data = files.content(FIRST_WAL)
    files.put(FIRST_WAL, data[:begin] + data[middle:end] + data[begin:middle] + data[end:])

    with pytest.raises(CorruptionError, match="was synced and is out of place"):
        opened(files)


def test_a_log_file_that_is_long_is_followed_by_another_one() -> None:
    files = MemoryFiles()
    log = opened(files)
    large = [Entry(n, 1, EntryKind.COMMAND, bytes(1 << 20)) for n in range(1, 19)]
    for one in large:
        persist(files, log, [one], None)

    assert len([path for path in files.paths() if path.endswith(".wal")]) == 2
    assert held(restarted(files)) == large


def test_a_missing_file_in_the_middle_is_refused() -> None:
    files = MemoryFiles()
    log = opened(files)
    for number in range(1, 4):
        append(files, log, number)
        log.save_snapshot(number, b"state")
    append(files, log, 4)
    files.kill()
    files.remove("metadata/00000000000000000003.wal")

    with pytest.raises(CorruptionError, match="entries from 3 to 3 are missing"):
        opened(files)


def test_lost_metadata_of_a_used_directory_are_refused() -> None:
    with pytest.raises(CorruptionError, match="no log file is left"):
        opened(MemoryFiles(), index_min=1)


def test_leftovers_of_interrupted_writes_are_removed() -> None:
    files = MemoryFiles()
    opened(files)
    files.put("metadata/00000000000000000009.wal.new", b"rest")

    opened(files)

    assert "metadata/00000000000000000009.wal.new" not in files.paths()
