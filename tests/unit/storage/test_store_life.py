"""The store from start to end: clean stops, deletion, retention, compaction, full disks."""

from contextlib import suppress

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Instant, MetadataIndex, Offset, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.reserve import SpaceLimits
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.memory_files import Fault, MemoryFiles, PowerCutError
from liftbridge_testkit.stores import IDENTITY, NO_LIMITS, StoreBed, key_of, values_in

A, B = key_of(1), key_of(2)
MS = 1_000_000
PLAIN = StreamOptions(fsync_policy=FsyncPolicy.COMMIT, segment_bytes_max=300)
TRIM = StreamOptions(
    fsync_policy=FsyncPolicy.COMMIT,
    segment_bytes_max=300,
    retention_messages_max=4,
    cleaner_interval_ms=100,
)
COMPACT = StreamOptions(
    fsync_policy=FsyncPolicy.COMMIT,
    segment_bytes_max=300,
    compact_enabled=True,
    cleaner_interval_ms=100,
)


@pytest.fixture
def bed() -> StoreBed:
    return StoreBed(
        options=StoreOptions(
            space=NO_LIMITS, trash_grace_ns=500 * MS, flush=FlushLimits(journal_ns=MS)
        )
    )


def fill(bed: StoreBed, count: int, keys: str = "") -> None:
    """Append records one by one, durable and committed."""
    for number in range(count):
        key = [keys[number % len(keys)].encode()] if keys else None
        bed.append(A, [b"value %d" % number + b"." * 100], keys=key)
        bed.pump()
        bed.commit(A)


# Start and end.


def test_clean_stop_is_known_by_the_next_start_and_only_by_that(bed: StoreBed) -> None:
    bed.start({A: PLAIN})
    fill(bed, 3)
    bed.store.close(broker_epoch=42)
    bed.files.crash(None)
    store = bed.start({A: PLAIN})
    assert (store.last_stop.was_clean, store.last_stop.broker_epoch) == (True, 42)
    assert bed.log(A).recovery_point == bed.log(A).log_end_offset == 3
    bed.files.crash(None)
    store = bed.start({A: PLAIN})
    assert (store.last_stop.was_clean, store.last_stop.broker_epoch) == (False, None)
    assert bed.told("data_directory_opened")[-1]["is_clean"] is False


def test_marker_is_gone_durably_before_the_first_append(bed: StoreBed) -> None:
    bed.start({A: PLAIN})
    bed.store.close(broker_epoch=1)
    bed.files.kill()
    bed.start({A: PLAIN})
    bed.files.crash(None)
    assert not bed.files.exists("clean")


def test_old_marker_that_comes_back_is_not_believed(bed: StoreBed) -> None:
    bed.start({A: PLAIN})
    fill(bed, 1)
    bed.store.close(broker_epoch=1)
    marker = bed.files.content("clean")
    bed.files.kill()
    bed.start({A: PLAIN})
    fill(bed, 1)
    bed.files.kill()
    bed.files.put("clean", marker)
    assert not bed.open().last_stop.was_clean


def test_old_journal_beside_a_new_marker_is_not_believed(bed: StoreBed) -> None:
    bed.start({A: PLAIN})
    fill(bed, 1)
    bed.advance(10 * MS)
    journal = bed.files.content("journal")
    fill(bed, 1)
    bed.store.close(broker_epoch=1)
    bed.files.kill()
    bed.files.put("journal", journal)
    store = bed.start({A: PLAIN})
    assert not store.last_stop.was_clean
    assert bed.log(A).log_end_offset == 2


def test_failed_close_leaves_no_marker(bed: StoreBed) -> None:
    bed.start({A: StreamOptions(fsync_policy=FsyncPolicy.NEVER)})
    bed.append(A, [b"x"])
    bed.files.fail(Fault("sync", "*.log"))
    with pytest.raises(FilesError):
        bed.store.close(broker_epoch=1)
    assert not bed.files.exists("clean")


