"""The metadata log on a full or a broken disk: definite where it can be, open where it cannot."""

import pytest

from liftbridge_broker.errors import (
    CorruptionError,
    FilesError,
    OutcomeUnknownError,
    StorageFullError,
    UnavailableError,
)
from liftbridge_broker.logformat.checksum import crc32c
from liftbridge_broker.model.ids import (
    MetadataIndex,
)
from liftbridge_broker.ports.metadata import (
    Committed,
    Failed,
    Refused,
    Urgency,
)
from liftbridge_broker.storage.metadata_log import (
    PROPOSALS_MAX,
    RESERVE_BYTES,
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
)


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
    files.fail(Fault("append", FIRST_LOG))
    propose(log, 1)

    refused, failed = pump(files, log)

    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnavailableError)
    assert isinstance(failed, Failed)
    propose(log, 2)
    (later,) = pump(files, log)
    assert isinstance(later, Refused)
    assert later.error.text == f"metadata log failed: append {FIRST_LOG}: Input/output error"


def test_a_failed_sync_leaves_the_outcome_open_and_is_not_repeated() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    files.fail(Fault("sync", FIRST_LOG))
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
    files.fail(Fault("read", FIRST_LOG))

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


def test_a_broken_disk_refuses_to_open() -> None:
    files = MemoryFiles()
    files.fail(Fault("append", "metadata/reserve"))

    with pytest.raises(FilesError, match="append metadata/reserve"):
        opened(files)


def test_a_torn_end_that_cannot_be_copied_refuses_to_open() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    files.put(FIRST_LOG, files.content(FIRST_LOG) + b"torn")
    files.fail(Fault("append", "*.cut"))

    with pytest.raises(FilesError, match="append"):
        opened(files)
    assert files.content(FIRST_LOG).endswith(b"torn")


def test_a_disk_that_breaks_while_full_ends_the_log() -> None:
    files, log = full()
    files.fail(Fault("remove", "metadata/reserve"))
    propose(log, 2, Urgency.ESSENTIAL)

    refused, failed = pump(files, log)

    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnavailableError)
    assert isinstance(failed, Failed)


def test_a_disk_that_breaks_while_a_file_is_begun_refuses_what_waits() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    commit(files, log, 1)
    propose(log, 2)
    log.snapshot(MetadataIndex(1), b"state")
    propose(log, 3)
    files.fail(Fault("append", "*.log.new"))

    committed, refused, failed = pump(files, log)

    assert isinstance(committed, Committed)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnavailableError)
    assert isinstance(failed, Failed)


def test_a_mark_that_cannot_be_written_ends_the_log() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    propose(log, 1)
    files.fail(Fault("append", FIRST_LOG))

    committed, failed = pump(files, log)

    assert isinstance(committed, Committed)
    assert isinstance(failed, Failed)


def test_a_snapshot_after_a_failure_is_left_out() -> None:
    files = MemoryFiles()
    log, _ = opened(files)
    propose(log, 1)
    files.fail(Fault("append", FIRST_LOG))
    pump(files, log)

    log.snapshot(MetadataIndex(1), b"state")

    assert log.snapshot_index == 0
    assert not [path for path in files.paths() if path.endswith(".snapshot")]


def test_a_file_of_another_version_is_refused() -> None:
    files = MemoryFiles()
    body = b"LBML" + (2).to_bytes(2, "big") + bytes(2) + (1).to_bytes(8, "big") + bytes(4)
    files.put(FIRST_LOG, body + crc32c(body).to_bytes(4, "big"))

    with pytest.raises(CorruptionError, match="header of another version"):
        opened(files)
