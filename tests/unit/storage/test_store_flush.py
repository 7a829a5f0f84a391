"""When the store calls records durable, and that it never does so too early or after a failure."""

import contextlib

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import (
    Instant,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
    StreamName,
)
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.storage.flush import UNHURRIED_COUNT_MAX, Flushed, FlushLimits
from liftbridge_broker.storage.journal import parse_journal
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.memory_files import Fault, PowerCutError
from liftbridge_testkit.stores import NO_LIMITS, StoreBed, key_of

A, B, C = key_of(1), key_of(2), key_of(3)
COMMIT = StreamOptions(fsync_policy=FsyncPolicy.COMMIT)
INTERVAL = StreamOptions(fsync_policy=FsyncPolicy.INTERVAL)
NEVER = StreamOptions(fsync_policy=FsyncPolicy.NEVER)
AUTO = StreamOptions(fsync_policy=FsyncPolicy.AUTO)
LIMITS = FlushLimits(
    interval_ns=1_000,
    bytes_max=5_000,
    journal_ns=100,
    background_ns=60_000,
    background_bytes_max=20_000,
)


@pytest.fixture
def bed() -> StoreBed:
    return StoreBed(options=StoreOptions(space=NO_LIMITS, flush=LIMITS))


def flushed(partition: PartitionId, offset: int) -> Flushed:
    return Flushed(partition, Offset(offset))


@pytest.mark.parametrize("options", [COMMIT, AUTO])
def test_commit_syncs_at_once_and_tells_only_when_the_sync_returned(
    bed: StoreBed, options: StreamOptions
) -> None:
    bed.start({A: options})
    bed.append(A, [b"x"])
    assert len(bed.files.calls.waiting) == 1
    assert bed.log(A).recovery_point == 0

    assert bed.pump() == [flushed(A, 1)]

    assert bed.log(A).recovery_point == 1
    path = bed.log(A).segments()[0].path
    assert bed.files.durable_content(path) == bed.files.content(path)


def test_what_is_appended_during_a_sync_shares_the_next_one(bed: StoreBed) -> None:
    bed.start({A: COMMIT, B: COMMIT, C: COMMIT})
    bed.append(A, [b"1"])
    for partition in (B, A, C, B):
        bed.append(partition, [b"2"])
    assert len(bed.files.calls.waiting) == 1
    assert bed.pump(1) == [flushed(A, 1)]
    assert len(bed.files.calls.waiting) == 1
    assert bed.pump(1) == [flushed(B, 2), flushed(A, 2), flushed(C, 1)]
    assert not bed.files.calls.waiting


def test_interval_waits_for_its_time_and_then_takes_all_along(bed: StoreBed) -> None:
    bed.start({A: INTERVAL, B: INTERVAL})
    first = bed.now
    bed.append(A, [b"1"])
    bed.advance(600)
    bed.append(B, [b"2"])
    assert bed.flushed == []
    assert bed.store.next_deadline() == Instant(first + 1_000)
    bed.advance(400)
    assert bed.flushed == [flushed(A, 1), flushed(B, 1)]


def test_interval_does_not_wait_for_more_than_its_bytes(bed: StoreBed) -> None:
    bed.start({A: INTERVAL})
    appended = 0
    while not bed.files.calls.waiting:
        bed.append(A, [b"x" * 1_000])
        appended += 1
    assert 5 <= appended <= 16


def test_never_waits_for_nobody_and_is_synced_in_the_background(bed: StoreBed) -> None:
    bed.start({A: NEVER})
    bed.append(A, [b"1"])
    bed.advance(59_000)
    assert bed.flushed == []
    bed.advance(2_000)
    assert bed.flushed == [flushed(A, 1)]


