"""A stream of a real broker is archived, by tasks that run one after the other in this process."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftbridge_client import StreamSettings, SyncClient, connect_sync
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.errors import ContentionError
from pyspark_liftbridge.archive.gc import orphans
from pyspark_liftbridge.archive.stores.store import Below, open_store
from pyspark_liftbridge.archive.verify import verify
from pyspark_liftbridge.jobs import archive
from pyspark_liftbridge.jobs.archive import Job, Work, archive_once, do
from pyspark_liftbridge.plan.archiving import MissingError, Part, parts_of
from pyspark_liftbridge.plan.offsets import PartitionId
from pyspark_liftbridge.plan.options import OptionError
from pyspark_liftbridge.plan.places import Known
from pyspark_liftbridge.source.reading import DataLossError

Rows = list[tuple[int, int, bytes]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory):
    config = {"streams": {"segment.max.bytes": 4_096}}
    with Broker(Path(tmp_path_factory.mktemp("archive")), config=config) as running:
        yield running


@pytest.fixture(scope="module")
def lb(broker: Broker):
    with connect_sync(broker.address) as client:
        yield client


def in_turn(works: Sequence[str]) -> list[str]:
    return [do(one) for one in works]


def job(broker: Broker, stream: str, root: Path, *, fails_on_loss: bool = True) -> Job:
    return Job(stream, str(root), {"servers": broker.address}, {}, fails_on_loss)


def publish(lb: SyncClient, stream: str, count: int, partition: int = 0) -> None:
    with lb.streams.get(stream).publisher() as publisher:
        begin = lb.streams.get(stream).bounds(partition)[0].high_watermark
        publisher.publish_batch(
            [b"%d" % number for number in range(begin, begin + count)], partition=partition
        )


def table_of(root: Path, folder: str) -> Below:
    return Below(open_store(str(root)), f"{folder}/")


def archived(root: Path, folder: str) -> Rows:
    """Records of the files that the log names."""
    files = log.load(table_of(root, folder)).files
    tables = [pq.read_table(root / folder / one.object_path) for one in files.values()]
    if not tables:
        return []
    rows = pa.concat_tables(tables).select(["partition", "offset", "value"]).to_pydict()
    return sorted(zip(*rows.values(), strict=True))


def expected(counts: dict[int, int]) -> Rows:
    return [(p, n, b"%d" % n) for p, count in counts.items() for n in range(count)]


def test_each_record_is_archived_once_over_many_runs(
    broker: Broker, lb: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "TASK_OFFSETS_MAX", 70)
    lb.streams.create("runs", partitions=3)
    publish(lb, "runs", 200, 0)
    publish(lb, "runs", 30, 2)
    first = archive_once(job(broker, "runs", tmp_path), in_turn)
    assert (first.records, first.files, first.lost) == (230, 4, 0)
    assert archive_once(job(broker, "runs", tmp_path), in_turn).records == 0
    publish(lb, "runs", 5, 1)
    publish(lb, "runs", 1, 0)
    second = archive_once(job(broker, "runs", tmp_path), in_turn)
    assert (second.records, second.version) == (6, first.version + 1)
    assert archived(tmp_path, "runs") == expected({0: 201, 1: 5, 2: 30})
    assert verify(table_of(tmp_path, "runs")) == []


def test_small_ranges_of_a_leader_share_a_task(
    broker: Broker, lb: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "TASK_OFFSETS_MIN", 25)
    lb.streams.create("shared", partitions=6)
    for partition, count in enumerate((10, 30, 10, 10, 3, 0)):
        publish(lb, "shared", count, partition)
    ranges: list[list[tuple[int, int]]] = []

    def counted(works: Sequence[str]) -> list[str]:
        ranges.extend([(one.partition, one.size) for one in Work.of(work).ranges] for work in works)
        return in_turn(works)

    done = archive_once(job(broker, "shared", tmp_path), counted)
    assert ranges == [[(0, 10), (2, 10), (3, 10)], [(1, 30)], [(4, 3)]]
    assert (done.records, done.files) == (63, 5)
    assert verify(table_of(tmp_path, "shared")) == []
    leaders = {PartitionId("s", one): "ab"[one % 2] for one in range(4)}
    parts = [Part(one, 0, 5, 0, None) for one in range(4)]
    works = archive._works(job(broker, "s", tmp_path), "s/", 1, parts, leaders)
    shared = [[one.partition for one in Work.of(work).ranges] for work in works]
    assert shared == [[0, 2], [1, 3]]


def test_another_run_in_between_takes_the_offsets_once(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("rivals", partitions=2)
    publish(lb, "rivals", 20, 0)
    publish(lb, "rivals", 10, 1)
    whole = job(broker, "rivals", tmp_path)
    rivals = 0

    def disturbed(works: Sequence[str]) -> list[str]:
        nonlocal rivals
        texts = in_turn(works)
        if rivals == 0:
            rivals += 1
            assert archive_once(whole, in_turn).records == 30
            publish(lb, "rivals", 5, 0)
        return texts

    assert archive_once(whole, disturbed).records == 0
    assert archive_once(whole, in_turn).records == 5
    assert archived(tmp_path, "rivals") == expected({0: 25, 1: 10})
    late = max(one.modified_ms for one in table_of(tmp_path, "rivals").listing("data/")) + 10**9
    assert len(orphans(table_of(tmp_path, "rivals"), now_ms=late)) == 2


def test_a_run_that_others_always_beat_gives_up(
    broker: Broker, lb: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lb.streams.create("beaten")
    publish(lb, "beaten", 10)
    whole = job(broker, "beaten", tmp_path)

    def a_little(
        stream: str, bounds: Mapping[int, Known], ends: Mapping[int, int], *, fails_on_loss: bool
    ) -> list[Part]:
        parts = parts_of(stream, bounds, ends, fails_on_loss=fails_on_loss)
        return [one._replace(end=one.start + 1) for one in parts]

    def beaten(works: Sequence[str]) -> list[str]:
        """Another one archives one offset first, so that all must be planned again."""
        texts = in_turn(works)
        turns = iter((in_turn,))

        def once(few: Sequence[str]) -> list[str]:
            return next(turns)(few)

        with monkeypatch.context() as patch, suppress(StopIteration):
            patch.setattr(archive, "parts_of", a_little)
            archive_once(whole, once)
        return texts

    publish(lb, "beaten", 10)
    with pytest.raises(ContentionError, match="other runs won all 10 rounds"):
        archive_once(whole, beaten)
    assert archived(tmp_path, "beaten") == expected({0: 10})
    assert archive_once(whole, in_turn).records == 10


def test_what_retention_removed_is_told_or_recorded(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    settings = StreamSettings(retention_max_messages=10, cleaner_interval=timedelta(seconds=1))
    stream = lb.streams.create("trimmed", settings=settings)
    publish(lb, "trimmed", 5)
    whole = job(broker, "trimmed", tmp_path)
    archive_once(whole, in_turn)
    while stream.bounds(0)[0].log_start <= 5:
        publish(lb, "trimmed", 50)
    with pytest.raises(MissingError, match=r"offsets 5 to \d+ are gone"):
        archive_once(whole, in_turn)
    done = archive_once(job(broker, "trimmed", tmp_path, fails_on_loss=False), in_turn)
    offsets = [offset for _, offset, _ in archived(tmp_path, "trimmed")]
    assert done.lost > 0
    assert offsets == [*range(5), *range(5 + done.lost, offsets[-1] + 1)]
    assert verify(table_of(tmp_path, "trimmed")) == []


def test_a_stream_made_anew_has_a_table_of_its_own(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    lb.streams.create("again")
    publish(lb, "again", 3)
    whole = job(broker, "again", tmp_path)
    archive_once(whole, in_turn)
    publish(lb, "again", 1)

    def replaced(works: Sequence[str]) -> list[str]:
        lb.streams.get("again").delete()
        lb.streams.create("again")
        publish(lb, "again", 2)
        return in_turn(works)

    with pytest.raises(DataLossError, match="is another one now"):
        archive_once(whole, replaced)
    done = archive_once(whole, in_turn)
    stream_id = lb.streams.get("again").bounds()[0].stream_id
    assert (done.records, done.table) == (2, f"again@{stream_id}/")
    assert archived(tmp_path, "again") == expected({0: 3})
    assert archived(tmp_path, f"again@{stream_id}") == expected({0: 2})


@pytest.mark.parametrize("stream", ["several,streams", "__cursors"])
def test_only_one_stream_of_users_is_archived(
    broker: Broker, lb: SyncClient, tmp_path: Path, stream: str
) -> None:
    for name in stream.split(","):
        if not name.startswith("__"):
            lb.streams.create(name)
    with pytest.raises(OptionError, match=f"stream '{stream}' cannot be archived: name one stream"):
        archive_once(job(broker, stream, tmp_path), in_turn)
    assert list(tmp_path.iterdir()) == []
