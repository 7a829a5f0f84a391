"""Up to where tombstones may be gone is known whenever one is (S143)."""

from dataclasses import replace
from struct import Struct

import pytest

from liftbridge_broker.model.ids import OFFSET_MAX, Instant, LeaderEpoch, Offset
from liftbridge_broker.model.partitions import NOT_COPIED, Copied
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.smallfile import write_small_file
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.stores import NO_LIMITS, StoreBed, key_of, values_in

A = key_of(1)
MS = 1_000_000
OPTIONS = StreamOptions(
    fsync_policy=FsyncPolicy.COMMIT,
    segment_bytes_max=300,
    compact_enabled=True,
    tombstone_retention_ms=1,
    cleaner_interval_ms=100,
)


def delete_a_key(bed: StoreBed) -> None:
    """Fill a log, the only replica, with a deleted key and enough others."""
    bed.start({A: OPTIONS})
    bed.log(A).compacted_everywhere = Offset(OFFSET_MAX)
    for number, key in enumerate((b"a", b"a", b"b", b"c", b"d", b"e", b"f")):
        bed.append(A, [b"" if number == 1 else b"." * 100], keys=[key])
        bed.pump()
        bed.commit(A)


@pytest.fixture
def bed() -> StoreBed:
    return StoreBed(options=StoreOptions(space=NO_LIMITS, flush=FlushLimits(journal_ns=MS)))


def dropped(bed: StoreBed) -> StoreBed:
    """The same, and the tombstone is gone."""
    delete_a_key(bed)
    bed.advance(1_000 * MS)
    assert not {0, 1} & values_in(bed.log(A)).keys()
    return bed


def reopened(bed: StoreBed) -> Offset:
    """What is known after the power was cut."""
    bed.files.crash(None)
    bed.start({A: OPTIONS})
    return bed.log(A).dropped_offset


def test_dropped_offset_is_known_after_a_power_cut(bed: StoreBed) -> None:
    known = dropped(bed).log(A).dropped_offset
    assert 1 < known <= bed.log(A).compacted_offset
    assert reopened(bed) == known


def test_dropped_offset_is_stored_before_the_first_tombstone_goes(bed: StoreBed) -> None:
    delete_a_key(bed)
    while bed.log(A).compacted_offset == 0:
        bed.advance(10 * MS)
    assert (bed.log(A).dropped_offset, 1 in values_in(bed.log(A))) == (0, True)
    bed.files.fail(Fault("rename", "*.log.cleaned"))
    while not bed.store.disk.failure:
        bed.advance(10 * MS)
    assert 1 in values_in(bed.log(A))
    assert reopened(bed) > 1


def test_log_that_drops_no_tombstone_has_no_file(bed: StoreBed) -> None:
    delete_a_key(bed)
    bed.store.set_options(A, replace(OPTIONS, tombstone_retention_ms=0), bed.now)
    bed.advance(1_000 * MS)
    assert set(values_in(bed.log(A))) == {1, 2, 3, 4, 5, 6}
    assert bed.log(A).dropped_offset == 0
    assert not [path for path in bed.files.paths() if "tombstones" in path]


@pytest.mark.parametrize("content", [b"", b"LBSF", b"?" * 20])
def test_file_that_cannot_be_believed_counts_as_the_whole_log(
    bed: StoreBed, content: bytes
) -> None:
    (path,) = (path for path in dropped(bed).files.paths() if path.endswith("/tombstones"))
    bed.files.crash(None)
    bed.files.put(path, content)
    bed.start({A: OPTIONS})
    assert bed.log(A).dropped_offset == bed.log(A).log_end_offset


def test_cut_lowers_it_durably(bed: StoreBed) -> None:
    dropped(bed).store.truncate([(A, Offset(2))], bed.now)
    assert bed.log(A).dropped_offset == 2
    assert reopened(bed) == 2


def test_log_that_begins_anew_is_told_again(bed: StoreBed) -> None:
    dropped(bed).store.restart(A, Offset(0), bed.now)
    assert bed.log(A).dropped_offset == 0
    bed.store.notes.note_copied(A, Offset(9), NOT_COPIED, bed.now)
    assert reopened(bed) == 9


def test_what_a_copy_may_lack_is_known_after_a_power_cut(bed: StoreBed) -> None:
    copied = Copied(Offset(7), LeaderEpoch(3))
    log = dropped(bed).log(A)
    bed.store.notes.note_copied(A, log.dropped_offset, copied, bed.now)
    assert (reopened(bed), bed.log(A).copied) == (log.dropped_offset, copied)
    bed.store.truncate([(A, bed.log(A).compacted_from)], bed.now)
    assert bed.log(A).copied == NOT_COPIED


def test_file_of_a_former_version_tells_nothing_of_a_copy(bed: StoreBed) -> None:
    (path,) = (path for path in dropped(bed).files.paths() if path.endswith("/tombstones"))
    known = bed.log(A).dropped_offset
    write_small_file(bed.files, path, Struct(">q").pack(known))
    assert (reopened(bed), bed.log(A).copied) == (known, NOT_COPIED)


def fill_with_large(bed: StoreBed) -> None:
    """More than one step of a compaction reads; three keys, each in every third segment."""
    for number in range(30):
        bed.append(A, [b"." * 100_000], keys=[b"%d" % (number % 3)])
        bed.pump()
        bed.commit(A)


def test_what_was_made_of_the_former_log_is_not_put_into_the_new_one(bed: StoreBed) -> None:
    """Segments of the same size may hold other records: what a copy lacks would be back."""
    bed.start({A: OPTIONS})
    fill_with_large(bed)
    while not any("cleaned" in path for path in bed.files.paths()):
        deadline = bed.store.next_deadline()
        assert deadline is not None
        bed.now = Instant(max(bed.now, deadline))
        bed.store.on_timer(bed.now, bed.wall_ns)
        bed.pump()
    bed.store.restart(A, Offset(0), bed.now)
    bed.store.set_options(A, replace(OPTIONS, compact_enabled=False), bed.now)
    fill_with_large(bed)
    bed.advance(1_000 * MS)
    assert set(values_in(bed.log(A))) == set(range(30))
    assert bed.log(A).dropped_offset == bed.log(A).compacted_offset == 0