def test_store_that_failed_closes_without_a_marker(bed: StoreBed) -> None:
    bed.start({A: PLAIN})
    bed.files.fail(Fault("sync"))
    bed.append(A, [b"x"])
    bed.pump()
    bed.store.close(broker_epoch=1)
    assert not bed.files.exists("clean")
    assert bed.files.open_count == 0


def test_closed_store_holds_no_file(bed: StoreBed) -> None:
    bed.start({A: PLAIN, B: TRIM})
    fill(bed, 5)
    bed.store.close(broker_epoch=1)
    assert bed.files.open_count == 0


def test_state_of_the_log_outlives_a_power_cut(bed: StoreBed) -> None:
    bed.start({A: TRIM})
    fill(bed, 13)
    bed.advance(150 * MS)
    before = bed.log(A).state
    bed.files.crash(None)
    bed.start({A: TRIM})
    after = bed.log(A).state
    # The high watermark is journaled with the next sync that follows it.
    assert after == before._replace(high_watermark=after.high_watermark)
    assert before.log_start == 10


def test_identity_is_told(bed: StoreBed) -> None:
    store = bed.open()
    assert (store.identity, store.is_identity_new) == (IDENTITY, True)


def test_what_is_not_ours_is_told_and_left(bed: StoreBed) -> None:
    bed.files.put("strange/file", b"x")
    bed.start({A: PLAIN, B: PLAIN})
    bed.append(B, [b"kept"])
    bed.pump()
    bed.advance(10 * MS)
    bed.files.crash(None)
    bed.transitions.clear()
    store = bed.start({A: PLAIN})
    paths = [fields["path"] for fields in bed.told("unknown_directory_kept")]
    assert paths == ["strange", "streams/0000000002-stream/0"]
    assert store.unopened() == (B,)
    store.open(B, StreamName("stream"), PLAIN, bed.now)
    assert values_in(bed.log(B)) == {0: b"kept"}


def test_log_with_damage_below_its_recovery_point_is_offline_and_untouched(bed: StoreBed) -> None:
    bed.start({A: PLAIN})
    fill(bed, 6)
    bed.advance(10 * MS)
    bed.files.crash(None)
    path = bed.files.paths("streams")[1]
    bed.files.flip_bit(path, 3)
    before = bed.files.content(path)
    for name in bed.files.paths("streams"):
        if name.endswith(".index"):
            bed.files.remove(name)
    bed.open()
    opened = bed.store.open(A, StreamName("stream"), PLAIN, bed.now)
    assert opened.reason
    assert bed.told("segment_quarantined")[0]["path"] == path
    assert bed.files.content(path) == before


# Deletion.


@pytest.mark.parametrize("writes", range(12))
@pytest.mark.parametrize("is_power_cut", [False, True])
def test_log_that_began_anew_is_not_called_damaged_after_a_crash_at_any_write(
    bed: StoreBed, writes: int, is_power_cut: bool
) -> None:
    """The journal knew more of the log before it, and may not have forgotten that yet."""
    bed.start({A: PLAIN})
    fill(bed, 3)
    bed.advance(5 * MS)
    bed.files.power.cut_at = bed.files.power.points + writes
    with suppress(PowerCutError):
        bed.store.delete((A,), bed.now, bed.wall_ns)
        bed.pump(writes % 3)
        bed.store.open(A, StreamName("stream"), PLAIN, bed.now)
    if is_power_cut:
        bed.files.crash(None)
    else:
        bed.files.kill()
    bed.files.power.cut_at = 0
    bed.open()
    found = bed.store.open(A, StreamName("stream"), PLAIN, bed.now)
    assert found.log.log_end_offset in (0, 3)
    assert found.reason == ""


