"""The metadata log: nothing told before its sync, torn ends cut, everything else refused."""

import pytest

from liftbridge_broker.errors import (
    CorruptionError,
    FilesError,
    OutcomeUnknownError,
    StorageFullError,
    UnavailableError,
)
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.ports.files import Token
from liftbridge_broker.ports.metadata import (
    Committed,
    Failed,
    MetadataEvent,
    ProposalToken,
    RecoveredMetadata,
    Refused,
    Urgency,
)
from liftbridge_broker.storage.metadata_file import ENTRY_HEADER_SIZE, FILE_HEADER_SIZE
from liftbridge_broker.storage.metadata_log import PROPOSALS_MAX, RESERVE_BYTES, MetadataLog
from liftbridge_testkit.memory_files import Fault, MemoryFiles

SYNC = Token(7)
FIRST = "metadata/00000000000000000001.log"


def opened(files: MemoryFiles, index_min: int = 0) -> tuple[MetadataLog, RecoveredMetadata]:
    return MetadataLog.open(files, sync_token=SYNC, index_min=MetadataIndex(index_min))


def propose(log: MetadataLog, token: int, urgency: Urgency = Urgency.ORDINARY) -> None:
    log.propose(ProposalToken(token), b"command %d" % token, urgency)


def pump(files: MemoryFiles, log: MetadataLog) -> list[MetadataEvent]:
    """Run syncs until none is left, and take all events."""
    events = [*log.take_events()]
    while files.submitted_count:
        for event in files.pump():
            log.on_file_event(event)
        events += log.take_events()
    return events


def commit(files: MemoryFiles, log: MetadataLog, *tokens: int) -> None:
    for token in tokens:
        propose(log, token)
    assert tokens_of(pump(files, log)) == list(tokens)


def tokens_of(events: list[MetadataEvent]) -> list[int]:
    assert all(isinstance(event, Committed) for event in events), events
    return [event.token for event in events if isinstance(event, Committed)]


def commands_of(recovered: RecoveredMetadata) -> list[bytes]:
    return [entry.command for entry in recovered.entries]


def restarted(files: MemoryFiles) -> tuple[MetadataLog, RecoveredMetadata]:
    files.crash(None)
    return opened(files)


def test_an_empty_directory_starts_at_nothing() -> None:
    log, recovered = opened(MemoryFiles())

    assert recovered == (0, b"", (), ())
    assert (log.last_index, log.synced_index, log.snapshot_index) == (0, 0, 0)


def test_nothing_is_told_before_the_sync() -> None:
    files = MemoryFiles()
    log, _ = opened(files)

    propose(log, 1)
    assert log.take_events() == []

    assert pump(files, log) == [Committed(MetadataIndex(1), b"command 1", ProposalToken(1))]


def test_proposals_during_a_sync_share_the_next_one() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    for token in range(1, 101):
        propose(log, token)
    assert files.submitted_count == 1
    before = files.points

    events = pump(files, log)

    assert tokens_of(events) == list(range(1, 101))
    # Two syncs, one append for the second group, one mark at the end.
    assert files.points - before == 4


def test_what_was_told_is_there_after_a_power_cut() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1, 2)
    commit(files, log, 3)

    log, recovered = restarted(files)

    assert commands_of(recovered) == [b"command 1", b"command 2", b"command 3"]
    assert [entry.entry_index for entry in recovered.entries] == [1, 2, 3]
    assert {entry.token for entry in recovered.entries} == {0}
    commit(files, log, 4)
    assert commands_of(restarted(files)[1])[3:] == [b"command 4"]


def test_an_entry_that_recovery_tells_is_durable_from_then_on() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    propose(log, 1)
    files.kill()

    _, recovered = opened(files)
    assert commands_of(recovered) == [b"command 1"]
    assert commands_of(restarted(files)[1]) == [b"command 1"]


def test_layout_is_fixed() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)

    header = "4c424d4c 0001 0000 0000000000000001 00000000 76ad976e"
    entry = "4c424d45 00000009 babe2b44 76ad976e 0000000000000001 0000000000000001 0000000000000000"
    mark = "4c424d4b 00000000 d9725cbf babe2b44 0000000000000001 0000000000000001 0000000000000001"
    assert files.content(FIRST) == (
        bytes.fromhex(header) + bytes.fromhex(entry) + b"command 1" + bytes.fromhex(mark)
    )


def test_a_torn_end_is_cut_and_kept_aside() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    whole = files.content(FIRST)
    files.put(FIRST, whole + b"LBME torn")

    log, recovered = opened(files)

    assert commands_of(recovered) == [b"command 1"]
    assert recovered.findings == [f"cut 9 torn bytes from {FIRST} at byte {len(whole)}"]
    assert files.content(FIRST) == whole
    assert files.durable_content(FIRST + ".cut") == b"LBME torn"
    commit(files, log, 2)
    assert commands_of(restarted(files)[1]) == [b"command 1", b"command 2"]


