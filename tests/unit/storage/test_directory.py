"""The data directory: who it is, where logs lie, what is not ours, and when a stop was clean."""

from random import Random

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import (
    BrokerId,
    MetadataIndex,
    PartitionId,
    PartitionNumber,
    StreamId,
    StreamName,
    partition_id,
)
from liftbridge_broker.storage.directory import (
    KNOWN,
    CleanMarker,
    DataDirectory,
    Identity,
    Trashed,
    note_known_index,
    read_known_index,
)
from liftbridge_broker.storage.journal import JournalStamp
from liftbridge_broker.storage.smallfile import write_small_file
from liftbridge_testkit.memory_files import Fault, MemoryFiles, PowerCutError

FRESH = Identity("d-1", BrokerId("b-1"))
OTHER = Identity("d-2", BrokerId("b-2"))
MARKER = CleanMarker(42, JournalStamp(3, 999))


def key(stream: int, number: int) -> PartitionId:
    return partition_id(StreamId(stream), PartitionNumber(number))


def reopened(files: MemoryFiles) -> DataDirectory:
    return DataDirectory.open(files, OTHER)


def test_empty_directory_takes_the_fresh_identity_and_keeps_it() -> None:
    files = MemoryFiles()
    first = DataDirectory.open(files, FRESH)
    files.crash(None)
    second = reopened(files)
    assert (first.identity, first.is_identity_new) == (FRESH, True)
    assert (second.identity, second.is_identity_new) == (FRESH, False)


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"{", b'{"data_dir_id": 1, "broker_id": "b"}', b'{"broker_id": "b"}']
)
def test_unreadable_identity_is_another_disk_from_now_on(payload: bytes) -> None:
    files = MemoryFiles()
    write_small_file(files, "identity", payload)
    directory = DataDirectory.open(files, FRESH)
    assert (directory.identity, directory.is_identity_new) == (FRESH, True)


def test_log_is_found_again_by_its_id_whatever_its_name() -> None:
    files = MemoryFiles()
    directory = DataDirectory.open(files, FRESH)
    path = directory.make_log(key(0xAB, 3), StreamName("orders/€ und mehr"))
    assert path == "streams/00000000ab-orders___und_mehr/3"
    assert directory.make_log(key(0xAB, 0), StreamName("x")).startswith("streams/00000000ab-orders")
    files.crash(None)
    again = reopened(files)
    assert again.logs() == directory.logs()
    assert again.make_log(key(0xAB, 3), StreamName("another name")) == path
    assert again.log_path(key(0xAB, 7)) is None


@pytest.mark.parametrize("name", ["../../etc", "..", ".", "/", "a\0b", "ß" * 500, "x" * 500])
def test_no_name_leaves_its_place(name: str) -> None:
    files = MemoryFiles()
    directory = DataDirectory.open(files, FRESH)
    path = directory.make_log(key(1, 0), StreamName(name))
    assert path.startswith("streams/0000000001-")
    assert path.count("/") == 2
    assert len(path) < 120
    assert reopened(files).logs() == {key(1, 0): path}


def test_trashed_log_is_gone_from_its_place_durably() -> None:
    files = MemoryFiles()
    directory = DataDirectory.open(files, FRESH)
    directory.make_log(key(1, 0), StreamName("a"))
    path = directory.make_log(key(1, 1), StreamName("a"))
    files.put(f"{path}/00000000000000000000.log", b"data")
    assert directory.trash_logs((key(1, 1), key(1, 2)), 77) == [
        Trashed(f"trash/{key(1, 1):016x}-{77:020d}", key(1, 1), 77)
    ]
    assert directory.trash_logs((key(1, 1),), 78) == []
    files.crash(None)
    again = reopened(files)
    assert set(again.logs()) == {key(1, 0)}
    assert files.content(f"{again.trash()[0].path}/00000000000000000000.log") == b"data"


def test_directory_of_a_stream_goes_with_its_last_log() -> None:
    files = MemoryFiles()
    directory = DataDirectory.open(files, FRESH)
    directory.make_log(key(1, 0), StreamName("a"))
    directory.trash_logs((key(1, 0),), 5)
    assert files.list("streams") == []
    directory.make_log(key(1, 0), StreamName("a"))
    directory.trash_logs((key(1, 0),), 5)
    assert [log.deleted_wall_ns for log in directory.trash()] == [5, 6]


class CountedSyncs(MemoryFiles):
    """Counts the syncs of directories."""

    count = 0

    def sync_directory(self, path: str) -> None:
        self.count += 1
        super().sync_directory(path)


def test_many_logs_are_made_and_trashed_with_as_few_syncs_as_one() -> None:
    counts = []
    for size in (1, 500):
        files = CountedSyncs()
        directory = DataDirectory.open(files, FRESH)
        partitions = [key(1, number) for number in range(size)]
        before = files.count
        directory.make_logs(partitions, StreamName("a"))
        made = files.count
        assert len(directory.trash_logs(partitions, 5)) == size
        counts.append((made - before, files.count - made))
        files.crash(None)
        assert len(reopened(files).trash()) == size
    assert counts[0] == counts[1]


