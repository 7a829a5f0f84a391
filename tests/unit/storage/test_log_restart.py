"""Beginning a log anew elsewhere: above its end, and, when it is empty, below its start."""

from random import Random

import pytest

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.memory_files import PowerCutError
from liftbridge_testkit.stores import NO_LIMITS, StoreBed, key_of, values_in

A = key_of(1)
OPTIONS = StreamOptions(fsync_policy=FsyncPolicy.COMMIT)
SECOND = 1_000_000_000


def emptied() -> StoreBed:
    """A log without records whose file still holds those that were hidden."""
    bed = StoreBed(options=StoreOptions(space=NO_LIMITS, flush=FlushLimits(journal_ns=1)))
    bed.start({A: OPTIONS})
    for number in range(5):
        bed.append(A, [b"%d" % number])
    bed.pump()
    bed.commit(A)
    bed.store.raise_log_start(A, Offset(5), bed.now)
    bed.pump()
    bed.advance(SECOND)
    log = bed.log(A)
    assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (5, 5, 1)
    assert log.size_bytes
    return bed


def test_empty_log_begins_anew_below_its_start() -> None:
    """After an unclean election the leader may end below where an empty follower begins (F3)."""
    bed = emptied()

    bed.store.restart(A, Offset(2), bed.now)

    assert bed.log(A).state == (2, 2, 2, ())
    assert bed.append(A, [b"new"], leader_epoch=2) == 3
    bed.pump()
    bed.advance(SECOND)
    bed.files.crash(None)
    bed.start({A: OPTIONS})
    assert values_in(bed.log(A)) == {2: b"new"}


def cut_at(point: int, seed: int) -> bool:
    """Cut the power at one write of a restart below the start; whether it came so far."""
    bed = emptied()
    bed.files.power.cut_at = bed.files.power.points + point
    try:
        bed.store.restart(A, Offset(2), bed.now)
    except PowerCutError:
        was_cut = True
    else:
        was_cut = False
    bed.files.crash(Random(seed))
    bed.transitions.clear()
    bed.start({A: OPTIONS})
    log = bed.log(A)
    assert not log.is_offline, bed.transitions
    assert log.log_start_offset == log.log_end_offset
    assert log.log_end_offset in ((2, 5) if was_cut else (2,))
    return was_cut


@pytest.mark.parametrize("seed", range(5))
def test_no_power_cut_takes_an_empty_log_offline(seed: int) -> None:
    point = 1
    while cut_at(point, seed):
        point += 1
    assert point > 4