def test_a_torn_end_is_cut_without_a_copy_when_the_disk_is_full() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    files.put(FIRST, files.content(FIRST) + b"torn")
    files.fail(Fault("append", "*.cut", is_full=True))

    _, recovered = opened(files)

    assert recovered.findings[0].endswith("without a copy because the disk is full")
    assert commands_of(recovered) == [b"command 1"]


def test_every_flipped_bit_is_refused_or_harmless() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    commit(files, log, 2, 3)
    data = files.content(FIRST)
    mark_at = len(data) - ENTRY_HEADER_SIZE
    expected = [b"command 1", b"command 2", b"command 3"]

    for bit in range(len(data) * 8):
        damaged = MemoryFiles()
        damaged.put(FIRST, data)
        damaged.flip_bit(FIRST, bit)
        before = damaged.content(FIRST)
        if bit // 8 >= mark_at:
            assert commands_of(opened(damaged)[1]) == expected
            continue
        with pytest.raises(CorruptionError) as caught:
            opened(damaged)
        assert caught.value.path == FIRST
        assert caught.value.position <= bit // 8
        assert damaged.paths() == (FIRST,)
        assert damaged.content(FIRST) == before


def test_rot_names_file_and_position() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    commit(files, log, 2)
    files.flip_bit(FIRST, (FILE_HEADER_SIZE + ENTRY_HEADER_SIZE) * 8)

    with pytest.raises(CorruptionError) as caught:
        restarted(files)

    assert caught.value.text == (
        "metadata log: entry 1 was synced and is damaged, so answered changes would be lost "
        f"({FIRST} at byte {FILE_HEADER_SIZE})"
    )


def test_rot_in_the_last_entry_is_told_by_the_mark_behind_it() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    files.kill()
    files.flip_bit(FIRST, (FILE_HEADER_SIZE + ENTRY_HEADER_SIZE) * 8)

    with pytest.raises(CorruptionError, match="entry 1 was synced"):
        opened(files)


def test_a_lost_end_is_told_by_what_other_files_know() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    commit(files, log, 2)
    data = files.content(FIRST)

    for length in range(FILE_HEADER_SIZE, len(data) - ENTRY_HEADER_SIZE):
        files.put(FIRST, data[:length])
        with pytest.raises(CorruptionError, match="was synced and is"):
            opened(files, index_min=2)


def test_a_file_without_a_whole_header_is_refused() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    data = files.content(FIRST)

    for length in range(FILE_HEADER_SIZE):
        files.put(FIRST, data[:length])
        with pytest.raises(CorruptionError, match="damaged header"):
            opened(files)


def test_an_entry_in_the_wrong_place_is_refused() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    commit(files, log, 2)
    data = files.content(FIRST)
    size = ENTRY_HEADER_SIZE + len(b"command 1")
    first = data[FILE_HEADER_SIZE : FILE_HEADER_SIZE + size]
    rest = data[FILE_HEADER_SIZE + size :]
    files.put(FIRST, data[:FILE_HEADER_SIZE] + rest + first)

    with pytest.raises(CorruptionError, match="entry 1 was synced and is out of place"):
        opened(files)


def test_an_entry_of_another_log_is_refused() -> None:
    files, other = MemoryFiles(), MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1, 2)
    theirs, _ = opened(other)
    commit(other, theirs, 9, 8)
    size = ENTRY_HEADER_SIZE + len(b"command 1")
    second = FILE_HEADER_SIZE + size
    data, foreign = files.content(FIRST), other.content(FIRST)
    files.put(FIRST, data[:second] + foreign[second : second + size] + data[second + size :])

    with pytest.raises(CorruptionError, match="entry 2 was synced and is out of place"):
        opened(files)


def snapshot(files: MemoryFiles, log: MetadataLog, state: bytes) -> None:
    log.snapshot(log.synced_index, state)
    assert pump(files, log) == []


def test_a_snapshot_takes_the_place_of_entries() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1, 2)
    snapshot(files, log, b"state of two")
    commit(files, log, 3)

    log, recovered = restarted(files)

    assert (recovered.snapshot_index, recovered.snapshot) == (2, b"state of two")
    assert commands_of(recovered) == [b"command 3"]
    assert log.snapshot_index == 2


def test_two_snapshots_and_the_log_behind_the_older_are_kept() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    for number in range(1, 6):
        commit(files, log, number)
        snapshot(files, log, b"state %d" % number)

    assert files.paths("metadata") == (
        "metadata/00000000000000000004.snapshot",
        "metadata/00000000000000000005.log",
        "metadata/00000000000000000005.snapshot",
        "metadata/00000000000000000006.log",
        "metadata/reserve",
    )
    assert files.open_count == 1


