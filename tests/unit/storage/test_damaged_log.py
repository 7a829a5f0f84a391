"""A log that a start finds damaged stays so, however often the broker stops in order."""

import pytest

from liftbridge_broker.model.ids import StreamName
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.stores import NO_LIMITS, StoreBed, key_of

A = key_of(1)
MS = 1_000_000
STORE = StoreOptions(space=NO_LIMITS, flush=FlushLimits(journal_ns=MS))
SMALL = StreamOptions(fsync_policy=FsyncPolicy.COMMIT, segment_bytes_max=300)


def filled() -> StoreBed:
    """A broker was killed: segments of two records, of which the journal knows the first synced."""
    bed = StoreBed(options=STORE)
    bed.start({A: SMALL})
    for number in range(6):
        bed.append(A, [b"value %d" % number + b"." * 100])
        bed.pump()
        bed.commit(A)
        if number == 0:
            bed.advance(10 * MS)
    bed.files.kill()
    return bed


@pytest.mark.parametrize("segment", [0, -1])
@pytest.mark.parametrize("bit", range(0, 2_000, 100))
def test_stop_in_order_does_not_make_a_damaged_log_whole(segment: int, bit: int) -> None:
    bed = filled()
    path = [path for path in bed.files.paths("streams") if path.endswith(".log")][segment]
    bed.files.flip_bit(path, bit)
    found: list[tuple[str, int]] = []
    for _ in range(3):
        bed.open()
        opened = bed.store.open(A, StreamName("stream"), SMALL, bed.now)
        found.append((opened.reason, opened.log.log_end_offset))
        bed.store.begin(bed.now)
        bed.store.close(broker_epoch=1)
    assert "streams/" in found[0][0]
    assert found[0] == found[1] == found[2]
    assert bed.store.was_clean
