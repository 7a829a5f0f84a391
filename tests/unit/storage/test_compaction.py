"""Compaction keeps the last record of every key, all ranges of offsets, and everything in doubt."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftbridge_broker.errors import CorruptionError, FilesError
from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_COMPACTED,
    ATTRIBUTE_FILLER,
    BatchHeader,
    read_header,
    walk_verified,
)
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.ports.files import FileEvent, Token
from liftbridge_broker.replication.publishers import PublisherTable
from liftbridge_broker.storage.cleaning.compaction import (
    CompactionJob,
    CompactionResult,
    SegmentRef,
    Steps,
    cleaned_path,
    compact,
    decode_job,
    decode_result,
    encode_job,
    encode_result,
)
from liftbridge_broker.storage.log.partition_log import PartitionLog
from liftbridge_broker.storage.log.types import EMPTY_STATE, LogLimits
from liftbridge_testkit.log_bench import sync_log
from liftbridge_testkit.memory_files import Fault, MemoryFiles
from liftbridge_testkit.stores import START_WALL_NS, batch_of, key_of, values_in

A = key_of(1)
DIRECTORY = "a"


def finished(steps: Steps) -> CompactionResult:
    """Do all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: CompactionResult = stop.value
            return result


class Bed:
    """A log in memory that is compacted as the store does it."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_directory(DIRECTORY)
        self.files.sync_directory("")
        limits = LogLimits(0, 0)
        self.log, _ = PartitionLog.open(
            self.files, DIRECTORY, A, limits, EMPTY_STATE, clean=True, commit=False
        )
        self.replaced: list[str] = []

    def append(
        self,
        *records: tuple[str, str],
        leader_epoch: int = 1,
        timestamp: int = START_WALL_NS,
        publisher: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """A batch of (key, value) pairs; an empty key is none."""
        batch = batch_of(
            A,
            self.log.log_end_offset,
            [value.encode() for _, value in records],
            keys=[key.encode() for key, _ in records],
            leader_epoch=leader_epoch,
            timestamp=timestamp,
            publisher=publisher,
        )
        self.log.append(batch, read_header(batch, 0), timestamp)

    def roll(self) -> None:
        self.log.roll()

    def job(self, *, until: int | None = None, **changes: Any) -> CompactionJob:
        infos = [info for info in self.log.segments() if info.bytes]
        bound = self.log.log_end_offset if until is None else Offset(until)
        job = CompactionJob(
            directory=DIRECTORY,
            partition_id=A,
            segments=tuple(SegmentRef(info.base, info.end, info.bytes) for info in infos),
            sealed_count=sum(info.sealed and info.end <= bound for info in infos),
            until=bound,
            map_start=Offset(0),
            segment_bytes_max=0,
        )
        return replace(job, **changes)

    def run(self, job: CompactionJob) -> CompactionResult:
        result = self.swap(job)
        for path in self.replaced:
            self.files.remove(path)
        return result

    def swap(self, job: CompactionJob) -> CompactionResult:
        """Compact, and leave the files that are no longer needed."""
        result = finished(compact(self.files, job))
        for replacement in result.replacements:
            bases = [segment.base for segment in replacement.segments]
            path = cleaned_path(DIRECTORY, bases[0])
            self.replaced += self.log.replace_segments(bases, path)
        return result

    def values(self) -> dict[int, str]:
        return {offset: value.decode() for offset, value in values_in(self.log).items()}

    def headers(self) -> list[BatchHeader]:
        data = b"".join(self.files.content(info.path) for info in self.log.segments() if info.bytes)
        return [header for _, header in walk_verified(data, 0, len(data))]


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_only_the_last_record_of_a_key_stays(bed: Bed) -> None:
    bed.append(("a", "1"), ("b", "2"), ("a", "3"))
    bed.append(("b", "4"))
    bed.roll()
    handles = bed.files.open_count
    result = bed.run(bed.job())
    assert bed.files.open_count <= handles
    assert bed.values() == {2: "3", 3: "4"}
    assert (result.removed_count, result.map_end) == (2, 4)
    assert result.after_bytes < result.before_bytes


def test_key_in_the_active_segment_makes_older_records_go(bed: Bed) -> None:
    bed.append(("a", "1"), ("b", "2"))
    bed.roll()
    bed.append(("a", "3"))
    bed.run(bed.job())
    assert bed.values() == {1: "2", 2: "3"}


def test_record_that_may_still_be_lost_makes_none_go(bed: Bed) -> None:
    bed.append(("a", "1"), ("b", "2"))
    bed.roll()
    bed.append(("a", "3"))
    bed.run(bed.job(until=2))
    assert bed.values() == {0: "1", 1: "2", 2: "3"}


def test_bound_inside_a_batch_is_exact(bed: Bed) -> None:
    bed.append(("a", "1"), ("b", "2"))
    bed.roll()
    bed.append(("a", "3"), ("b", "4"))
    bed.run(bed.job(until=3))
    assert bed.values() == {1: "2", 2: "3", 3: "4"}


def test_records_without_a_key_stay(bed: Bed) -> None:
    bed.append(("", "1"), ("a", "2"), ("", "3"), ("a", "4"))
    bed.roll()
    bed.run(bed.job())
    assert bed.values() == {0: "1", 2: "3", 3: "4"}


def test_active_segment_is_not_rewritten(bed: Bed) -> None:
    bed.append(("a", "1"), ("a", "2"))
    result = bed.run(bed.job())
    assert result.replacements == ()
    assert bed.values() == {0: "1", 1: "2"}


def test_segment_that_loses_nothing_is_not_rewritten(bed: Bed) -> None:
    bed.append(("a", "1"), ("b", "2"))
    bed.roll()
    bed.append(("c", "3"))
    assert bed.run(bed.job()).replacements == ()


def test_emptied_neighbours_of_one_epoch_become_one_filler(bed: Bed) -> None:
    for number in range(4):
        bed.append(("a", str(number)))
    bed.append(("a", "4"), leader_epoch=2)
    bed.append(("a", "5"), leader_epoch=2)
    bed.append(("b", "6"), leader_epoch=2)
    bed.roll()
    bed.append(("a", "7"), leader_epoch=2)
    bed.run(bed.job())
    headers = bed.headers()
    assert [(h.base_offset, h.last_offset, h.leader_epoch, h.count) for h in headers] == [
        (0, 3, 1, 0),
        (4, 5, 2, 0),
        (6, 6, 2, 1),
        (7, 7, 2, 1),
    ]
    assert bed.log.epochs.entries == ((LeaderEpoch(1), Offset(0)), (LeaderEpoch(2), Offset(4)))


def stamps(bed: Bed) -> list[tuple[int, int, int, int, int]]:
    """Headers with a publisher: its id, epoch and first sequence, base and last offset."""
    return [
        (h.publisher_id, h.publisher_epoch, h.first_sequence, h.base_offset, h.last_offset)
        for h in bed.headers()
        if h.publisher_id
    ]


def test_last_header_of_a_publisher_stays_when_its_records_go(bed: Bed) -> None:
    bed.append(("a", "0"), ("b", "1"), publisher=(7, 2, 0))
    bed.append(("a", "2"), publisher=(8, 0, 4))
    bed.append(("a", "3"), ("b", "4"), publisher=(7, 2, 2))
    bed.append(("b", "5"), timestamp=START_WALL_NS + 1)
    bed.append(("a", "6"), ("b", "7"))
    bed.roll()
    bed.append(("c", "8"))
    bed.run(bed.job())
    assert bed.values() == {6: "6", 7: "7", 8: "8"}
    assert stamps(bed) == [(8, 0, 4, 2, 2), (7, 2, 2, 3, 4)]
    emptied = bed.headers()[:4]
    assert [(h.base_offset, h.last_offset) for h in emptied] == [(0, 1), (2, 2), (3, 4), (5, 5)]
    for header in emptied:
        assert header.count == 0
        assert header.attributes == ATTRIBUTE_COMPACTED | ATTRIBUTE_FILLER
    times = [(h.first_timestamp, h.largest_timestamp) for h in emptied]
    assert times[:3] == [(START_WALL_NS, START_WALL_NS)] * 3

    # The publisher goes on: its former header is of no use any more.
    bed.append(("a", "9"), publisher=(7, 2, 4))
    bed.roll()
    bed.append(("a", "10"))
    bed.run(bed.job())
    assert stamps(bed) == [(8, 0, 4, 2, 2), (7, 2, 4, 9, 9)]


def test_header_of_a_publisher_stays_while_what_follows_may_be_cut(bed: Bed) -> None:
    bed.append(("a", "0"), publisher=(7, 0, 0))
    bed.append(("a", "1"))
    bed.roll()
    bed.append(("b", "2"))
    bed.append(("a", "3"), publisher=(7, 0, 1))
    bed.run(bed.job(until=3))
    assert stamps(bed) == [(7, 0, 0, 0, 0), (7, 0, 1, 3, 3)]


def test_header_of_a_publisher_stays_in_a_pass_that_did_not_see_it(bed: Bed) -> None:
    bed.append(("a", "0"), publisher=(7, 0, 0))
    bed.roll()
    bed.append(("a", "1"))
    bed.roll()
    bed.append(("b", "2"))
    result = bed.run(bed.job(map_start=Offset(1)))
    assert result.removed_count == 1
    assert stamps(bed) == [(7, 0, 0, 0, 0)]


def test_headers_of_the_longest_silent_publishers_go_beyond_the_bound(bed: Bed) -> None:
    for publisher in (1, 2, 3, 4, 1):
        bed.append(("a", "x"), publisher=(publisher, 0, 0))
    bed.append(("a", "y"))
    bed.roll()
    bed.append(("b", "z"))
    bed.run(bed.job(publisher_count_max=2))
    assert [publisher for publisher, *_ in stamps(bed)] == [4, 1]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(1, 3), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
def test_copy_of_a_compacted_log_knows_where_each_publisher_stands(
    appends: list[tuple[str, int, int, bool]],
) -> None:
    bed, known = Bed(), PublisherTable()
    for key, publisher, count, is_compacted in appends:
        place = (publisher, 0, known.next_sequence(publisher)) if publisher else (0, 0, 0)
        bed.append(*[(key, "x")] * count, publisher=place)
        if publisher:
            known.replay(bed.headers()[-1])
        if is_compacted:
            bed.roll()
            bed.run(bed.job(segment_bytes_max=600))
    copied = PublisherTable()
    for header in bed.headers():
        if header.publisher_id:
            copied.replay(header)
    for publisher in (1, 2, 3):
        assert copied.next_sequence(publisher) == known.next_sequence(publisher)
        assert copied.end_of(publisher) == known.end_of(publisher)


def test_thinned_batch_keeps_its_range_and_is_marked(bed: Bed) -> None:
    bed.append(("a", "1"), ("b", "2"), ("a", "3"))
    bed.roll()
    bed.run(bed.job())
    (header,) = bed.headers()
    assert (header.base_offset, header.last_offset, header.count) == (0, 2, 2)
    assert header.attributes == ATTRIBUTE_COMPACTED


def test_compacting_again_changes_nothing(bed: Bed) -> None:
    for number in range(6):
        bed.append(("a", str(number)), ("b", str(number)))
        bed.roll()
    bed.run(bed.job())
    before = bed.values()
    result = bed.run(bed.job())
    assert bed.values() == before
    assert (result.removed_count, result.replacements) == (0, ())


def test_log_tells_where_what_was_compacted_begins_also_after_a_start_and_in_a_copy(
    bed: Bed,
) -> None:
    for key in "xabac":
        bed.append((key, "v"))
        bed.roll()
    assert bed.log.compacted_from == 5
    bed.run(bed.job())
    assert bed.log.compacted_from == 1
    reopened, _ = PartitionLog.open(
        bed.files, DIRECTORY, A, LogLimits(0, 0), None, clean=False, commit=False
    )
    assert reopened.compacted_from == 1
    copy = Bed()
    for header in bed.headers():
        copy.log.append(bed.log.read_batches(header.base_offset, 1, Offset(5)), header, 1)
    assert copy.log.compacted_from == 0  # all are in one segment there
    reopened.truncate(Offset(1))
    assert reopened.compacted_from == 1


def test_small_segments_are_merged_up_to_the_size_of_one(bed: Bed) -> None:
    for number in range(8):
        bed.append((f"k{number}", "x" * 100))
        bed.roll()
    one = bed.log.segments()[1].bytes
    result = bed.run(bed.job(segment_bytes_max=3 * one))
    assert [len(replacement.segments) for replacement in result.replacements] == [3, 3, 2]
    assert [info.base for info in bed.log.segments()] == [0, 3, 6, 8]
    assert len(bed.values()) == 8
    assert len([path for path in bed.replaced if path.endswith(".log")]) == 5


def test_merged_segments_survive_a_crash_before_the_old_files_are_removed(bed: Bed) -> None:
    for number in range(5):
        bed.append(("a", str(number)))
        bed.roll()
    bed.append(("b", "5"))
    sync_log(bed.files, bed.log)
    bed.swap(bed.job(segment_bytes_max=1 << 20))
    assert bed.replaced
    state = bed.log.state
    bed.files.crash(None)
    log, report = PartitionLog.open(
        bed.files, DIRECTORY, A, LogLimits(0, 0), state, clean=False, commit=False
    )
    assert not log.is_offline
    assert report.cut_bytes == 0
    assert values_in(log) == {4: b"4", 5: b"5"}


def test_last_committed_record_stays_even_as_a_tombstone(bed: Bed) -> None:
    bed.append(("a", "1"), ("a", ""))
    bed.roll()
    job = bed.job(tombstones_before_ns=START_WALL_NS + 1, tombstones_until=Offset(2))
    bed.run(job)
    assert bed.values() == {1: ""}


@pytest.mark.parametrize(
    ("before_ns", "until", "stays"),
    [
        (0, 9, True),
        (START_WALL_NS, 9, True),
        (START_WALL_NS + 1, 1, True),
        (START_WALL_NS + 1, 2, False),
    ],
)
def test_tombstone_goes_when_old_and_compacted_everywhere(
    bed: Bed, before_ns: int, until: int, *, stays: bool
) -> None:
    bed.append(("a", "1"), ("a", ""), ("b", "2"))
    bed.roll()
    bed.run(bed.job(tombstones_before_ns=before_ns, tombstones_until=Offset(until)))
    assert (1 in bed.values()) is stays
    assert 2 in bed.values()


def test_empty_value_is_an_ordinary_value_by_default(bed: Bed) -> None:
    bed.append(("a", "1"), ("a", ""), ("b", "2"))
    bed.roll()
    bed.run(bed.job())
    assert bed.values() == {1: "", 2: "2"}


def test_more_keys_than_fit_take_several_passes(bed: Bed) -> None:
    for version in ("old", "new"):
        for number in range(10):
            bed.append((f"k{number}", version))
        bed.roll()
    start, removed = Offset(0), 0
    for _ in range(20):
        result = bed.run(bed.job(key_count_max=4, map_start=start))
        removed += result.removed_count
        start = result.map_end
        if start >= bed.log.log_end_offset:
            break
    assert removed == 10
    assert set(bed.values().values()) == {"new"}


def test_long_keys_are_told_apart(bed: Bed) -> None:
    keys = ["k" * 23, "k" * 24, "k" * 25, "k" * 1000, "k" * 999 + "j"]
    for version in ("1", "2"):
        for key in keys:
            bed.append((key, version + key))
    bed.roll()
    bed.run(bed.job())
    assert sorted(bed.values().values()) == sorted("2" + key for key in keys)


def test_damage_ends_the_job_and_leaves_nothing(bed: Bed) -> None:
    bed.append(("a", "1"), ("a", "2"))
    bed.roll()
    path = bed.log.segments()[0].path
    bed.files.flip_bit(path, 8 * 100)
    handles = bed.files.open_count
    with pytest.raises(CorruptionError):
        bed.run(bed.job())
    assert not any("cleaned" in path for path in bed.files.paths())
    assert bed.files.open_count == handles


@pytest.mark.parametrize("pattern", ["*.log.cleaned", "*.index.cleaned"])
def test_full_disk_ends_the_job_and_leaves_nothing(bed: Bed, pattern: str) -> None:
    bed.append(("a", "1"), ("a", "2"))
    bed.roll()
    bed.files.fail(Fault("append", pattern, is_full=True))
    with pytest.raises(FilesError):
        bed.run(bed.job())
    assert not any("cleaned" in path for path in bed.files.paths())
    assert bed.values() == {0: "1", 1: "2"}


def test_work_is_done_in_bounded_steps(bed: Bed) -> None:
    for number in range(60):
        bed.append(("a", "x" * 100_000), (f"{number}", "y"))
    bed.roll()
    steps = compact(bed.files, bed.job())
    assert sum(1 for _ in steps) >= 15


def test_given_up_job_closes_its_files(bed: Bed) -> None:
    for _ in range(60):
        bed.append(("a", "x" * 100_000))
    bed.roll()
    before = bed.files.open_count
    steps = compact(bed.files, bed.job())
    for _ in range(14):
        next(steps)
    assert bed.files.open_count > before
    steps.close()
    assert bed.files.open_count == before


def test_job_and_result_pass_through_text(bed: Bed) -> None:
    bed.append(("a", "1"), ("a", "2"))
    bed.roll()
    job = bed.job(tombstones_until=Offset(5))
    assert decode_job(encode_job(job)) == job
    result = bed.run(job)
    assert decode_result(FileEvent(Token(1), encode_result(result))) == result
    assert b"\n" not in encode_job(job) + encode_result(result)


RECORDS = st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "c", "d"]), st.text("xyz", max_size=3)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(RECORDS, st.booleans(), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 40),
    st.integers(0, 1_000),
)
def test_what_stays_is_what_the_rules_say(
    batches: list[tuple[list[tuple[str, str]], bool, bool]], until: int, bytes_max: int
) -> None:
    bed, epoch = Bed(), 1
    for records, rolls, elects in batches:
        epoch += elects
        bed.append(*records, leader_epoch=epoch)
        if rolls:
            bed.roll()
    records = [record for batch, _, _ in batches for record in batch]
    bound = min(until, len(records))
    job = bed.job(until=bound, segment_bytes_max=bytes_max)
    sealed_end = job.segments[job.sealed_count - 1].end if job.sealed_count else 0
    latest = {key: offset for offset, (key, _) in enumerate(records[:bound]) if key}
    wanted = {
        offset: value
        for offset, (key, value) in enumerate(records)
        if offset >= sealed_end or not key or latest[key] == offset
    }
    epochs = bed.log.epochs.entries

    bed.run(decode_job(encode_job(job)))

    assert bed.values() == wanted
    headers = bed.headers()
    assert headers[0].base_offset == 0
    assert headers[-1].end_offset == len(records)
    reopened, report = PartitionLog.open(
        bed.files, DIRECTORY, A, LogLimits(0, 0), None, clean=False, commit=False
    )
    assert not report.cut_bytes
    assert reopened.epochs.entries == epochs
    assert {o: v.decode() for o, v in values_in(reopened).items()} == wanted
