"""A process that starts again after a failed sync must not believe what the page cache shows.

The kernel calls the pages of a failed write-back clean: they are readable, and no later sync
writes them. Only what is written again reaches the disk.
"""

import pytest

from liftbridge_broker.model.metadata_log import HardState
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_broker.storage.flush import FlushLimits
from liftbridge_broker.storage.store import StoreOptions
from liftbridge_testkit.memory_files import Fault, MemoryFiles
from liftbridge_testkit.raft_logs import (
    FIRST_WAL,
    ME,
    SYNC_TOKEN,
    entry,
    held,
    opened,
    persist,
    restarted,
)
from liftbridge_testkit.stores import NO_LIMITS, StoreBed, key_of, values_in

A = key_of(1)
SECOND = 1_000_000_000
OPTIONS = StoreOptions(space=NO_LIMITS, flush=FlushLimits(interval_ns=SECOND))


def settle(bed: StoreBed) -> None:
    """Let everything be synced that is to be."""
    bed.pump()
    bed.advance(2 * SECOND)


def fail_sync(bed: StoreBed) -> None:
    """Append a record whose sync fails, and let the process end."""
    bed.append(A, [b"in doubt"])
    bed.files.fail(Fault("sync", "*.log"))
    settle(bed)
    assert bed.failures
    bed.files.kill()


@pytest.mark.parametrize("policy", [FsyncPolicy.COMMIT, FsyncPolicy.INTERVAL])
def test_what_is_called_durable_after_a_failed_sync_survives_a_power_cut(
    policy: FsyncPolicy,
) -> None:
    options = StreamOptions(fsync_policy=policy)
    bed = StoreBed(options=OPTIONS)
    bed.start({A: options})
    bed.append(A, [b"durable"])
    settle(bed)
    fail_sync(bed)

    bed.start({A: options})
    settle(bed)
    bed.append(A, [b"behind it"])
    settle(bed)
    assert bed.flushed[-1].flushed_offset == 3
    bed.files.crash(None)

    bed.start({A: options})
    assert not bed.log(A).is_offline
    assert values_in(bed.log(A)) == {0: b"durable", 1: b"in doubt", 2: b"behind it"}


def test_sealed_segments_in_doubt_are_written_again_too() -> None:
    options = StreamOptions(fsync_policy=FsyncPolicy.INTERVAL, segment_bytes_max=150)
    bed = StoreBed(options=OPTIONS)
    bed.start({A: options})
    for number in range(4):
        bed.append(A, [b"%d" % number])
    fail_sync(bed)

    bed.start({A: options})
    assert bed.log(A).segment_count > 2
    bed.advance(2 * SECOND)
    assert bed.flushed[-1].flushed_offset == 5
    bed.files.crash(None)

    bed.start({A: options})
    assert list(values_in(bed.log(A))) == [0, 1, 2, 3, 4]


def test_journal_in_doubt_is_written_again_before_it_is_acted_on() -> None:
    options = StreamOptions(fsync_policy=FsyncPolicy.COMMIT, segment_bytes_max=150)
    bed = StoreBed(options=OPTIONS)
    bed.start({A: options})
    for number in range(4):
        bed.append(A, [b"%d" % number])
        bed.pump()
        bed.commit(A)
    bed.advance(SECOND)
    bed.files.fail(Fault("sync", "journal"))
    bed.store.raise_log_start(A, bed.log(A).log_end_offset, bed.now)
    bed.pump()
    assert bed.failures
    bed.files.kill()

    bed.open()
    assert bed.files.durable_content("journal") == bed.files.content("journal")


def test_metadata_log_that_counts_after_a_failed_sync_survives_a_power_cut() -> None:
    files = MemoryFiles()
    log = opened(files)
    persist(files, log, [entry(1)], HardState(1, ME, 0))
    log.append([entry(2)], HardState(1, ME, 1))
    files.fail(Fault("sync", FIRST_WAL))
    log.submit_sync(SYNC_TOKEN)
    (event,) = files.calls.pump()
    assert event.error is not None
    files.kill()

    log = opened(files)
    assert held(log) == [entry(1), entry(2)]
    persist(files, log, [entry(3)], HardState(1, ME, 2))

    log = restarted(files)
    assert held(log) == [entry(1), entry(2), entry(3)]
