"""The metadata log: nothing told before its sync, torn ends cut, everything else refused."""

import pytest

from liftbridge_broker.errors import (
    CorruptionError,
)
from liftbridge_broker.model.ids import (
    MetadataIndex,
)
from liftbridge_broker.ports.metadata import (
    Committed,
    ProposalToken,
    Urgency,
)
from liftbridge_broker.storage.metadata_file import (
    ENTRY_HEADER_SIZE,
    FILE_HEADER_SIZE,
)
from liftbridge_broker.storage.metadata_log import (
    MetadataLog,
)
from liftbridge_testkit.memory_files import (
    Fault,
    MemoryFiles,
)
from liftbridge_testkit.metadata_logs import (
    FIRST_LOG,
    commands_of,
    commit,
    opened,
    propose,
    pump,
    restarted,
    tokens_of,
)


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
    assert files.content(FIRST_LOG) == (
        bytes.fromhex(header) + bytes.fromhex(entry) + b"command 1" + bytes.fromhex(mark)
    )


def test_a_torn_end_is_cut_and_kept_aside() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    whole = files.content(FIRST_LOG)
    files.put(FIRST_LOG, whole + b"LBME torn")

    log, recovered = opened(files)

    assert commands_of(recovered) == [b"command 1"]
    assert recovered.findings == [f"cut 9 torn bytes from {FIRST_LOG} at byte {len(whole)}"]
    assert files.content(FIRST_LOG) == whole
    assert files.durable_content(FIRST_LOG + ".cut") == b"LBME torn"
    commit(files, log, 2)
    assert commands_of(restarted(files)[1]) == [b"command 1", b"command 2"]


def test_a_torn_end_is_cut_without_a_copy_when_the_disk_is_full() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    files.put(FIRST_LOG, files.content(FIRST_LOG) + b"torn")
    files.fail(Fault("append", "*.cut", is_full=True))

    _, recovered = opened(files)

    assert recovered.findings[0].endswith("without a copy because the disk is full")
    assert commands_of(recovered) == [b"command 1"]


def test_every_flipped_bit_is_refused_or_harmless() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    commit(files, log, 2, 3)
    data = files.content(FIRST_LOG)
    mark_at = len(data) - ENTRY_HEADER_SIZE
    expected = [b"command 1", b"command 2", b"command 3"]

    for bit in range(len(data) * 8):
        damaged = MemoryFiles()
        damaged.put(FIRST_LOG, data)
        damaged.flip_bit(FIRST_LOG, bit)
        before = damaged.content(FIRST_LOG)
        if bit // 8 >= mark_at:
            assert commands_of(opened(damaged)[1]) == expected
            continue
        with pytest.raises(CorruptionError) as caught:
            opened(damaged)
        assert caught.value.path == FIRST_LOG
        assert caught.value.position <= bit // 8
        assert damaged.paths() == (FIRST_LOG,)
        assert damaged.content(FIRST_LOG) == before


def test_rot_names_file_and_position() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    commit(files, log, 2)
    files.flip_bit(FIRST_LOG, (FILE_HEADER_SIZE + ENTRY_HEADER_SIZE) * 8)

    with pytest.raises(CorruptionError) as caught:
        restarted(files)

    assert caught.value.text == (
        "metadata log: entry 1 was synced and is damaged, so answered changes would be lost "
        f"({FIRST_LOG} at byte {FILE_HEADER_SIZE})"
    )


def test_rot_in_the_last_entry_is_told_by_the_mark_behind_it() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    files.kill()
    files.flip_bit(FIRST_LOG, (FILE_HEADER_SIZE + ENTRY_HEADER_SIZE) * 8)

    with pytest.raises(CorruptionError, match="entry 1 was synced"):
        opened(files)


def test_a_lost_end_is_told_by_what_other_files_know() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    commit(files, log, 2)
    data = files.content(FIRST_LOG)

    for length in range(FILE_HEADER_SIZE, len(data) - ENTRY_HEADER_SIZE):
        files.put(FIRST_LOG, data[:length])
        with pytest.raises(CorruptionError, match="was synced and is"):
            opened(files, index_min=2)


def test_a_file_without_a_whole_header_is_refused() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    data = files.content(FIRST_LOG)

    for length in range(FILE_HEADER_SIZE):
        files.put(FIRST_LOG, data[:length])
        with pytest.raises(CorruptionError, match="damaged header"):
            opened(files)


def test_an_entry_in_the_wrong_place_is_refused() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    commit(files, log, 2)
    data = files.content(FIRST_LOG)
    size = ENTRY_HEADER_SIZE + len(b"command 1")
    first = data[FILE_HEADER_SIZE : FILE_HEADER_SIZE + size]
    rest = data[FILE_HEADER_SIZE + size :]
    files.put(FIRST_LOG, data[:FILE_HEADER_SIZE] + rest + first)

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
    data, foreign = files.content(FIRST_LOG), other.content(FIRST_LOG)
    files.put(FIRST_LOG, data[:second] + foreign[second : second + size] + data[second + size :])

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
    files.put(FIRST_LOG, files.content(FIRST_LOG) + b"more")
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
