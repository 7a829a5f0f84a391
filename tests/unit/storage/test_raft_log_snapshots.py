"""Snapshots of the Raft log, and the log on a full or a broken disk."""

import pytest

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Configuration, Entry, EntryKind, HardState, Peer
from liftbridge_broker.raft import configuration as configurations
from liftbridge_broker.storage.raft_log.log import CATCH_UP_ENTRIES, RESERVE_BYTES, RaftLog
from liftbridge_broker.storage.raft_log.records import (
    FILE_HEADER_SIZE,
)
from liftbridge_broker.storage.raft_log.snapshots import snapshot_of, write_snapshot
from liftbridge_broker.storage.smallfile import read_version, write_small_file
from liftbridge_testkit.memory_files import Fault, MemoryFiles
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


def test_two_snapshots_and_the_log_behind_the_older_are_kept() -> None:
    files = MemoryFiles()
    log = opened(files)
    step = CATCH_UP_ENTRIES + 1
    for number in range(1, 6):
        append(files, log, *range((number - 1) * step + 1, number * step + 1))
        assert log.save_snapshot(number * step, b"state %d" % number)

    assert [path for path in files.paths("metadata") if "snapshot" in path] == [
        f"metadata/{number * step:020}.snapshot" for number in (4, 5)
    ]
    assert [path for path in files.paths("metadata") if path.endswith(".wal")] == [
        f"metadata/{number:020}.wal" for number in (5, 6)
    ]
    assert files.open_count == 1
    assert log.first_index == 4 * step + 1
    again = restarted(files)
    assert again.snapshot_meta == log.snapshot_meta
    assert held(again)[-len(held(log)) :] == held(log)
    assert again.newest_snapshot() is not None


def test_entries_for_followers_a_little_behind_stay() -> None:
    files = MemoryFiles()
    log = opened(files, snapshots_kept=1)
    append(files, log, *range(1, CATCH_UP_ENTRIES + 11))
    log.save_snapshot(CATCH_UP_ENTRIES + 10, b"state")

    assert log.first_index == 11
    assert log.term_at(10) == 1
    assert log.term_at(9) is None


def test_a_damaged_snapshot_is_replaced_by_the_one_before() -> None:
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1)
    log.save_snapshot(1, b"state 1")
    append(files, log, 2)
    log.save_snapshot(2, b"state 2")
    append(files, log, 3)
    files.flip_bit("metadata/00000000000000000002.snapshot", 600)

    log = restarted(files)

    assert log.snapshot_meta.last_index == 1
    assert log.read_snapshot(1, 2, 3) == b"ate"
    assert log.read_snapshot(2, 0, 9) is None
    assert [one.entry_index for one in held(log)][-2:] == [2, 3]
    assert log.findings == [
        "snapshot metadata/00000000000000000002.snapshot is damaged and not used"
    ]


def test_a_snapshot_that_is_not_what_it_says_is_not_used() -> None:
    sound = snapshot_of(2, 1, ALONE, b"state 2")
    wrong = (
        sound._replace(state=b"state 3"),
        sound._replace(meta=sound.meta._replace(sha256=bytes(32))),
    )
    for snapshot in (sound, *wrong):
        files = MemoryFiles()
        append(files, opened(files), 1, 2, 3)
        write_snapshot(files, "metadata", snapshot)

        assert opened(files).snapshot_meta.last_index == (2 if snapshot == sound else 0)


def test_a_snapshot_under_another_name_is_not_used() -> None:
    files = MemoryFiles()
    append(files, opened(files), 1, 2, 3)
    write_snapshot(files, "metadata", snapshot_of(2, 1, ALONE, b"state 2"))
    path = "metadata/00000000000000000002.snapshot"
    payload = read_version(files, path, path.rpartition("/")[2])
    assert payload is not None
    files.remove(path)

    write_small_file(files, "metadata/00000000000000000003.snapshot", payload)

    assert opened(files).snapshot_meta.last_index == 0


def test_without_an_intact_snapshot_for_the_log_start_is_refused() -> None:
    files = MemoryFiles()
    log = opened(files, snapshots_kept=1)
    append(files, log, *range(1, CATCH_UP_ENTRIES + 3))
    log.save_snapshot(CATCH_UP_ENTRIES + 1, b"state")
    append(files, log, CATCH_UP_ENTRIES + 3)
    log.save_snapshot(CATCH_UP_ENTRIES + 3, b"state")
    files.kill()
    files.flip_bit(f"metadata/{CATCH_UP_ENTRIES + 3:020}.snapshot", 600)

    for path in files.paths("metadata"):
        if path.endswith("1.wal"):
            files.remove(path)
    with pytest.raises(CorruptionError, match=r"missing|no intact snapshot"):
        opened(files)


