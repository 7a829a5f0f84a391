"""Archive below, log above, with a real broker: also while the one advances and the other goes."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from liftbridge_client import StreamSettings, SyncClient, SyncStream, connect_sync
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.jobs.archive import Job, archive_once, do
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import SourceOptions, read_source
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source import cluster
from pyspark_liftbridge.source.archived import Archive
from pyspark_liftbridge.source.reading import DataLossError, records_of
from pyspark_liftbridge.source.schema import layout_of

Wait = Callable[[Callable[[], bool]], None]
Rows = list[dict[str, Any]]
ENCODINGS = ("raw", "subscribe")
_numbers = count()
SEGMENT_RECORDS = 15
"""At least as many as a segment holds."""

SETTINGS = StreamSettings(segment_max_bytes=2_000, cleaner_interval=timedelta(seconds=1))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(Path(tmp_path_factory.mktemp("unified"))) as running:
        yield running


@pytest.fixture(scope="module")
def lb(broker: Broker) -> Iterator[SyncClient]:
    with connect_sync(broker.address) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"unified-{next(_numbers)}"


def options_of(broker: Broker, name: str, root: Path | None, **given: str) -> SourceOptions:
    archive = {} if root is None else {"archive": str(root)}
    return read_source(
        {"servers": broker.address, "subscribe": name, "includeHeaders": "true"} | archive | given,
        is_stream=False,
    )


def publish(stream: SyncStream, number: int, partition: int = 0) -> None:
    for _ in range(number):
        at = next(_numbers)
        key = b"key" if at % 2 else b""
        stream.publish(
            b"%d" % at + bytes(60), key=key, headers={"b": b"2", "a": b"1"}, partition=partition
        )


def archive(broker: Broker, name: str, root: Path, *, fails_on_loss: bool = True) -> None:
    job = Job(name, str(root), {"servers": broker.address}, {}, fails_on_loss)
    archive_once(job, lambda works: [do(one) for one in works])


def retain(stream: SyncStream, wait_for: Wait, records: int) -> int:
    """Let retention remove all but so many records, or some more; where the log begins then."""
    end = stream.bounds(0)[0].high_watermark
    stream.alter(StreamSettings(retention_max_messages=records))
    wait_for(lambda: stream.bounds(0)[0].log_start >= end - records - SEGMENT_RECORDS)
    stream.alter(StreamSettings(retention_max_messages=0))
    return stream.bounds(0)[0].log_start


def archive_at(options: SourceOptions) -> Archive:
    assert options.archive is not None
    return Archive(options.archive)


def range_of(stream: SyncStream, start: int, end: int, partition: int = 0) -> Range:
    return Range(stream.name, stream.bounds()[0].stream_id, partition, start, end)


def planned(client: SyncClient, options: SourceOptions, *ranges: Range) -> Iterator[Rows]:
    """Rows by batch, of tasks as they are planned now."""
    parts = None
    if options.archive is not None:
        bounds = cluster.bounds_at_start(client, options)
        starts = {one: known.earliest for one, known in bounds.items()}
        parts = archive_at(options).parts(ranges, starts)
    found = records_of(client, ranges, layout_of(options.shape), options, parts)
    return (batch.to_pylist() for batch in found)


def rows(client: SyncClient, options: SourceOptions, *ranges: Range) -> Rows:
    return [row for batch in planned(client, options, *ranges) for row in batch]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("schema", ["liftbridge", "kafka"])
def test_rows_are_those_of_the_log_wherever_they_come_from(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path, wait_for: Wait, encoding, schema
) -> None:
    stream = lb.streams.create(name, partitions=2, settings=SETTINGS)
    publish(stream, 60)
    publish(stream, 5, partition=1)
    archive(broker, name, tmp_path)
    publish(stream, 30)
    ranges = range_of(stream, 0, 90), range_of(stream, 0, 5, partition=1)
    given = {"fetch.encoding": encoding, "schema": schema}
    before = rows(lb, options_of(broker, name, None, **given), *ranges)
    assert len(before) == 95
    assert 0 < retain(stream, wait_for, 50) <= 60
    archive(broker, name, tmp_path)
    after = rows(lb, options_of(broker, name, tmp_path, **given), *ranges)
    if encoding == "subscribe":
        for row in (*before, *after):
            row.pop("leader_epoch", None)  # a message does not tell it, an archive does
    assert after == before


def test_log_that_loses_what_was_planned_is_read_from_the_archive_that_has_grown(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path, wait_for: Wait
) -> None:
    """Retention follows the archive between the plan and the read, and within the read."""
    stream = lb.streams.create(name, settings=SETTINGS)
    publish(stream, 40)
    archive(broker, name, tmp_path)
    publish(stream, 200)
    wanted = range_of(stream, 0, 240)
    options = options_of(broker, name, tmp_path, **{"fetch.maxBytes": "1k"})
    before = rows(lb, options_of(broker, name, None), wanted)
    reading = planned(lb, options, wanted)
    found = next(reading)
    archive(broker, name, tmp_path)
    assert retain(stream, wait_for, 150) > 40
    while len(found) < 110:
        found += next(reading)
    archive(broker, name, tmp_path)
    assert retain(stream, wait_for, 30) > 150
    for batch in reading:
        found += batch
    assert found == before


def test_loss_is_told_where_neither_has_the_records(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path, wait_for: Wait, caplog
) -> None:
    stream = lb.streams.create(name, settings=SETTINGS)
    publish(stream, 40)
    archive(broker, name, tmp_path)
    publish(stream, 60)
    start = retain(stream, wait_for, 30)
    assert start > 40
    wanted = range_of(stream, 0, 100)
    with pytest.raises(DataLossError, match=f"offsets 40 to {start - 1} of {name}/0 are gone: "):
        rows(lb, options_of(broker, name, tmp_path), wanted)
    lenient = options_of(broker, name, tmp_path, failOnDataLoss="false")
    offsets = [row["offset"] for row in rows(lb, lenient, wanted)]
    assert offsets == [*range(40), *range(start, 100)]
    assert caplog.messages[-1].startswith(f"offsets 40 to {start - 1} of {name}/0 are gone")
    lost = start - 40
    assert caplog.messages[-1].endswith(f": {lost} offsets, {lost} in this task so far")
    two = wanted._replace(end=50), wanted._replace(start=50)
    assert [row["offset"] for row in rows(lb, lenient, *two)] == offsets
    assert caplog.messages[-1].endswith(f": {start - 50} offsets, {lost} in this task so far")
    archive(broker, name, tmp_path, fails_on_loss=False)
    assert retain(stream, wait_for, 10) > start
    # The gap is known to the archive now.
    with pytest.raises(DataLossError, match=f"offsets 40 to {start - 1} of {name}/0 are gone: "):
        rows(lb, options_of(broker, name, tmp_path), wanted)
    assert [row["offset"] for row in rows(lb, lenient, wanted)] == offsets


def test_an_archive_that_began_late_does_not_hide_what_was_before(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path, wait_for: Wait
) -> None:
    stream = lb.streams.create(name, settings=SETTINGS)
    publish(stream, 60)
    start = retain(stream, wait_for, 30)
    archive(broker, name, tmp_path)
    options = options_of(broker, name, tmp_path)
    (known,) = archive_at(options).bounds(cluster.bounds_at_start(lb, options)).values()
    assert known.earliest == start
    with pytest.raises(DataLossError, match=f"offsets {start - 2} to {start - 1} of"):
        rows(lb, options, range_of(stream, start - 2, 60))


def test_a_stream_made_anew_has_rows_of_its_own_only(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path, wait_for: Wait
) -> None:
    stream = lb.streams.create(name, settings=SETTINGS)
    publish(stream, 20)
    archive(broker, name, tmp_path)
    publish(stream, 5)
    former = range_of(stream, 0, 25)
    options = options_of(broker, name, tmp_path)
    reading = planned(lb, options, former)
    first = next(reading)
    stream.delete()
    stream = lb.streams.create(name, settings=SETTINGS)
    publish(stream, 60)
    # What was archived of the former one is still its own, what was not is gone.
    assert [row["offset"] for row in first] == list(range(20))
    with pytest.raises(DataLossError, match=f"offsets 20 to 24 of {name}/0 are gone: the stream"):
        list(reading)
    whole = range_of(stream, 0, 60)
    before = rows(lb, options, whole)
    archive(broker, name, tmp_path)
    assert retain(stream, wait_for, 10) > 20
    (known,) = archive_at(options).bounds(cluster.bounds_at_start(lb, options)).values()
    assert known.earliest == 0
    assert rows(lb, options, whole) == before


def test_files_that_are_put_together_while_they_are_read_are_looked_up_again(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path
) -> None:
    stream = lb.streams.create(name, settings=SETTINGS)
    for _ in range(4):
        publish(stream, 10)
        archive(broker, name, tmp_path)
    options = options_of(broker, name, tmp_path)
    wanted = range_of(stream, 0, 40)
    before = rows(lb, options, wanted)
    reading = planned(lb, options, wanted)
    found = next(reading)
    table = DeltaTable(tmp_path / name)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    for batch in reading:
        found += batch
    assert found == before
    assert len(DeltaTable(tmp_path / name).file_uris()) == 1


def test_times_are_looked_up_in_both(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path, wait_for: Wait
) -> None:
    stream = lb.streams.create(name, settings=SETTINGS)
    publish(stream, 40)
    archive(broker, name, tmp_path)
    publish(stream, 40)
    options = options_of(broker, name, tmp_path)
    times = [row["timestamp_ns"] for row in rows(lb, options, range_of(stream, 0, 80))]
    assert 0 < retain(stream, wait_for, 60) <= 40
    bounds = cluster.bounds_at_start(lb, options)
    shelf = archive_at(options)
    one = PartitionId(name, 0)
    for offset in (0, 3, 39, 40, 79):
        wanted = {one: times[offset] // 1_000 * 1_000}
        found = shelf.with_times(cluster.offsets_by_time(lb, wanted), wanted, bounds)
        first = next(at for at, time_ns in enumerate(times) if time_ns >= wanted[one])
        assert found == {one: first}
    late = {one: times[79] + 10**12}
    assert shelf.with_times(cluster.offsets_by_time(lb, late), late, bounds) == {one: 80}
