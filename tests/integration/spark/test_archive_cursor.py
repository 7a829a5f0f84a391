"""The cursor of an archive: never ahead of what is committed, and in the end never behind."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from liftbridge_client import (
    StreamSettings,
    SyncClient,
    SyncStream,
    UnimplementedError,
    connect_sync,
)
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.archive.errors import DamagedError
from pyspark_liftbridge.archive.root import PATH, root_id
from pyspark_liftbridge.archive.stores.store import open_store
from pyspark_liftbridge.jobs import archive, cursor
from pyspark_liftbridge.jobs.archive import Job, archive_once, do
from pyspark_liftbridge.jobs.cursor import Shown, name_of
from pyspark_liftbridge.plan.archiving import MissingError
from pyspark_liftbridge.plan.options import SourceOptions, read_source
from pyspark_liftbridge.plan.places import Known
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source.reading import records_of
from pyspark_liftbridge.source.schema import layout_of


def in_turn(works: Sequence[str]) -> list[str]:
    return [do(one) for one in works]


def job(broker: Broker, stream: str, root: Path) -> Job:
    return Job(stream, str(root), {"servers": broker.address}, {}, fails_on_loss=True)


def publish(stream: SyncStream, count: int, partition: int = 0) -> None:
    for _ in range(count):
        stream.publish(b"x", partition=partition)


def positions(stream: SyncStream, name: str, partitions: int = 1) -> list[int | None]:
    return [stream.fetch_cursor(name, partition=one) for one in range(partitions)]


def test_cursor_is_the_archives_end_of_each_partition(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path
) -> None:
    stream = lb.streams.create(name, partitions=3)
    publish(stream, 5)
    publish(stream, 2, partition=2)
    shown = Shown()
    cursor = archive_once(job(broker, name, tmp_path), in_turn, shown).cursor
    assert cursor == f"archive/{root_id(open_store(str(tmp_path)))}"
    assert positions(stream, cursor, 3) == [5, None, 2]
    publish(stream, 1, partition=1)
    assert archive_once(job(broker, name, tmp_path), in_turn, shown).cursor == cursor
    assert positions(stream, cursor, 3) == [5, 1, 2]
    # What a killed runner left undone is done by the next one.
    stream.set_cursor(cursor, 3, partition=0)
    archive_once(job(broker, name, tmp_path), in_turn)
    assert positions(stream, cursor, 3) == [5, 1, 2]


@pytest.mark.parametrize(("overtaken_at", "told"), [("fetch", [(9, 9)]), ("set", [(5, 5), (9, 9)])])
def test_a_runner_that_was_overtaken_does_not_leave_the_cursor_behind(
    broker: Broker,
    lb: SyncClient,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overtaken_at: str,
    told: list[tuple[int, int]],
) -> None:
    stream = lb.streams.create(name)
    publish(stream, 5)
    whole = job(broker, name, tmp_path)
    rivals, seen = ExitStack(), []

    class Slow:
        """A stream of which another runner is faster, before something is asked or set."""

        def __init__(self, stream: SyncStream) -> None:
            self._real = stream

        def fetch_cursor(self, name: str, *, partition: int) -> int | None:
            if overtaken_at == "fetch" and archived:
                rivals.close()
            return self._real.fetch_cursor(name, partition=partition)

        def set_cursor(
            self,
            name: str,
            offset: int,
            *,
            partition: int,
            stream_id: int,
            unclean_epoch: int | None,
        ) -> None:
            rivals.close()
            self._real.set_cursor(
                name,
                offset,
                partition=partition,
                stream_id=stream_id,
                unclean_epoch=unclean_epoch,
            )
            seen.append((offset, self._real.fetch_cursor(name, partition=partition)))

    def rival() -> None:
        publish(stream, 4)
        with monkeypatch.context() as patch:
            patch.setattr(cursor, "_set", real)
            assert archive_once(whole, in_turn).records == 4

    archived: list[str] = []

    def run(works: Sequence[str]) -> list[str]:
        archived.extend(in_turn(works))
        return archived

    real: Callable[..., None] = cursor._set
    rivals.callback(rival)
    monkeypatch.setattr(cursor, "_set", lambda stream, *more: real(Slow(stream), *more))
    done = archive_once(whole, run)
    assert seen == told
    assert positions(stream, done.cursor) == [9]


def test_a_runner_that_knows_less_leaves_the_cursor_where_it_is(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path
) -> None:
    stream = lb.streams.create(name)
    publish(stream, 5)
    whole = job(broker, name, tmp_path)

    def overtaken(works: Sequence[str]) -> list[str]:
        texts = in_turn(works)
        publish(stream, 4)
        assert archive_once(whole, in_turn).records == 9
        return texts

    done = archive_once(whole, overtaken)
    assert done.records == 0
    assert positions(stream, done.cursor) == [9]


def test_cursor_is_not_set_to_what_the_log_does_not_hold(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean election lost the end of the log: other records get its offsets, not archived."""
    stream = lb.streams.create(name)
    publish(stream, 9)
    done = archive_once(job(broker, name, tmp_path), in_turn)
    stream.set_cursor(done.cursor, 3, partition=0)
    real: Callable[..., dict[int, Known]] = archive._bounds

    def cut(*given: object) -> dict[int, Known]:
        return {one: known._replace(latest=7) for one, known in real(*given).items()}

    monkeypatch.setattr(archive, "_bounds", cut)
    monkeypatch.setattr(archive, "_check_stored", lambda *_given: None)
    monkeypatch.setattr(archive, "BEHIND_SECONDS_MAX", 0.0)
    with pytest.raises(MissingError, match="an unclean election removed archived records"):
        archive_once(job(broker, name, tmp_path), in_turn)
    assert positions(stream, done.cursor) == [3]