def test_a_snapshot_carries_the_configuration_of_its_index() -> None:
    files = MemoryFiles()
    log = opened(files)
    config = Entry(2, 1, EntryKind.CONFIG, configurations.encode(PAIR))
    persist(files, log, [entry(1), config, entry(3)], HardState(1, ME, 3))
    log.save_snapshot(1, b"one")
    assert log.snapshot_meta.configuration == ALONE
    log.save_snapshot(3, b"three")
    assert log.snapshot_meta.configuration == PAIR
    assert log.config_entries() == []

    again = restarted(files)

    assert again.snapshot_meta == log.snapshot_meta


def test_an_installed_snapshot_takes_the_place_of_the_log() -> None:
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1, 2)
    snapshot = snapshot_of(10, 4, PAIR, b"theirs")

    log.install(snapshot)
    persist(files, log, [entry(11, 5)], HardState(5, None, 10))

    for found in (log, restarted(files)):
        assert (found.first_index, found.last_index) == (11, 11)
        assert found.snapshot_meta == snapshot.meta
        assert found.term_at(10) == 4
        assert found.read_snapshot(10, 0, 100) == b"theirs"
        assert held(found) == [entry(11, 5)]
    assert [path for path in files.paths() if path.endswith(".wal")] == [
        "metadata/00000000000000000002.wal"
    ]


# Full and broken disks.


def full() -> tuple[MemoryFiles, RaftLog]:
    """A disk on which nothing but the reserve is left."""
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1)
    files.capacity_bytes -= files.free_bytes()
    return files, log


def test_a_full_disk_has_room_for_essential_commands_only() -> None:
    files, log = full()

    assert not log.has_room(100, is_essential=False)
    assert log.has_room(100, is_essential=True)
    append(files, log, 2)
    assert not log.has_reserve
    assert held(restarted(files)) == [entry(1), entry(2)]


def test_without_reserve_nothing_is_taken_and_a_write_may_be_tried_again() -> None:
    files, log = full()
    append(files, log, 2)
    files.capacity_bytes -= files.free_bytes()
    assert not log.has_room(100, is_essential=True)

    with pytest.raises(FilesError) as caught:
        log.append([entry(3)], None)
    assert caught.value.is_full
    files.capacity_bytes += 1000
    persist(files, log, [entry(3)], None)

    assert held(restarted(files)) == [entry(1), entry(2), entry(3)]


def test_with_space_back_the_reserve_is_made_again() -> None:
    files, log = full()
    append(files, log, 2)
    files.capacity_bytes += RESERVE_BYTES
    assert not log.has_room(1, is_essential=False)
    files.capacity_bytes += 2 * RESERVE_BYTES

    assert log.has_room(1, is_essential=False)
    assert log.has_reserve
    assert len(files.content("metadata/reserve")) == RESERVE_BYTES


def test_a_snapshot_on_a_full_disk_leaves_the_log_whole() -> None:
    files, log = full()

    assert not log.save_snapshot(1, b"state" * 10)

    assert log.snapshot_meta.last_index == 0
    assert held(restarted(files)) == [entry(1)]


@pytest.mark.parametrize(
    ("operation", "path"), [("rename", "*.wal.new"), ("sync_directory", "metadata")]
)
def test_a_name_that_may_or_may_not_be_there_ends_the_log(operation: str, path: str) -> None:
    """Even on a full disk: going on with the old file could leave two files of one number."""
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1)
    # The snapshot syncs the directory once before the new log file does.
    skip = 1 if operation == "sync_directory" else 0
    files.fail(Fault(operation, path, skip=skip, is_full=True))

    with pytest.raises(FilesError) as caught:
        log.save_snapshot(1, b"state")

    assert not caught.value.is_full


def test_a_torn_end_that_cannot_be_copied_refuses_to_open() -> None:
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1)
    files.put(FIRST_WAL, files.content(FIRST_WAL) + b"torn")
    files.fail(Fault("append", "*.cut"))

    with pytest.raises(FilesError, match="append"):
        opened(files)
    assert files.content(FIRST_WAL).endswith(b"torn")


def test_a_torn_end_is_cut_without_a_copy_when_the_disk_is_full() -> None:
    files = MemoryFiles()
    log = opened(files)
    append(files, log, 1)
    files.put(FIRST_WAL, files.content(FIRST_WAL) + b"torn")
    files.fail(Fault("append", "*.cut", is_full=True))

    log = opened(files)

    assert log.findings[0].endswith("without a copy because the disk is full")
    assert held(log) == [entry(1)]


def test_closing_leaves_no_handle() -> None:
    files = MemoryFiles()
    opened(files).close()

    assert files.open_count == 0


def test_a_file_of_another_version_is_refused() -> None:
    files = MemoryFiles()
    opened(files)
    body = b"LBML" + bytes((0, 3)) + files.content(FIRST_WAL)[6 : FILE_HEADER_SIZE - 4]
    files.put(FIRST_WAL, body + crc32c(body).to_bytes(4, "big"))

    with pytest.raises(CorruptionError, match="header of another version"):
        opened(files)


def test_a_file_under_another_name_is_refused() -> None:
    files = MemoryFiles()
    opened(files)
    files.put("metadata/00000000000000000002.wal", files.content(FIRST_WAL))

    with pytest.raises(CorruptionError, match="file 1 under another name"):
        opened(files)