def test_a_damaged_snapshot_is_replaced_by_the_one_before() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    snapshot(files, log, b"state 1")
    commit(files, log, 2)
    snapshot(files, log, b"state 2")
    commit(files, log, 3)
    files.flip_bit("metadata/00000000000000000002.snapshot", 100)

    log, recovered = restarted(files)

    assert recovered.snapshot == b"state 1"
    assert commands_of(recovered) == [b"command 2", b"command 3"]
    assert recovered.findings == [
        "snapshot metadata/00000000000000000002.snapshot is damaged and not used"
    ]
    snapshot(files, log, b"state 3")
    assert restarted(files)[1].snapshot == b"state 3"


def test_a_single_damaged_snapshot_is_replaced_by_the_whole_log() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    snapshot(files, log, b"state 1")
    files.flip_bit("metadata/00000000000000000001.snapshot", 100)

    assert commands_of(restarted(files)[1]) == [b"command 1"]


def test_without_an_intact_snapshot_for_the_log_start_is_refused() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    for number in range(1, 4):
        commit(files, log, number)
        snapshot(files, log, b"state %d" % number)
    for number in (2, 3):
        files.flip_bit(f"metadata/{number:020}.snapshot", 100)

    files.kill()
    with pytest.raises(CorruptionError, match="entries 1 to 2 are missing"):
        opened(files)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_missing_file_is_refused(lost: int) -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    snapshot(files, log, b"state 1")
    commit(files, log, 2)
    files.crash(None)
    files.remove(f"metadata/{lost:020}.log")
    files.remove("metadata/00000000000000000001.snapshot")

    with pytest.raises(CorruptionError, match=r"missing|does not continue|no log file"):
        opened(files, index_min=2)


def test_a_snapshot_without_any_log_is_refused() -> None:
    files = MemoryFiles()
    files.put("metadata/00000000000000000001.snapshot", b"whatever")

    with pytest.raises(CorruptionError, match="no log file is left"):
        opened(files)


def test_lost_metadata_of_a_used_directory_are_refused() -> None:
    with pytest.raises(CorruptionError, match="no log file is left"):
        opened(MemoryFiles(), index_min=1)


def test_a_file_that_does_not_continue_the_one_before_is_refused() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    snapshot(files, log, b"state 1")
    other = MemoryFiles()
    log, _ = opened(other)
    other_commands = (ProposalToken(1), b"another", Urgency.ORDINARY)
    log.propose(*other_commands)
    pump(other, log)
    snapshot(other, log, b"state 1")
    files.put("metadata/00000000000000000002.log",
              other.content("metadata/00000000000000000002.log"))  # fmt: skip
    files.remove("metadata/00000000000000000001.snapshot")

    with pytest.raises(CorruptionError, match="it does not continue entry 1"):
        opened(files)


def test_damage_in_an_earlier_file_is_refused_even_at_its_end() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    snapshot(files, log, b"state 1")
    files.put(FIRST, files.content(FIRST) + b"more")
    files.remove("metadata/00000000000000000001.snapshot")

    with pytest.raises(CorruptionError, match="entry 2 was synced"):
        opened(files)


def test_a_snapshot_during_a_sync_begins_the_new_file_afterwards() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    propose(log, 2)
    log.snapshot(MetadataIndex(1), b"state 1")
    propose(log, 3)
    assert "metadata/00000000000000000003.log" not in files.paths()

    assert tokens_of(pump(files, log)) == [2, 3]

    assert "metadata/00000000000000000003.log" in files.paths()
    _, recovered = restarted(files)
    assert recovered.snapshot == b"state 1"
    assert commands_of(recovered) == [b"command 2", b"command 3"]


def test_leftovers_of_interrupted_writes_are_removed() -> None:
    files = MemoryFiles()
    opened(files)
    files.put("metadata/00000000000000000009.log.new", b"rest")

    opened(files)

    assert "metadata/00000000000000000009.log.new" not in files.paths()


def full() -> tuple[MemoryFiles, MetadataLog]:
    """A disk on which nothing but the reserve is left."""
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    files.capacity_bytes -= files.free_bytes()
    return files, log


def test_a_full_disk_refuses_for_sure_and_reads_go_on() -> None:
    files, log = full()
    propose(log, 2)

    (event,) = pump(files, log)

    assert isinstance(event, Refused)
    assert isinstance(event.error, StorageFullError)
    assert event.error.text == "not written: the disk is full"
    assert log.failure is None
    assert commands_of(restarted(files)[1]) == [b"command 1"]


def test_deletions_go_on_with_a_full_disk() -> None:
    files, log = full()
    propose(log, 2)
    pump(files, log)
    propose(log, 3)
    propose(log, 4, Urgency.ESSENTIAL)

    refused, committed = pump(files, log)

    assert isinstance(refused, Refused)
    assert isinstance(refused.error, StorageFullError)
    assert isinstance(committed, Committed)
    assert committed.token == 4
    assert log.is_full
    assert commands_of(restarted(files)[1]) == [b"command 1", b"command 4"]