def test_deleted_log_waits_in_the_trash_and_is_purged_after_its_grace(bed: StoreBed) -> None:
    bed.start({A: PLAIN, B: PLAIN})
    fill(bed, 1)
    bed.store.delete((A,), bed.now, bed.wall_ns)
    assert bed.store.log(A) is None
    assert len(bed.files.paths("trash")) == 1
    bed.files.crash(None)
    bed.start({B: PLAIN})
    assert len(bed.files.paths("trash")) == 1
    size = sum(len(bed.files.content(path)) for path in bed.files.paths("trash"))
    assert size > 100
    bed.advance(400 * MS)
    assert len(bed.files.paths("trash")) == 1
    bed.advance(200 * MS)
    assert bed.files.paths("trash") == ()
    assert bed.told("trash_purged") == [{"entries": 1, "bytes": size}]


def test_clock_that_was_set_back_does_not_keep_trash_for_ever(bed: StoreBed) -> None:
    bed.start({A: PLAIN})
    bed.store.delete((A,), bed.now, bed.wall_ns + 10**15)
    bed.advance(600 * MS)
    assert bed.told("trash_purged")


def test_logs_are_purged_one_at_a_time_oldest_first(bed: StoreBed) -> None:
    keys = [key_of(n) for n in range(1, 5)]
    bed.start(dict.fromkeys(keys, PLAIN))
    for key in keys:
        bed.store.delete((key,), bed.now, bed.wall_ns)
    trash = sorted(bed.files.list("trash"), key=lambda name: name[17:])
    bed.files.power.log.clear()
    bed.advance(600 * MS)
    removed = [
        path.split("/")[1] for operation, path in bed.files.power.log if operation == "remove"
    ]
    assert removed == trash
    assert len(trash) == len(bed.told("trash_purged")) == 4


def test_deletion_of_a_log_that_is_not_open_moves_it_too(bed: StoreBed) -> None:
    bed.start({A: PLAIN})
    bed.advance(10 * MS)
    bed.files.kill()
    bed.open()
    assert bed.store.unopened() == (A,)
    bed.store.delete((A,), bed.now, bed.wall_ns)
    bed.store.begin(MetadataIndex(0), bed.now)
    assert bed.told("unknown_directory_kept") == []
    assert bed.store.unopened() == ()


def test_failed_purge_takes_the_directory_offline(bed: StoreBed) -> None:
    bed.start({A: PLAIN})
    bed.store.delete((A,), bed.now, bed.wall_ns)
    bed.files.fail(Fault("remove", "trash/*"))
    bed.advance(600 * MS)
    assert bed.failures


# Retention.


def test_segments_go_after_the_log_start_is_durable(bed: StoreBed) -> None:
    bed.start({A: TRIM})
    fill(bed, 13)
    paths = bed.files.paths("streams")
    bed.now = Instant(bed.now + 150 * MS)
    bed.store.on_timer(bed.now, bed.wall_ns)
    assert bed.log(A).log_start_offset == 10
    assert bed.files.paths("streams") == paths
    bed.pump()
    assert len(bed.files.paths("streams")) < len(paths)
    (told,) = bed.told("segments_deleted")
    assert told["log_start_offset"] == 10
    assert min(values_in(bed.log(A))) == 10


def test_follower_keeps_its_log_start(bed: StoreBed) -> None:
    bed.start({A: TRIM})
    fill(bed, 12)
    bed.store.set_leader(A, is_leader=False)
    bed.advance(500 * MS)
    assert bed.log(A).log_start_offset == 0
    bed.store.raise_log_start(A, Offset(5), bed.now)
    bed.pump()
    assert bed.log(A).log_start_offset == 5
    assert bed.told("segments_deleted")[0]["reason"] == "request"


def test_uncommitted_records_are_not_removed(bed: StoreBed) -> None:
    bed.start({A: TRIM})
    for _ in range(12):
        bed.append(A, [b"." * 100])
    bed.pump()
    bed.advance(500 * MS)
    assert bed.log(A).log_start_offset == 0


