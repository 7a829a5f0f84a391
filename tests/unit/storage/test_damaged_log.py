"""A log that a start finds damaged stays so, however often the broker stops in order."""

from contextlib import suppress
from dataclasses import replace

import pytest

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.model.ids import MetadataIndex, StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.memory_files import Fault
from liftbridge_testkit.stores import NO_LIMITS, StoreBed, key_of

A = key_of(1)
MS = 1_000_000
STORE = StoreOptions(space=NO_LIMITS, flush=FlushLimits(journal_ns=MS))
SMALL = StreamOptions(fsync_policy=FsyncPolicy.COMMIT, segment_bytes_max=300)


def filled(synced: int) -> StoreBed:
    """A broker was killed: segments of two records, of which the journal knows some synced."""
    bed = StoreBed(options=STORE)
    bed.start({A: SMALL})
    for number in range(6):
        bed.append(A, [b"value %d" % number + b"." * 100])
        bed.pump()
        bed.commit(A)
        if number + 1 == synced:
            bed.advance(10 * MS)
    bed.files.kill()
    return bed


def logs(bed: StoreBed) -> list[str]:
    return [path for path in bed.files.paths("streams") if path.endswith(".log")]


def begun(bed: StoreBed) -> None:
    """A broker starts on what it finds."""
    bed.open()
    bed.store.open(A, StreamName("stream"), SMALL, bed.now)
    bed.store.begin(MetadataIndex(0), bed.now)


@pytest.mark.parametrize("synced", [1, 6])
@pytest.mark.parametrize("segment", [0, -1])
@pytest.mark.parametrize("bit", range(0, 2_000, 100))
def test_stop_in_order_does_not_make_a_damaged_log_whole(
    synced: int, segment: int, bit: int
) -> None:
    bed = filled(synced)
    bed.files.flip_bit(logs(bed)[segment], bit)
    found: list[tuple[str, int]] = []
    for _ in range(3):
        bed.open()
        opened = bed.store.open(A, StreamName("stream"), SMALL, bed.now)
        found.append((opened.reason, opened.log.log_end_offset))
        bed.store.begin(MetadataIndex(0), bed.now)
        bed.store.close(broker_epoch=1)
    is_looked_at = synced == 1 or segment == -1  # a start believes what was durable and sealed
    assert ("streams/" in found[0][0]) == is_looked_at
    assert found[0] == found[1] == found[2]
    assert bed.store.last_stop.was_clean


@pytest.mark.parametrize("segment", range(3))
def test_damage_that_a_read_met_is_found_by_the_next_start(segment: int) -> None:
    bed = filled(6)
    begun(bed)
    path = logs(bed)[segment]
    bed.files.flip_bit(path, 1_000)
    bed.store.notes.note_damage(A, path, bed.now)
    bed.store.close(broker_epoch=1)
    for _ in range(2):
        bed.open()
        opened = bed.store.open(A, StreamName("stream"), SMALL, bed.now)
        assert path in opened.reason
        bed.store.begin(MetadataIndex(0), bed.now)
        bed.store.close(broker_epoch=1)


@pytest.mark.parametrize("refusals", range(5))
def test_note_that_a_full_disk_refused_is_written_later(refusals: int) -> None:
    bed = filled(6)
    begun(bed)
    path = logs(bed)[0]
    bed.files.flip_bit(path, 1_000)
    bed.files.fail(Fault("open", "*.damaged", is_full=True, count=refusals))
    bed.store.notes.note_damage(A, path, bed.now)
    with suppress(FilesError):
        bed.store.close(broker_epoch=1)
    bed.files.heal()
    bed.open()
    is_noted = refusals < 3  # at once, again with the reserve, and by the stop
    assert bed.store.last_stop.was_clean == is_noted
    opened = bed.store.open(A, StreamName("stream"), SMALL, bed.now)
    assert (path in opened.reason) == is_noted


def test_disk_that_fails_a_note_is_not_used_any_more() -> None:
    bed = filled(6)
    begun(bed)
    path = logs(bed)[0]
    bed.files.fail(Fault("open", "*.damaged"))
    bed.store.notes.note_damage(A, path, bed.now)
    assert len(bed.failures) == 1


@pytest.mark.parametrize("segment", range(2))  # a start verifies the last one
def test_damage_that_compaction_meets_is_told_and_noted(segment: int) -> None:
    bed = filled(6)
    bed.open()
    path = logs(bed)[segment]
    bed.files.flip_bit(path, 1_000)
    compacted = replace(SMALL, compact_enabled=True, cleaner_interval_ms=100)
    log = bed.store.open(A, StreamName("stream"), compacted, bed.now).log
    log.high_watermark = log.log_end_offset
    met: list[str] = []

    def note(error: CorruptionError) -> None:
        met.append(error.path)
        bed.store.notes.note_damage(A, error.path, bed.now)

    bed.store.set_damage_listener(A, note)
    bed.store.begin(MetadataIndex(0), bed.now)
    bed.advance(1_000 * MS)
    assert met == [path]
    assert len(bed.told("compaction_failed")) == 1


def test_note_of_damage_goes_when_the_file_is_whole() -> None:
    bed = filled(6)
    begun(bed)
    path = logs(bed)[0]
    bed.store.notes.note_damage(A, path, bed.now)
    bed.store.close(broker_epoch=1)
    bed.open()
    assert bed.files.exists(f"{path}.damaged")
    assert bed.store.open(A, StreamName("stream"), SMALL, bed.now).reason == ""
    assert not bed.files.exists(f"{path}.damaged")
