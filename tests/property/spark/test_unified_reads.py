"""Archive below, log above: every offset comes from exactly one place, in order."""

import io
from itertools import pairwise
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given
from hypothesis import strategies as st

from liftbridge_testkit.archive_runs import NOW_MS, MemoryStore, records
from pyspark_liftbridge.archive import reading
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.files import Chance, Place, Sizes, write_files
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.places import Known
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.plan.unified import (
    Held,
    Origin,
    is_outgrown,
    next_step,
    with_archive,
)

ONE = PartitionId("s", 0)
DAY_US = 20_000 * 86_400_000_000


@st.composite
def holdings(draw: st.DrawFn) -> Held | None:
    """What an archive may hold: a beginning, an end, and gaps between them."""
    edges = sorted(draw(st.sets(st.integers(0, 40), max_size=8)))
    if len(edges) < 2:
        return None
    inner = edges[1:-1]
    gaps = tuple(zip(inner[::2], inner[1::2], strict=False))
    return Held(edges[0], edges[-1], gaps)


@given(holdings(), st.integers(0, 45), st.integers(1, 20))
@example(Held(0, 10, ((3, 5),)), 0, 20)
def test_every_offset_comes_from_exactly_one_place(held: Held | None, start: int, size: int):
    end = start + size
    position = start
    origins: dict[int, Origin] = {}
    while position < end:
        step = next_step(position, end, held)
        assert step.start == position < step.end <= end
        origins |= dict.fromkeys(range(step.start, step.end), step.origin)
        position = step.end
    for offset in range(start, end):
        is_lost = held is not None and any(a <= offset < b for a, b in held.gaps)
        is_held = held is not None and held.begin <= offset < held.end
        wanted = Origin.NOWHERE if is_lost else Origin.ARCHIVE if is_held else Origin.LOG
        assert origins[offset] is wanted


@given(holdings(), st.integers(0, 45), st.integers(0, 45), st.integers(0, 10**6))
def test_earliest_is_that_of_whoever_goes_back_further(held, log_start, kept, size):
    known = Known(7, log_start, log_start + kept, size)
    found = with_archive({ONE: known}, {} if held is None else {ONE: held})[ONE]
    assert found.earliest == min(log_start, log_start if held is None else held.begin)
    assert found.latest == known.latest
    if kept and found.earliest < log_start:
        before, after = size / kept, found.size_bytes / (found.latest - found.earliest)
        assert abs(before - after) <= 1


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(1, 9), st.booleans())
def test_an_archive_is_left_alone_by_who_has_passed_it(seen, log_start, start, size, knows_log):
    """What is not looked up again is held by the archive as it is known, or by the log."""
    wanted = Range("s", 7, 0, start, start + size)
    held = Held(0, seen) if seen else None
    if is_outgrown(wanted, held, log_start if knows_log else None):
        return
    for offset in range(wanted.start, wanted.end):
        assert offset < seen or (knows_log and offset >= log_start)


# -- files --------------------------------------------------------------------------------------

OFFSETS = st.lists(st.integers(0, 60), unique=True, max_size=30).map(sorted)


def filled(contents, random: Random) -> tuple[MemoryStore, log.Snapshot]:
    """A table with records of two partitions in files of any size, some put together anew."""
    store, ids = MemoryStore(), iter(range(1_000))
    adds: list[delta.Add] = []
    for partition, offsets in contents.items():
        edges = sorted({0, 61, *(random.randint(1, 60) for _ in range(3))})
        for start, end in pairwise(edges):
            inside = [at for at in offsets if start <= at < end]
            chance = Chance(lambda: str(next(ids)), NOW_MS)
            place = Place("orders", 7, delta.Span(partition, start, end))
            batch = records(inside, partition=partition, day_us=DAY_US)
            adds += write_files(store, place, [batch] if inside else [], chance, SIZES).adds
    for _ in range(random.randint(0, 2)):
        random.shuffle(adds)
        count = random.randint(2, 4)
        taken, adds = adds[:count], adds[count:]
        if taken:
            adds.append(put_together(store, taken, f"data/other-{next(ids)}.parquet", random))
    return store, log.Snapshot(files={add.path: add for add in adds})


SIZES = Sizes(1 << 20, 200, 400)


def put_together(store: MemoryStore, adds, path: str, random: Random) -> delta.Add:
    """A file as other writers make it of several: in any order, with or without statistics."""
    tables = [pq.read_table(io.BytesIO(store.objects[add.object_path])) for add in adds]
    whole = pa.concat_tables(tables)
    sink = io.BytesIO()
    pq.write_table(whole, sink, row_group_size=7)
    store.objects[path] = sink.getvalue()
    stats = None
    if random.random() < 0.7:
        columns = [whole.column(name).to_pylist() for name in ("partition", "offset")]
        spans = [(min(one), max(one)) for one in columns]
        stats = delta.Stats(whole.num_rows, spans[0], spans[1], None)
    return delta.Add(
        path=path,
        size=1,
        modified_ms=NOW_MS,
        is_change=False,
        stats_text=stats.text() if stats else "",
        stats=stats,
        origin=None,
    )


@given(
    st.fixed_dictionaries({0: OFFSETS, 1: OFFSETS}),
    st.integers(0, 60),
    st.integers(1, 61),
    st.integers(0, 10**6),
)
def test_files_give_each_record_of_a_span_once_and_in_order(contents, start, size, seed):
    store, snapshot = filled(contents, Random(seed))
    for partition, offsets in contents.items():
        span = delta.Span(partition, start, start + size)
        files = reading.files_of(reading.by_partition(snapshot), span)
        found = list(reading.records_of(store, files, span, SCHEMA.names))
        wanted = [at for at in offsets if start <= at < start + size]
        rows = [row for batch in found for row in batch.to_pylist()]
        assert rows == records(wanted, partition=partition, day_us=DAY_US).to_pylist()


@given(st.fixed_dictionaries({0: OFFSETS, 1: OFFSETS}), st.integers(-1, 62), st.integers(0, 10**6))
def test_time_is_found_where_the_first_record_is_as_late(contents, minute, seed):
    store, snapshot = filled(contents, Random(seed))
    for partition, offsets in contents.items():
        times = {at: (DAY_US + at * 60_000_000) * 1_000 + 999 for at in offsets}
        for shift in (0, 1, 999):
            time_ns = (DAY_US + minute * 60_000_000) * 1_000 + shift + 500
            found = reading.first_at(store, reading.by_partition(snapshot), partition, time_ns)
            late = [at for at in offsets if times[at] >= time_ns]
            assert found == (late[0] if late else None)