def test_segment_is_rolled_by_age_on_a_tick_that_does_nothing_else(bed: StoreBed) -> None:
    options = StreamOptions(
        fsync_policy=FsyncPolicy.COMMIT,
        segment_age_ms_max=1_000,
        retention_age_ms_max=1,
        cleaner_interval_ms=100,
    )
    bed.start({A: options})
    fill(bed, 1)
    bed.advance(900 * MS)
    assert bed.told("segment_rolled") == []
    bed.advance(200 * MS)
    assert bed.told("segment_rolled") == [{"stream": "stream", "partition": 0, "base_offset": 1}]
    assert bed.log(A).log_start_offset == 0
    bed.advance(200 * MS)
    assert bed.log(A).log_start_offset == 1


def test_ticks_of_many_logs_are_spread_over_the_interval(bed: StoreBed) -> None:
    keys = [key_of(n) for n in range(1, 201)]
    bed.start(dict.fromkeys(keys, TRIM))
    deadlines = set()
    until = bed.now + 100 * MS
    while (deadline := bed.store.next_deadline()) is not None and deadline < until:
        deadlines.add(deadline)
        bed.now = deadline
        bed.store.on_timer(bed.now, bed.wall_ns)
        bed.pump()
    assert len(deadlines) > 150


# Compaction.


def test_compaction_runs_by_itself_and_readers_go_on(bed: StoreBed) -> None:
    bed.start({A: COMPACT})
    fill(bed, 12, keys="abc")
    reader = bed.log(A).reader(Offset(0))
    reader.read(200, Offset(12))
    bed.advance(1_000 * MS)
    assert sorted(values_in(bed.log(A))) == [9, 10, 11]
    (told, *_) = bed.told("log_compacted")
    assert told["removed_messages"] == 9
    assert not any("cleaned" in path for path in bed.files.paths())
    assert reader.read(1 << 20, Offset(12)).count == 3


def test_log_without_news_is_not_compacted_again(bed: StoreBed) -> None:
    bed.start({A: COMPACT})
    fill(bed, 12, keys="abc")
    bed.advance(5_000 * MS)
    passes = len(bed.told("log_compacted"))
    points = bed.files.power.points
    bed.advance(60_000 * MS)
    assert len(bed.told("log_compacted")) == passes <= 3
    assert bed.files.power.points == points


def test_record_that_is_not_durable_makes_none_go(bed: StoreBed) -> None:
    bed.start({A: COMPACT})
    fill(bed, 6, keys="ab")
    bed.store.set_options(
        A,
        StreamOptions(
            fsync_policy=FsyncPolicy.NEVER,
            segment_bytes_max=300,
            compact_enabled=True,
            cleaner_interval_ms=100,
        ),
        bed.now,
    )
    for key in (b"a", b"b"):
        bed.append(A, [b"new"], keys=[key])
    bed.commit(A)
    bed.advance(1_000 * MS)
    assert {4, 5} <= set(values_in(bed.log(A)))
    bed.files.crash(None)
    bed.start({A: COMPACT})
    assert sorted(values_in(bed.log(A))) == [4, 5]


def test_failed_compaction_is_told_and_changes_nothing(bed: StoreBed) -> None:
    bed.start({A: COMPACT})
    fill(bed, 12, keys="abc")
    bed.files.fail(Fault("append", "*.cleaned", is_full=True))
    bed.now = Instant(bed.now + 110 * MS)
    while not bed.told("compaction_failed"):
        bed.store.on_timer(bed.now, bed.wall_ns)
        bed.now = Instant(bed.now + 10 * MS)
    assert len(values_in(bed.log(A))) == 12
    assert not bed.store.disk.failure


@pytest.mark.parametrize("is_full", [True, False])
def test_result_that_cannot_be_put_in_place_is_given_up(bed: StoreBed, *, is_full: bool) -> None:
    bed.start({A: COMPACT})
    fill(bed, 12, keys="abc")
    bed.files.fail(Fault("rename", "*.log.cleaned", is_full=is_full))
    bed.now = Instant(bed.now + 110 * MS)
    while not bed.told("compaction_failed"):
        bed.store.on_timer(bed.now, bed.wall_ns)
        bed.now = Instant(bed.now + 10 * MS)
    assert len(values_in(bed.log(A))) == 12
    assert bool(bed.store.disk.failure) is not is_full
    bed.advance(3_000 * MS)
    assert bool(bed.told("log_compacted")) is is_full