def test_a_disk_without_reserve_refuses_everything() -> None:
    files, log = full()
    propose(log, 2, Urgency.ESSENTIAL)
    pump(files, log)
    files.capacity_bytes -= files.free_bytes()
    propose(log, 3, Urgency.ESSENTIAL)

    (event,) = pump(files, log)

    assert isinstance(event, Refused)
    assert isinstance(event.error, StorageFullError)


def test_with_space_back_everything_is_taken_and_the_reserve_made_again() -> None:
    files, log = full()
    propose(log, 2, Urgency.ESSENTIAL)
    pump(files, log)
    assert "metadata/reserve" not in files.paths()
    files.capacity_bytes += RESERVE_BYTES
    propose(log, 9)
    (event,) = pump(files, log)
    assert isinstance(event, Refused)
    files.capacity_bytes += RESERVE_BYTES

    commit(files, log, 3)

    assert not log.is_full
    assert len(files.content("metadata/reserve")) == RESERVE_BYTES


def test_a_log_opened_on_a_full_disk_takes_essential_commands() -> None:
    files, _ = full()
    files.crash(None)
    files.remove("metadata/reserve")
    files.capacity_bytes = files.capacity_bytes - files.free_bytes() + 200
    log, _ = opened(files)
    assert log.is_full

    propose(log, 2)
    propose(log, 3, Urgency.ESSENTIAL)
    refused, committed = pump(files, log)

    assert isinstance(refused, Refused)
    assert isinstance(committed, Committed)


def test_a_snapshot_on_a_full_disk_leaves_the_log_whole() -> None:
    files, log = full()

    log.snapshot(MetadataIndex(1), b"state" * 10)

    assert log.take_events() == []
    assert log.snapshot_index == 0
    assert not [path for path in files.paths() if "snapshot" in path]
    assert commands_of(restarted(files)[1]) == [b"command 1"]


def test_a_failed_write_is_refused_for_sure_and_ends_the_log() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    files.fail(Fault("append", FIRST))
    propose(log, 1)

    refused, failed = pump(files, log)

    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnavailableError)
    assert isinstance(failed, Failed)
    propose(log, 2)
    (later,) = pump(files, log)
    assert isinstance(later, Refused)
    assert later.error.text == f"metadata log failed: append {FIRST}: Input/output error"


def test_a_failed_sync_leaves_the_outcome_open_and_is_not_repeated() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    files.fail(Fault("sync", FIRST))
    propose(log, 1)
    propose(log, 2)

    flown, waiting, failed = pump(files, log)

    assert isinstance(flown, Refused)
    assert isinstance(flown.error, OutcomeUnknownError)
    assert isinstance(waiting, Refused)
    assert isinstance(waiting.error, UnavailableError)
    assert isinstance(failed, Failed)
    assert files.submitted_count == 0


@pytest.mark.parametrize("operation", ["append", "sync", "rename", "sync_directory", "remove"])
def test_an_error_while_a_snapshot_is_made_ends_the_log(operation: str) -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    files.fail(Fault(operation, "metadata*"))

    log.snapshot(MetadataIndex(1), b"state")

    (event,) = log.take_events()
    assert isinstance(event, Failed)
    assert log.failure is not None
    files.heal()
    assert commands_of(restarted(files)[1]) in ([b"command 1"], [])


@pytest.mark.parametrize(
    ("operation", "path"), [("rename", "*.log.new"), ("sync_directory", "metadata")]
)
def test_a_name_that_may_or_may_not_be_there_ends_the_log(operation: str, path: str) -> None:
    """Even on a full disk: going on with the old file could leave two files of one index."""
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    # The snapshot syncs the directory once before the new log file does.
    skip = 1 if operation == "sync_directory" else 0
    files.fail(Fault(operation, path, skip=skip, is_full=True))

    log.snapshot(MetadataIndex(1), b"state")

    (event,) = log.take_events()
    assert isinstance(event, Failed)


def test_an_error_at_the_start_is_raised() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    files.crash(None)
    files.fail(Fault("read", FIRST))

    with pytest.raises(FilesError, match="Input/output error"):
        opened(files)


def test_the_queue_has_an_end() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    for token in range(1, PROPOSALS_MAX + 3):
        propose(log, token)

    (event,) = log.take_events()

    assert isinstance(event, Refused)
    assert event.token == PROPOSALS_MAX + 2
    assert event.error.text == f"more than {PROPOSALS_MAX} changes wait"
    assert len(pump(files, log)) == PROPOSALS_MAX + 1


def test_closing_leaves_no_handle() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    log.close()

    assert files.open_count == 0