def test_many_interval_logs_do_not_keep_a_commit_waiting(bed: StoreBed) -> None:
    many = [key_of(n) for n in range(10, 110)]
    bed.start({A: COMMIT} | dict.fromkeys(many, INTERVAL))
    for partition in many:
        bed.append(partition, [b"x"])
    bed.now = Instant(bed.now + 1_000)
    bed.store.on_timer(bed.now, bed.wall_ns)
    bed.append(A, [b"y"])
    first = bed.pump(1)
    second = bed.pump(1)
    assert len(first) == UNHURRIED_COUNT_MAX
    assert second[0] == flushed(A, 1)
    assert len(first) + len(second) + len(bed.pump()) == 101


def test_nothing_is_due_while_a_sync_is_under_way(bed: StoreBed) -> None:
    """Else the shell would turn in circles until the device answers."""
    bed.start({A: COMMIT, B: INTERVAL})
    bed.advance(1_000)
    cleaner = bed.store.next_deadline()
    bed.append(B, [b"1"])
    bed.append(A, [b"1"])
    assert bed.store.next_deadline() == cleaner


def test_idle_store_wants_nothing_but_the_cleaner(bed: StoreBed) -> None:
    bed.start({A: COMMIT, B: INTERVAL})
    bed.append(A, [b"1"])
    bed.append(B, [b"1"])
    bed.pump()
    bed.advance(10_000)
    points = bed.files.power.points
    bed.advance(1_000_000)
    assert bed.files.power.points == points
    assert bed.store.next_deadline() is not None


def test_policy_that_becomes_commit_syncs_what_waits(bed: StoreBed) -> None:
    bed.start({A: INTERVAL})
    bed.append(A, [b"1"])
    assert not bed.files.calls.waiting
    bed.store.set_options(A, COMMIT, bed.now)
    assert bed.log(A).commit
    assert bed.pump() == [flushed(A, 1)]
    bed.advance(5_000)
    assert bed.flushed == [flushed(A, 1)]