def test_log_deleted_while_it_is_compacted_is_left_alone(bed: StoreBed) -> None:
    bed.start({A: COMPACT, B: PLAIN})
    for number in range(30):
        bed.append(A, [b"." * 100_000], keys=[b"%d" % (number % 3)])
        bed.pump()
        bed.commit(A)
    while not any("cleaned" in path for path in bed.files.paths()):
        deadline = bed.store.next_deadline()
        assert deadline is not None
        bed.now = max(bed.now, deadline)
        bed.store.on_timer(bed.now, bed.wall_ns)
        bed.pump()
    bed.store.delete((A,), bed.now, bed.wall_ns)
    bed.advance(300 * MS)
    assert bed.told("log_compacted") == bed.told("compaction_failed") == []
    bed.append(B, [b"x"])
    bed.pump()
    assert not bed.store.disk.failure


def begin_compaction(bed: StoreBed) -> None:
    """Fill a log with more than one step reads, and let its compaction begin."""
    bed.start({A: COMPACT})
    for number in range(30):
        bed.append(A, [b"." * 100_000], keys=[b"%d" % (number % 3)])
        bed.pump()
        bed.commit(A)
    while (deadline := bed.store.next_deadline()) is not None and not bed.log(A).compacted_offset:
        bed.now = max(bed.now, deadline)
        reads = bed.files.open_count
        bed.store.on_timer(bed.now, bed.wall_ns)
        if bed.files.open_count > reads:
            return


def test_retention_during_a_compaction_is_no_failure(bed: StoreBed) -> None:
    begin_compaction(bed)
    bed.store.raise_log_start(A, Offset(20), bed.now)
    bed.pump()
    assert bed.told("segments_deleted")
    bed.advance(2_000 * MS)
    assert bed.told("compaction_failed") == []
    assert sorted(values_in(bed.log(A))) == [27, 28, 29]
    assert not bed.store.disk.failure


def test_cut_during_a_compaction_is_no_failure_and_not_compacted(bed: StoreBed) -> None:
    begin_compaction(bed)
    bed.store.truncate([(A, Offset(10))], bed.now)
    bed.log(A).high_watermark = Offset(10)
    bed.store.set_options(A, PLAIN, bed.now)
    bed.advance(1_000 * MS)
    assert bed.told("compaction_failed") == []
    assert bed.log(A).compacted_offset == 0
    assert list(values_in(bed.log(A))) == list(range(10))


# Publisher snapshots.


def test_snapshot_is_written_before_batches_go_and_at_the_end(bed: StoreBed) -> None:
    bed.start({A: TRIM})
    states = iter([b"one", b"two"])
    bed.store.notes.set_snapshot_source(A, lambda: next(states))
    assert bed.store.notes.read_snapshot(A) is None
    fill(bed, 13)
    bed.advance(150 * MS)
    assert bed.store.notes.read_snapshot(A) == b"one"
    bed.store.close(broker_epoch=1)
    bed.files.crash(None)
    bed.start({A: TRIM})
    assert bed.store.notes.read_snapshot(A) == b"two"


# Full disks.


def test_full_disk_is_refused_survived_and_left() -> None:
    bed = StoreBed(
        files=MemoryFiles(capacity_bytes=6_000),
        options=StoreOptions(space=SpaceLimits(reserve_bytes=1_000, free_bytes_min=500)),
    )
    bed.start({A: PLAIN, B: PLAIN})
    while not bed.store.disk.is_full:
        bed.append(A, [b"." * 100])
        bed.pump()
        bed.advance(300 * MS)
    end = bed.log(A).log_end_offset
    assert bed.files.free_bytes() < 500
    assert len(bed.told("disk_full")) == 1
    assert len(values_in(bed.log(A))) == end
    bed.store.delete((A,), bed.now, bed.wall_ns)
    bed.advance(3_000 * MS)
    assert not bed.store.disk.is_full
    assert len(bed.told("disk_space_regained")) == 1
    bed.append(B, [b"again"])
    assert bed.pump()
    assert not bed.store.disk.failure