def test_log_with_other_records_at_archived_offsets_is_not_archived(tmp_path: Path) -> None:
    """A cluster that was set up anew gives its streams the same ids; a lost end is alike."""
    root, ids = tmp_path / "archive", set[int]()
    with fresh(tmp_path / "first") as broker, connect_sync(broker.address) as client:
        stream = client.streams.create("orders")
        publish(stream, 5)
        done = archive_once(job(broker, "orders", root), in_turn)
        publish(stream, 1)
        assert archive_once(job(broker, "orders", root), in_turn).records == 1
        ids |= {one.stream_id for one in stream.bounds()}
    with fresh(tmp_path / "anew") as broker, connect_sync(broker.address) as client:
        stream = client.streams.create("orders")
        publish(stream, 12)
        ids |= {one.stream_id for one in stream.bounds()}
        with pytest.raises(MissingError, match="from 0 on the log holds records of after that"):
            archive_once(job(broker, "orders", root), in_turn)
        assert positions(stream, done.cursor) == [None]
    assert len(ids) == 1


def fresh(work_dir: Path) -> Broker:
    work_dir.mkdir()
    return Broker(work_dir, config={"cursors.stream.partitions": 1})


def test_cursor_of_a_former_stream_is_not_believed(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path
) -> None:
    stream = lb.streams.create(name)
    publish(stream, 9)
    former = archive_once(job(broker, name, tmp_path), in_turn)
    stream.delete()
    stream = lb.streams.create(name)
    found: list[int | None] = []

    def looked(works: Sequence[str]) -> list[str]:
        found.extend(positions(stream, former.cursor))
        return in_turn(works)

    publish(stream, 2)
    done = archive_once(job(broker, name, tmp_path), looked)
    assert done.cursor == former.cursor
    assert found == [None]
    assert positions(stream, done.cursor) == [2]


