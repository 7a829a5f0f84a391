"""Compactions of a store that end when they end, while the log changes."""

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.model.streams import FsyncPolicy, StreamOptions
from liftbridge_testkit.stores import CompactedAside, StoreBed, key_of, values_in

A = key_of(1)
COMPACT = StreamOptions(
    fsync_policy=FsyncPolicy.COMMIT,
    segment_bytes_max=100,
    compact_enabled=True,
    cleaner_interval_ms=100,
)
SECOND_NS = 10**9


def test_compaction_that_ends_after_a_cut_removes_nothing() -> None:
    """The cut may be behind all that it made: what it read there made records go."""
    bed = StoreBed()
    aside = CompactedAside(bed.files)
    bed.runner = aside.submit
    bed.start({A: COMPACT})
    for key in (b"a", b"b", b"a", b"c"):
        bed.append(A, [b"." * 100], keys=[key])
        bed.pump()
        bed.commit(A)
    bed.advance(SECOND_NS)
    (answer,) = aside.done
    bed.store.truncate([(A, Offset(2))], bed.now)
    bed.store.on_file_event(answer, bed.now)
    bed.pump()
    assert list(values_in(bed.log(A))) == [0, 1]
    assert bed.told("log_compacted") == []
    assert not any("cleaned" in path for path in bed.files.paths() if path.endswith("log.cleaned"))