def test_what_is_not_ours_is_left_and_reported() -> None:
    files = MemoryFiles()
    for path in (
        "lost+found/x",
        "metadata/wal",
        "streams/readme",
        "streams/0000000001-a/0/f",
        "streams/0000000001-b/0/f",
        "streams/0000000002-c/01/f",
        "streams/0000000002-c/16777216/f",
        "streams/0000000000-d/0/f",
        "trash/odd/f",
        "journal.damaged",
        "identity.new",
    ):
        files.put(path, b"x")
    directory = DataDirectory.open(files, FRESH, known=("metadata",))
    assert directory.unknown == (
        "lost+found",
        "streams/0000000000-d",
        "streams/0000000001-b",
        "streams/0000000002-c/01",
        "streams/0000000002-c/16777216",
        "streams/readme",
        "trash/odd",
    )
    assert directory.logs() == {key(1, 0): "streams/0000000001-a/0"}
    assert files.exists("streams/0000000001-b/0/f")


def test_clean_marker_is_read_until_it_is_removed() -> None:
    files = MemoryFiles()
    directory = DataDirectory.open(files, FRESH)
    assert directory.read_clean_marker() is None
    directory.write_clean_marker(MARKER)
    files.crash(None)
    again = reopened(files)
    assert again.read_clean_marker() == MARKER
    again.remove_clean_marker()
    files.crash(Random(1))
    assert reopened(files).read_clean_marker() is None


@pytest.mark.parametrize("payload", [b"{}", b"1", b'{"broker_epoch": "1"}'])
def test_marker_that_says_nothing_is_none(payload: bytes) -> None:
    files = MemoryFiles()
    write_small_file(files, "clean", payload)
    assert reopened(files).read_clean_marker() is None


def test_older_marker_is_not_believed() -> None:
    files = MemoryFiles()
    directory = DataDirectory.open(files, FRESH)
    directory.write_clean_marker(MARKER)
    directory.write_clean_marker(MARKER._replace(broker_epoch=43))
    files.flip_bit("clean", 77)
    assert directory.read_clean_marker() is None


def test_refused_read_of_the_identity_decides_nothing() -> None:
    files = MemoryFiles()
    DataDirectory.open(files, FRESH)
    files.fail(Fault("read", "identity"))
    with pytest.raises(FilesError, match="Input/output error"):
        reopened(files)
    assert reopened(files).identity == FRESH


def test_power_cut_at_every_point_of_making_and_trashing_loses_no_log() -> None:
    def script(files: MemoryFiles, done: list[str]) -> None:
        directory = DataDirectory.open(files, FRESH)
        directory.make_log(key(1, 0), StreamName("a"))
        done.append("made")
        directory.make_log(key(1, 1), StreamName("a"))
        directory.make_logs([key(1, 2), key(1, 1), key(1, 3)], StreamName("a"))
        directory.trash_logs((key(1, 0),), 5)
        done.append("trashed")
        directory.trash_logs([key(1, 1), key(1, 2), key(1, 3)], 6)
        done.append("all")

    files = MemoryFiles()
    script(files, [])
    for point in range(1, files.power.points + 1):
        for seed in range(10):
            files, done = MemoryFiles(), list[str]()
            files.power.cut_at = point
            with pytest.raises(PowerCutError):
                script(files, done)
            files.crash(Random(seed))
            again = reopened(files)
            trashed = {log.partition for log in again.trash()}
            assert again.unknown == ()
            assert not trashed & set(again.logs())
            if "made" in done:
                assert key(1, 0) in trashed | set(again.logs())
            if "trashed" in done:
                assert key(1, 0) in trashed
                assert key(1, 1) in trashed | set(again.logs())


def test_names_left_by_a_killed_process_are_made_durable_at_the_next_start() -> None:
    files = MemoryFiles()
    DataDirectory.open(files, FRESH)
    files.make_directory("streams/0000000001-a/0")
    files.kill()
    assert set(reopened(files).logs()) == {key(1, 0)}
    files.crash(None)
    assert set(reopened(files).logs()) == {key(1, 0)}


def test_known_metadata_are_those_noted_last_whatever_the_power_cuts() -> None:
    files, random = MemoryFiles(), Random(1)
    known = 0
    assert read_known_index(files, MetadataIndex(99)) == known
    for _ in range(50):
        index = known + random.randrange(3)
        is_full = random.random() < 0.3
        files.capacity_bytes = 0 if is_full else 1 << 20
        try:
            note_known_index(files, MetadataIndex(index))
        except FilesError:
            assert is_full
        else:
            known = index
        files.crash(None)
        assert read_known_index(files, MetadataIndex(99)) == known


@pytest.mark.parametrize("content", [b"rot", b""])
def test_damaged_note_says_that_nothing_was_known(content: bytes) -> None:
    files = MemoryFiles()
    note_known_index(files, MetadataIndex(6))
    note_known_index(files, MetadataIndex(7))
    files.put(KNOWN, content)
    assert read_known_index(files, MetadataIndex(99)) == 0


def test_nothing_is_known_beyond_what_is_applied() -> None:
    files = MemoryFiles()
    note_known_index(files, MetadataIndex(7))
    assert read_known_index(files, MetadataIndex(5)) == 5


def test_note_of_another_form_says_that_nothing_was_known() -> None:
    files = MemoryFiles()
    write_small_file(files, KNOWN, b"session")
    assert read_known_index(files, MetadataIndex(99)) == 0