def test_append_that_meets_a_full_disk_gives_the_reserve_back() -> None:
    bed = StoreBed(
        files=MemoryFiles(capacity_bytes=4_000),
        options=StoreOptions(space=SpaceLimits(reserve_bytes=1_000, free_bytes_min=0)),
    )
    bed.start({A: PLAIN})

    def append_on() -> None:
        while True:
            bed.append(A, [b"." * 100])
            bed.pump()

    with pytest.raises(FilesError) as refused:
        append_on()
    bed.store.disk.on_error(refused.value, bed.now)
    assert bed.store.disk.is_full
    assert not bed.files.exists("reserve")
    calls: list[int] = []
    bed.store.journal_state(A, lambda: calls.append(1), bed.now)
    bed.pump()
    assert calls == [1]
    assert not bed.store.disk.failure


def test_start_on_a_full_disk_serves_reads() -> None:
    bed = StoreBed(options=StoreOptions(space=SpaceLimits(reserve_bytes=500, free_bytes_min=0)))
    bed.start({A: PLAIN})
    bed.append(A, [b"kept"])
    bed.pump()
    bed.advance(1_000 * MS)
    bed.files.kill()
    bed.files.remove("reserve")
    bed.files.capacity_bytes -= bed.files.free_bytes()
    bed.start({A: PLAIN})
    assert bed.store.disk.is_full
    assert values_in(bed.log(A)) == {0: b"kept"}
    assert not bed.store.disk.failure


def test_deletion_on_a_full_disk_purges_the_oldest_trash_at_once() -> None:
    bed = StoreBed(options=StoreOptions(space=SpaceLimits(reserve_bytes=100, free_bytes_min=0)))
    bed.start({A: PLAIN, B: PLAIN})
    bed.append(A, [b"." * 1_000])
    bed.pump()
    bed.store.delete((A,), bed.now, bed.wall_ns)
    bed.store.disk.on_error(FilesError("full", is_full=True), bed.now)
    bed.pump()
    assert bed.files.paths("trash") == ()


def test_truncation_on_a_full_disk_happens_or_is_refused_whole() -> None:
    bed = StoreBed(options=StoreOptions(space=SpaceLimits(reserve_bytes=0, free_bytes_min=0)))
    bed.start({A: PLAIN})
    bed.append(A, [b"1", b"2", b"3"])
    bed.pump()
    bed.files.fail(Fault("append", "journal*", count=2, is_full=True))
    with pytest.raises(FilesError):
        bed.store.truncate([(A, Offset(1))], bed.now)
    assert bed.log(A).log_end_offset == 3
    assert not bed.store.disk.failure
    bed.store.truncate([(A, Offset(1))], bed.now)
    assert bed.log(A).log_end_offset == 1


def test_one_damaged_file_name_does_not_stop_others(bed: StoreBed) -> None:
    bed.start({A: PLAIN, B: PLAIN})
    bed.append(B, [b"kept"])
    bed.pump()
    bed.advance(10 * MS)
    bed.files.kill()
    bed.files.fail(Fault("open", "streams/0000000002*", count=-1))
    bed.open()
    bed.store.open(A, StreamName("stream"), PLAIN, bed.now)
    with pytest.raises(FilesError):
        bed.store.open(B, StreamName("stream"), PLAIN, bed.now)
    bed.store.begin(MetadataIndex(0), bed.now)
    bed.append(A, [b"x"])
    assert bed.pump()
    assert bed.store.unopened() == (B,)