def test_late_cursor_of_a_former_stream_frees_nothing_of_the_present_one(
    broker: Broker,
    lb: SyncClient,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody makes the stream anew between what a runner has asked and what it sets."""
    stream = lb.streams.create(name)
    publish(stream, 9)
    real: Callable[..., None] = cursor._set

    class Late:
        """A stream of which another is made under the same name before its cursor is set."""

        def fetch_cursor(self, name: str, *, partition: int) -> int | None:
            return stream.fetch_cursor(name, partition=partition)

        def set_cursor(self, name: str, offset: int, **of: int) -> None:
            stream.delete()
            publish(lb.streams.create(stream.name), 2)
            stream.set_cursor(name, offset, **of)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(cursor, "_set", lambda _, *more: real(Late(), *more))
        done = archive_once(job(broker, name, tmp_path), in_turn)
    assert done.records == 9
    assert positions(stream, done.cursor) == [None]
    (text,) = caplog.messages
    assert text.startswith(f"cursor {done.cursor} is not up to date: ")
    assert "it was recreated" in text
    archive_once(job(broker, name, tmp_path), in_turn)
    assert positions(stream, done.cursor) == [2]


def test_cursor_that_was_right_for_a_former_stream_does_not_hold_back_a_quiet_one(
    broker: Broker,
    lb: SyncClient,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wait_for: Callable[..., None],
) -> None:
    """Its offset is that of the present one, whose runner was killed before it set it."""
    whole = job(broker, name, tmp_path)
    settings = StreamSettings(
        segment_max_bytes=1_000,
        retention_max_messages=5,
        cleaner_interval=timedelta(seconds=1),
        retention_cursor=name_of(root_id(open_store(str(tmp_path)))),
    )
    stream = lb.streams.create(name, settings=settings)
    publish(stream, 40)
    former = archive_once(whole, in_turn)
    stream.delete()
    stream = lb.streams.create(name, settings=settings)
    publish(stream, 40)
    with monkeypatch.context() as patch:
        patch.setattr(archive, "show", lambda *_: None)
        assert archive_once(whole, in_turn).records == 40
    assert positions(stream, former.cursor) == [None]
    assert archive_once(whole, in_turn).records == 0
    assert positions(stream, former.cursor) == [40]
    wait_for(lambda: stream.bounds(0)[0].log_start > 0)


def test_brokers_that_are_too_old_for_cursors_of_one_stream_are_told_of_once(
    broker: Broker,
    lb: SyncClient,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream, shown = lb.streams.create(name), Shown()

    def too_old(*_: object) -> None:
        raise UnimplementedError("unknown method")

    monkeypatch.setattr(cursor, "_set", too_old)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            publish(stream, 1)
            assert archive_once(job(broker, name, tmp_path), in_turn, shown).records == 1
    (text,) = caplog.messages
    assert text.startswith("the brokers are too old for cursors of one stream (unknown method)")
    assert text.endswith("upgrade them")


def test_retention_that_waits_for_the_cursor_never_parts_log_and_archive(
    broker: Broker, lb: SyncClient, name: str, tmp_path: Path, wait_for: Callable[..., None]
) -> None:
    """All of the stream can be read at any time: no record leaves the log before it is archived."""
    whole = job(broker, name, tmp_path)
    settings = StreamSettings(
        segment_max_bytes=1_000,
        retention_max_messages=5,
        cleaner_interval=timedelta(seconds=1),
        retention_cursor=name_of(root_id(open_store(str(tmp_path)))),
    )
    stream = lb.streams.create(name, settings=settings)
    given = {"servers": broker.address, "subscribe": name, "archive": str(tmp_path)}
    options = read_source(given, is_stream=False)
    total = 0
    for _ in range(3):
        publish(stream, 40)
        total += 40
        before = stream.bounds(0)[0].log_start
        wanted = Range(name, stream.bounds(0)[0].stream_id, 0, 0, total)
        assert offsets_of(lb, wanted, options) == list(range(total))
        archive_once(whole, in_turn)
        wait_for(lambda start=before: stream.bounds(0)[0].log_start > start)
        assert stream.bounds(0)[0].log_start <= total
        assert offsets_of(lb, wanted, options) == list(range(total))


def offsets_of(lb: SyncClient, wanted: Range, options: SourceOptions) -> list[int]:
    batches = records_of(lb, [wanted], layout_of(options.shape), options)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_brokers_without_cursors_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(tmp_path / "broker") as broker, connect_sync(broker.address) as client:
        stream, shown = client.streams.create("plain", partitions=2), Shown()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                publish(stream, 1)
                done = archive_once(job(broker, "plain", tmp_path / "root"), in_turn, shown)
                assert (done.records, done.cursor[:8]) == (1, "archive/")
    assert [text[:28] for text in caplog.messages] == ["the brokers keep no cursors "]


@pytest.fixture
def spellings(tmp_path: Path) -> list[str]:
    (tmp_path / "link").symlink_to(tmp_path / "root")
    return [f"{tmp_path}/root", f"file://{tmp_path}/root/", f"{tmp_path}/link"]


def test_id_of_a_root_does_not_depend_on_its_spelling(spellings: list[str]) -> None:
    ids = [root_id(open_store(one)) for one in spellings]
    assert len(set(ids)) == 1
    store = open_store(spellings[0])
    store.replace(PATH, b'{"id":"../x"}')
    with pytest.raises(DamagedError, match=r"_root/id\.json: '\.\./x' is not an id of 12"):
        root_id(store)