def test_policy_that_becomes_interval_hurries_no_more(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    bed.append(A, [b"1"])
    bed.append(A, [b"2"])
    bed.store.set_options(A, INTERVAL, bed.now)
    bed.pump()
    assert bed.flushed == [flushed(A, 1), flushed(A, 2)]
    bed.append(A, [b"3"])
    assert bed.pump() == []
    bed.advance(1_000)
    assert bed.flushed[-1] == flushed(A, 3)


def test_failed_sync_takes_the_directory_offline_and_is_never_retried(bed: StoreBed) -> None:
    bed.start({A: COMMIT, B: INTERVAL})
    bed.append(B, [b"1"])
    bed.append(A, [b"1"])
    bed.files.fail(Fault("sync"))
    assert bed.pump() == []
    assert bed.failures == [bed.store.disk.failure]
    assert bed.store.disk.failure.endswith("Input/output error")
    assert len(bed.told("data_directory_offline")) == 1
    assert bed.store.next_deadline() is None
    points = bed.files.power.points
    bed.append(A, [b"2"])
    bed.store.on_timer(Instant(bed.now + 10**12), bed.wall_ns)
    assert bed.pump() == []
    assert not bed.files.calls.waiting
    assert bed.files.power.points == points + 1
    assert bed.log(A).recovery_point == 0


def test_failed_sync_of_the_journal_is_as_bad(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    bed.append(A, [b"1"])
    bed.pump()
    bed.files.fail(Fault("sync", "journal*"))
    bed.advance(1_000)
    assert bed.failures
    assert bed.append(A, [b"2"]) == 2
    assert bed.pump() == []


def test_failed_append_that_is_not_for_space_takes_the_directory_offline(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    bed.store.disk.on_error(FilesError("append: Input/output error"), bed.now)
    assert bed.failures == ["append: Input/output error"]


def test_recovery_point_reaches_the_journal_soon_and_after_the_log(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    bed.append(A, [b"1"])
    bed.pump()
    written = [path for operation, path in bed.files.power.log if operation == "append"]
    assert written[-1].endswith(".log")
    bed.advance(100)
    assert list(bed.files.power.log)[-1] == ("sync", "journal")
    bed.files.crash(None)
    bed.start({A: COMMIT})
    assert bed.log(A).recovery_point == 1


def test_journal_is_flushed_at_once_for_who_waits(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    calls: list[int] = []
    bed.log(A).epochs.assign(LeaderEpoch(7), Offset(0))
    bed.store.journal_state(A, lambda: calls.append(1), bed.now)
    assert calls == []
    bed.pump()
    assert calls == [1]
    bed.store.journal_state(A, lambda: calls.append(2), bed.now)
    assert calls == [1, 2]
    bed.files.crash(None)
    bed.start({A: COMMIT})
    assert bed.log(A).epochs.latest == 7


def test_waiter_that_comes_during_a_sync_waits_for_the_next(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    calls: list[int] = []
    bed.append(A, [b"1"])
    bed.log(A).epochs.assign(LeaderEpoch(7), Offset(1))
    bed.store.journal_state(A, lambda: calls.append(1), bed.now)
    bed.pump(1)
    assert calls == []
    bed.pump(1)
    assert calls == [1]


def test_waiter_is_told_after_the_space_came_back(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    calls: list[int] = []
    bed.files.fail(Fault("append", "journal*", count=2, is_full=True))
    bed.log(A).epochs.assign(LeaderEpoch(7), Offset(0))
    bed.store.journal_state(A, lambda: calls.append(1), bed.now)
    assert bed.store.disk.is_full
    assert bed.told("disk_full")
    bed.advance(500_000_000)
    assert calls == []
    bed.advance(3_000_000_000)
    assert calls == [1]
    assert bed.told("disk_space_regained")
    assert not bed.store.disk.failure


def test_log_that_was_deleted_during_its_sync_is_not_told(bed: StoreBed) -> None:
    bed.start({A: COMMIT, B: COMMIT})
    bed.append(A, [b"1"])
    bed.append(B, [b"1"])
    bed.append(A, [b"2"])
    bed.store.delete((A,), bed.now, bed.wall_ns)
    assert bed.pump() == [flushed(B, 1)]


def test_log_cut_during_its_sync_is_synced_again_for_what_came_after(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    bed.append(A, [b"1"])
    bed.pump()
    bed.append(A, [b"old"])
    bed.store.truncate([(A, Offset(1))], bed.now)
    bed.append(A, [b"new"], leader_epoch=2)
    assert bed.pump(1) == [flushed(A, 1)]
    assert bed.pump(1) == [flushed(A, 2)]


def test_truncation_below_the_recovery_point_lowers_it_durably_first(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    bed.append(A, [b"1", b"2", b"3"])
    bed.append(A, [b"4", b"5", b"6"])
    bed.pump()
    bed.advance(1_000)
    bed.store.truncate([(A, Offset(2))], bed.now)
    bed.files.crash(None)
    bed.start({A: COMMIT})
    assert not bed.log(A).is_offline
    assert bed.told("log_truncated")[0]["removed_messages"] == 4


def test_bytes_of_a_killed_process_are_synced_before_they_count(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    bed.append(A, [b"1"])
    bed.files.kill()
    bed.start({A: COMMIT})
    assert bed.log(A).log_end_offset == 1
    assert bed.log(A).recovery_point == 0
    assert bed.pump() == [flushed(A, 1)]


def test_log_is_strict_only_when_all_it_holds_was_written_under_commit(bed: StoreBed) -> None:
    """Else a power cut that tears what was written before looks like rot afterwards."""
    bed.start({A: INTERVAL})
    bed.append(A, [b"1"])
    bed.now = Instant(bed.now + 1_000)
    bed.store.on_timer(bed.now, bed.wall_ns)
    bed.append(A, [b"2"])
    bed.store.set_options(A, COMMIT, bed.now)
    assert bed.pump(1) == [flushed(A, 1)]
    bed.store.journal_state(A, lambda: None, bed.now)
    assert parse_journal(strict_journal(bed)).strict == frozenset()
    bed.pump()
    bed.advance(1_000)
    assert parse_journal(strict_journal(bed)).strict == {A}
    bed.store.set_options(A, INTERVAL, bed.now)
    assert parse_journal(bed.files.durable_content("journal")).strict == frozenset()


def strict_journal(bed: StoreBed) -> bytes:
    """The journal as a process sees it, after what waits was written."""
    bed.store.journal_state(A, lambda: None, bed.now)
    return bed.files.content("journal")


def test_whole_new_log_under_commit_is_strict(bed: StoreBed) -> None:
    bed.start({A: COMMIT})
    bed.append(A, [b"1"])
    bed.pump()
    bed.advance(1_000)
    assert parse_journal(bed.files.durable_content("journal")).strict == {A}


def restarted(bed: StoreBed, options: StreamOptions) -> bool:
    """Kill the process and open the log again, without a session; whether it was found strict."""
    bed.files.kill()
    bed.open()
    bed.store.open(A, StreamName("stream"), options, bed.now)
    bed.store.begin(MetadataIndex(0), bed.now)
    return bed.store.was_strict(A)


def strict_log(bed: StoreBed) -> str:
    """A log under commit with two synced records, whose journal knows the first; its file."""
    bed.start({A: COMMIT})
    bed.append(A, [b"1" * 2_000])
    bed.pump()
    bed.advance(1_000)
    bed.append(A, [b"2" * 2_000])
    bed.pump()
    (path,) = [path for path in bed.files.paths() if path.endswith(".log")]
    return path


def test_log_that_lost_what_may_have_counted_is_not_whole_at_a_later_start_either(
    bed: StoreBed,
) -> None:
    path = strict_log(bed)
    data = bed.files.content(path)
    bed.files.put(path, data[:-1_500] + bytes(1_500))
    assert not restarted(bed, COMMIT)
    assert bed.log(A).log_end_offset == 1
    bed.pump()
    bed.advance(1_000)
    assert not restarted(bed, COMMIT)
    bed.pump()
    bed.store.begin_session(MetadataIndex(0), bed.now)
    bed.advance(1_000)
    assert restarted(bed, COMMIT)


def test_doubt_is_durable_before_anything_is_cut(bed: StoreBed) -> None:
    path = strict_log(bed)
    bad = bed.files.content(path)[:-1_500] + bytes(1_500)
    bed.files.kill()
    bed.files.put(path, bad)
    for count in range(1, 100):
        bed.files.power.cut_at = bed.files.power.points + count
        with contextlib.suppress(PowerCutError):
            bed.open()
            bed.store.open(A, StreamName("stream"), COMMIT, bed.now)
        bed.files.crash(None)
        if bed.files.content(path) != bad:
            break
    assert bed.files.content(path) != bad
    assert not restarted(bed, COMMIT)


def test_log_whose_policy_becomes_commit_is_not_whole_before_its_loss_was_told(
    bed: StoreBed,
) -> None:
    bed.start({A: INTERVAL})
    bed.append(A, [b"1"])
    assert not restarted(bed, INTERVAL)
    bed.store.set_options(A, COMMIT, bed.now)
    bed.pump()
    bed.advance(1_000)
    assert not restarted(bed, COMMIT)


def test_damaged_journal_proves_nothing_of_policies(bed: StoreBed) -> None:
    bed.start(dict.fromkeys((A, B, C), COMMIT))
    bed.append(A, [b"1"])
    bed.pump()
    bed.advance(1_000)
    bed.files.kill()
    journal = bytearray(bed.files.content("journal"))
    journal[-80] ^= 1
    bed.files.put("journal", bytes(journal))
    loaded = parse_journal(bytes(journal))
    assert (loaded.damaged_count, A in loaded.strict) == (1, True)
    assert not restarted(bed, COMMIT)
    assert not restarted(bed, COMMIT)
