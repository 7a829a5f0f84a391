"""An archived stream of a real broker is replayed and audited, by tasks in this process.

What is replayed came by NATS: of several subjects, with keys, headers and reply subjects, some of
it removed by compaction since.
"""

import asyncio
import multiprocessing
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Event
from unittest.mock import patch

import nats
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftbridge_broker.wire.envelope import encode_publish
from liftbridge_client import Start, Stop, StreamSettings, SyncClient, SyncStream, connect_sync
from liftbridge_client.aio import restoring
from liftbridge_proto import api_pb2
from liftbridge_testkit.processes import Broker
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.archive.reading import by_partition
from pyspark_liftbridge.archive.records import Wanted, records
from pyspark_liftbridge.archive.stores.store import Below, open_store
from pyspark_liftbridge.jobs import archive, audit, compact, replay
from pyspark_liftbridge.jobs.audit import Difference
from pyspark_liftbridge.jobs.audit import audit as compared
from pyspark_liftbridge.jobs.comparing import Copy, Unlike, compare
from pyspark_liftbridge.jobs.holders import Access
from pyspark_liftbridge.jobs.replay import Job, plan, set_cursors
from pyspark_liftbridge.jobs.replay import replay as replayed
from pyspark_liftbridge.jobs.selection import Selection
from pyspark_liftbridge.jobs.works import RefusedError, Runner
from pyspark_liftbridge.plan.options import OptionError

KEYS = 40
COUNT = 4_000
FIRST_PART = 1_500
KILLS = 20
STOPS_BEHIND = 50
SECONDS_MAX = 120.0
COMPACTED = StreamSettings(
    compact_enabled=True, segment_max_bytes=20_000, cleaner_interval=timedelta(milliseconds=100)
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    # Only what is synced is compacted.
    config = {"streams.fsync.interval": "50ms", "cursors.stream.partitions": 1}
    with Broker(Path(tmp_path_factory.mktemp("replay")), config=config) as running:
        yield running


@pytest.fixture(scope="module")
def lb(broker: Broker) -> Iterator[SyncClient]:
    with connect_sync(broker.address) as client:
        yield client


@pytest.fixture(scope="module")
def root(broker: Broker, lb: SyncClient, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the stream `orders`, which was compacted before."""
    settings = COMPACTED
    lb.streams.create("orders", subject="orders.*", settings=settings)
    stream = lb.streams.get("orders")
    # In two parts: no batch, and so no time, is common to records before and behind the first.
    asyncio.run(publish(broker, range(FIRST_PART)))
    broker.wait_until(lambda: stream.bounds(0)[0].high_watermark == FIRST_PART, "stored")
    asyncio.run(publish(broker, range(FIRST_PART, COUNT)))
    broker.wait_until(lambda: stream.bounds(0)[0].high_watermark == COUNT, "stored")
    broker.wait_until(lambda: "log_compacted" in broker.log_text(), "compacted")
    place = tmp_path_factory.mktemp("archive")
    archive.archive_once(
        archive.Job("orders", str(place), {"servers": broker.address}, {}, fails_on_loss=True),
        one_by_one(archive.do),
    )
    return place


async def publish(broker: Broker, numbers: range) -> None:
    """Publish over plain NATS; every third message has no key."""
    client = await nats.connect(broker.nats_url)
    for number in numbers:
        key = b"" if number % 3 == 0 else b"k%d" % (number % KEYS)
        message = api_pb2.Message(
            key=key,
            value=b"%d apples" % number * (number % 7),
            headers={"n": b"%d" % number} if number % 5 else {},
        )
        reply = f"answers.{number % 4}" if number % 2 else ""
        subject = f"orders.{number % 10}"
        await client.publish(subject, encode_publish(message), reply=reply)
    await client.drain()


def one_by_one(do: Callable[[str], str]) -> Runner:
    return lambda works: [do(one) for one in works]


def access(broker: Broker, root: Path | str = "") -> Access:
    return Access({"servers": broker.address}, str(root), {})


def job(broker: Broker, root: Path, to: str, *, keeps: bool = True, **chosen: int) -> Job:
    return Job("orders/", to, access(broker, root), Selection(**chosen), keeps)


def run(whole: Job) -> list[replay.Replayed]:
    return replayed(whole, one_by_one(replay.do))


def differences(
    broker: Broker, stream: str, *, root: Path | str = "", other: str = ""
) -> tuple[Difference, ...]:
    whole = audit.Job(stream, access(broker, root), other)
    return compared(whole, one_by_one(audit.do)).differences


Row = tuple[int, int, bytes, bytes, str, tuple[tuple[str, bytes], ...]]


def rows(stream: SyncStream) -> set[Row]:
    """What a subscription gives."""
    reading = stream.subscribe(start=Start.earliest(), stop=Stop.latest())
    return {
        (m.offset, m.timestamp, m.key, m.value, m.subject, tuple(sorted(m.headers.items())))
        for m in reading
    }


def archived(root: Path, **wanted: int) -> list[int]:
    """Offsets of what is archived."""
    store = Below(open_store(str(root)), "orders/")
    batches = records(store, by_partition(log.load(store)), Wanted(0, **wanted))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_replay_puts_back_all_that_a_record_has(
    broker: Broker, lb: SyncClient, root: Path
) -> None:
    copy = lb.streams.create("copy", subject="copies")
    (done,) = run(job(broker, root, "copy"))
    put_back = rows(copy)
    # Compaction of the origin may have gone on since it was archived.
    assert rows(lb.streams.get("orders")) - put_back == set()
    assert sorted(row[0] for row in put_back) == archived(root)
    assert (done.written, done.end) == (len(put_back), COUNT)
    assert done.written < COUNT
    assert differences(broker, "orders", root=root, other="copy") == ()
    assert [one.written for one in run(job(broker, root, "copy"))] == [0]


def attempt(whole: Job, end: int) -> None:
    """Replay in requests that are small, so that there is much to be killed in between.

    It stops before an offset: on a busy machine it would be done before it is killed.
    """
    restore = SyncStream.restore

    def some(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            count = int(np.searchsorted(batch.column("offset").to_numpy(), end))
            yield batch.slice(0, count)
            if count < batch.num_rows:
                Event().wait(SECONDS_MAX)

    def restore_some(stream: SyncStream, partition: int, batches: Iterable[pa.RecordBatch]) -> int:
        return restore(stream, partition, some(batches))

    with (
        patch.object(restoring, "REQUEST_RECORDS_MAX", 3),
        patch.object(SyncStream, "restore", restore_some),
    ):
        replayed(whole, one_by_one(replay.do))


def test_a_replay_that_is_killed_again_and_again_loses_and_repeats_nothing(
    broker: Broker, lb: SyncClient, root: Path
) -> None:
    target = lb.streams.create("killed", subject="killed", settings=COMPACTED)
    context = multiprocessing.get_context("forkserver")
    # Imported once, and not by each of the processes.
    context.set_forkserver_preload([__name__, "pyspark_liftbridge.jobs.replay"])
    chance = random.Random(7)
    at = 0
    for _ in range(KILLS):
        at += chance.randint(0, 100)
        end = at + STOPS_BEHIND
        process = context.Process(target=attempt, args=(job(broker, root, "killed"), end))
        process.start()
        while process.is_alive() and target.bounds(0)[0].log_end < at:
            pass
        assert process.is_alive(), f"it is done at {at}"
        process.kill()
        process.join()
        at = target.bounds(0)[0].log_end
    assert 0 < at < COUNT
    run(job(broker, root, "killed"))
    assert differences(broker, "orders", root=root, other="killed") == ()


def test_offsets_and_times_choose_what_is_replayed(
    broker: Broker, lb: SyncClient, root: Path
) -> None:
    copy = lb.streams.create("chosen", subject="chosen")
    times = {row[0]: row[1] for row in rows(lb.streams.get("orders"))}
    middle = next(one for one in sorted(times) if one >= 2_000)
    assert run(job(broker, root, "chosen", start=100, end=1_000))[0].start == 100
    assert sorted(row[0] for row in rows(copy)) == archived(root, start=100, end=1_000)
    run(job(broker, root, "chosen", start=1_000, end_ns=times[middle]))
    wanted = archived(root, start=100, end_ns=times[middle])
    assert 2_000 > wanted[-1] > 1_000
    assert sorted(row[0] for row in rows(copy)) == wanted
    found = differences(broker, "orders", other="chosen")
    assert {one.holder for one in found} == {"stream chosen"}
    text = f"ends at {wanted[-1] + 1}, the other at {COUNT}"
    assert [one.text for one in found].count(text) == 1
    assert len(found) > 1


def test_a_target_with_anything_else_in_it_is_refused(
    broker: Broker, lb: SyncClient, root: Path
) -> None:
    for name in ("more", "others", "holes"):
        lb.streams.create(name, subject=name)
    run(job(broker, root, "more"))
    lb.streams.get("more").publish(b"one more")
    with pytest.raises(RefusedError, match=f"more/0 holds offset {COUNT}, which the archive does"):
        run(job(broker, root, "more"))

    for number in range(5):
        lb.streams.get("others").publish(b"%d" % number)
    with pytest.raises(RefusedError, match=r"others/0 holds (another record|offset)"):
        run(job(broker, root, "others"))
    assert len(rows(lb.streams.get("others"))) == 5

    run(job(broker, root, "holes", start=1_000))
    with pytest.raises(RefusedError, match="holes/0 lacks offset 0, which the archive holds"):
        run(job(broker, root, "holes"))


def test_a_target_that_removed_its_beginning_is_refused(
    broker: Broker, lb: SyncClient, root: Path
) -> None:
    settings = StreamSettings(
        retention_max_messages=10,
        segment_max_bytes=5_000,
        cleaner_interval=timedelta(milliseconds=100),
    )
    short = lb.streams.create("short", subject="short", settings=settings)
    run(job(broker, root, "short"))
    broker.wait_until(lambda: short.bounds(0)[0].log_start > 1_000, "trimmed")
    with pytest.raises(RefusedError, match=r"short/0 starts at offset \d+, but the replay at 0"):
        run(job(broker, root, "short"))


def test_a_replay_without_offsets_publishes_each_record_once(
    broker: Broker, lb: SyncClient, root: Path
) -> None:
    copy = lb.streams.create("anew")
    whole = job(broker, root, "anew", keeps=False)

    def broken(works: Sequence[str]) -> list[str]:
        """The task does its work, and its answer is lost."""
        one_by_one(replay.do)(works)
        raise ConnectionError

    lb.streams.get("anew").publish(b"of another publisher")
    with pytest.raises(ConnectionError):
        replayed(whole, broken)
    count = len(archived(root))
    (done,) = run(whole)
    assert (done.written, done.known) == (0, count)
    values = [one.value for one in copy.subscribe(start=Start.earliest(), stop=Stop.latest())]
    store = Below(open_store(str(root)), "orders/")
    batches = records(store, by_partition(log.load(store)), Wanted(0))
    assert values[1:] == [value for one in batches for value in one.column("value").to_pylist()]


def archive_all(broker: Broker, name: str, root: Path, *, cursors: tuple[str, ...] = ()) -> None:
    source = {"servers": broker.address}
    whole = archive.Job(name, str(root), source, {}, fails_on_loss=True, cursors=cursors)
    archive.archive_once(whole, one_by_one(archive.do))


def compact_by_key(name: str, root: Path) -> None:
    """Leave the last record of each key, and no tombstone."""
    whole = compact.Job(name, str(root), {}, 1 << 27, 0)
    compact.compact(whole, one_by_one(compact.do))


def values(stream: SyncStream) -> list[bytes]:
    return [one.value for one in stream.subscribe(start=Start.earliest(), stop=Stop.latest())]


def two_keys(
    broker: Broker, lb: SyncClient, name: str, root: Path
) -> tuple[SyncStream, SyncStream]:
    """A stream with five records of each of two keys, which is archived, and an empty target."""
    stream, copy = lb.streams.create(name), lb.streams.create(f"{name}-again")
    for number in range(10):
        stream.publish(b"%d" % number, key=b"k%d" % (number % 2))
    archive_all(broker, name, root)
    return stream, copy


def test_a_replay_without_offsets_loses_nothing_behind_a_compaction_by_key(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    stream, copy = two_keys(broker, lb, "moved", tmp_path)
    whole = Job("moved/", "moved-again", access(broker, tmp_path), Selection(), keeps_offsets=False)
    run(whole)
    compact_by_key("moved", tmp_path)
    for number in range(10, 16):
        stream.publish(b"%d" % number, key=b"n%d" % number)
    archive_all(broker, "moved", tmp_path)
    with pytest.raises(RefusedError, match="moved-again/0 has records from before the archive was"):
        run(whole)
    assert len(values(copy)) == 10
    whole = whole._replace(allows_repeats=True)
    (done,) = run(whole)
    # Places have moved, so what the archive still has comes again.
    assert (done.written, done.known) == (8, 0)
    assert values(copy) == [b"%d" % number for number in (*range(10), *range(8, 16))]
    (done,) = run(whole)
    assert (done.written, done.known) == (0, 8)


def test_a_replay_that_began_behind_a_compaction_by_key_goes_on_by_itself(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    stream, copy = two_keys(broker, lb, "packed", tmp_path)
    compact_by_key("packed", tmp_path)
    whole = Job(
        "packed/", "packed-again", access(broker, tmp_path), Selection(), keeps_offsets=False
    )
    run(whole)
    stream.publish(b"10", key=b"k2")
    archive_all(broker, "packed", tmp_path)
    (done,) = run(whole)
    assert (done.written, done.known) == (1, 2)
    assert values(copy) == [b"8", b"9", b"10"]


def test_tombstones_that_go_later_begin_another_numbering(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    stream = lb.streams.create("marked")
    copy = lb.streams.create("marked-anew")
    for value in (b"0", b""):
        stream.publish(value, key=b"gone")
    stream.publish(b"2", key=b"kept")
    archive_all(broker, "marked", tmp_path)
    kept = compact.Job("marked", str(tmp_path), {}, 1 << 27, 86_400_000)
    compact.compact(kept, one_by_one(compact.do))
    place = access(broker, tmp_path)
    whole = Job("marked/", "marked-anew", place, Selection(), keeps_offsets=False)
    run(whole)
    compact_by_key("marked", tmp_path)  # as far as before
    stream.publish(b"3", key=b"new")
    archive_all(broker, "marked", tmp_path)
    run(whole._replace(allows_repeats=True))
    assert values(copy) == [b"", b"2", b"2", b"3"]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_compaction_by_key_between_plan_and_tasks_is_refused(
    broker: Broker, lb: SyncClient, tmp_path: Path, *, keeps: bool
) -> None:
    name = f"raced-{keeps}"
    _, copy = two_keys(broker, lb, name, tmp_path)
    whole = Job(f"{name}/", f"{name}-again", access(broker, tmp_path), Selection(), keeps)

    def overtaken(works: Sequence[str]) -> list[str]:
        if not replay.Work.of(works[0]).only_checks:
            compact_by_key(name, tmp_path)
        return [replay.do(one) for one in works]

    with pytest.raises(RefusedError, match="compacted by key meanwhile; start the replay again"):
        replayed(whole, overtaken)
    assert values(copy) == []
    run(whole)
    assert values(copy) == [b"8", b"9"]


def test_the_plan_says_what_would_be_done(broker: Broker, lb: SyncClient, root: Path) -> None:
    lb.streams.create("planned", subject="planned")
    (part,) = plan(job(broker, root, "planned", start=10))
    assert part[:4] == (0, 10, COUNT, 1)
    assert (part.records_max, part.target_end) == (len(archived(root)), 0)
    assert lb.streams.get("planned").bounds(0)[0].log_end == 0
    assert plan(job(broker, root, "planned", start=COUNT)) == []
    with pytest.raises(OptionError, match="stream nowhere does not exist: create it"):
        plan(job(broker, root, "nowhere"))
    with pytest.raises(OptionError, match="has no archived stream in other/"):
        plan(job(broker, root, "planned")._replace(table="other/"))


def test_partitions_that_the_target_lacks_are_named(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    wide = lb.streams.create("wide", partitions=3)
    wide.publish(b"a", partition=2)
    archive.archive_once(
        archive.Job("wide", str(tmp_path), {"servers": broker.address}, {}, fails_on_loss=True),
        one_by_one(archive.do),
    )
    lb.streams.create("narrow")
    whole = Job("wide/", "narrow", access(broker, tmp_path), Selection(), keeps_offsets=True)
    with pytest.raises(OptionError, match="narrow has 1 partitions, the archive needs 3"):
        plan(whole)
    found = differences(broker, "narrow", other="wide")
    assert [(one.partition, one.text) for one in found] == [
        (1, "has a partition that stream narrow lacks"),
        (2, "has a partition that stream narrow lacks"),
    ]
    assert [one.text for one in differences(broker, "wide", other="narrow")] == [
        "has no such partition",
        "has no such partition",
    ]


def damaged(root: Path, place: Path) -> Path:
    """A copy of an archive, and its file."""
    shutil.copytree(root, place)
    (file,) = (place / "orders").glob("data/0/*/*.parquet")
    return file


def test_an_audit_names_a_damaged_file(broker: Broker, root: Path, tmp_path: Path) -> None:
    file = damaged(root, tmp_path / "damaged")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    (found,) = differences(broker, "orders", root=tmp_path / "damaged")
    assert found.holder == "archive orders/"
    assert found.text.startswith("could not be read: ")
    assert file.name in found.text
    assert not found.is_unread


def test_an_audit_names_offset_and_column_of_an_altered_record(
    broker: Broker, lb: SyncClient, root: Path, tmp_path: Path
) -> None:
    file = damaged(root, tmp_path / "altered")
    held = sorted(row[0] for row in rows(lb.streams.get("orders")))
    altered, lost = held[-2:]  # of the active segment, which compaction leaves alone
    table = pq.read_table(file).to_pylist()
    kept = [row for row in table if row["offset"] != lost]
    for row in kept:
        row["value"] += b"!" if row["offset"] == altered else b""
    pq.write_table(pa.Table.from_pylist(kept, SCHEMA), file)
    found = differences(broker, "orders", root=tmp_path / "altered")
    name, first = "archive orders/", f"broker {leader(lb)}"
    assert found == (
        Difference(0, altered, altered + 1, name, f"differs from {first}: value"),
        Difference(0, lost, lost + 1, name, f"lacks what {first} has"),
    )


def test_an_altered_record_that_compaction_removes_meanwhile_is_a_difference(
    broker: Broker, lb: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = lb.streams.create("fleeting")
    for number in range(3):
        stream.publish(b"%d" % number, key=b"one")
    archive_all(broker, "fleeting", tmp_path)
    (file,) = (tmp_path / "fleeting").glob("data/0/*/*.parquet")
    sound = file.read_bytes()
    table = pq.read_table(file).to_pylist()
    table[1]["value"] = b"!"
    pq.write_table(pa.Table.from_pylist(table, SCHEMA), file)
    removed: list[int] = []

    def overtaken(*copies: Copy) -> Iterator[Unlike]:
        for one in compare(*copies):
            if not removed:
                file.write_bytes(sound)  # compaction takes no other file
                compact_by_key("fleeting", tmp_path)
                removed.append(1)
            yield one

    monkeypatch.setattr(audit, "compare", overtaken)
    (found,) = differences(broker, "fleeting", root=tmp_path)
    assert (found.start, found.end, found.holder) == (1, 2, "archive fleeting/")
    assert found.text.endswith(": the record was removed before its columns could be compared")


def test_only_an_archive_that_was_compacted_by_key_may_lack_what_is_superseded(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    stream = lb.streams.create("kept")
    for number in range(20):
        stream.publish(b"%d" % number, key=b"k%d" % (number % 3))
    archive.archive_once(
        archive.Job("kept", str(tmp_path), {"servers": broker.address}, {}, fails_on_loss=True),
        one_by_one(archive.do),
    )
    shutil.copytree(tmp_path, tmp_path / "cut")
    for number in range(5):
        stream.publish(b"later", key=b"k%d" % (number % 3))
    rewritten = compact.Job("kept", str(tmp_path), {}, 1 << 27, 86_400_000)
    compact.compact(rewritten, one_by_one(compact.do))
    assert differences(broker, "kept", root=tmp_path) == ()

    (file,) = (tmp_path / "cut" / "kept").glob("data/0/*/*.parquet")
    pq.write_table(pq.read_table(file).slice(1), file)
    (found,) = differences(broker, "kept", root=tmp_path / "cut")
    assert (found.start, found.end, found.holder) == (0, 1, "archive kept/")


def test_positions_of_consumers_are_put_back_with_the_records(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    stream = lb.streams.create("taken", partitions=2)
    again = lb.streams.create("taken-again", partitions=2)
    for partition in (0, 1):
        for number in range(10):
            stream.publish(b"%d" % number, partition=partition)
    stream.set_cursor("shop", 3, partition=0)
    stream.set_cursor("shop", 9, partition=1)
    source = archive.Job(
        "taken",
        str(tmp_path),
        {"servers": broker.address},
        {},
        fails_on_loss=True,
        cursors=("shop",),
    )
    archive.archive_once(source, one_by_one(archive.do))
    for partition in (0, 1):
        stream.publish(b"later", partition=partition)
    whole = Job(
        "taken/", "taken-again", access(broker, tmp_path), Selection(end=8), keeps_offsets=True
    )
    assert set_cursors(whole, run(whole)) == 2
    # Behind what was replayed nothing may be passed over.
    assert [again.fetch_cursor("shop", partition=one) for one in (0, 1)] == [3, 7]

    plain = source._replace(root=str(tmp_path / "plain"), cursors=())
    archive.archive_once(plain, one_by_one(archive.do))
    without = whole._replace(access=access(broker, tmp_path / "plain"))
    with pytest.raises(OptionError, match="has no cursor positions: it was not made with"):
        set_cursors(without, ())


def test_no_cursor_is_set_beyond_the_end_of_the_target(
    broker: Broker, lb: SyncClient, tmp_path: Path
) -> None:
    stream = lb.streams.create("timely")
    again = lb.streams.create("timely-again")
    for number in range(10):
        stream.publish(b"%d" % number)
    stream.set_cursor("shop", 9, partition=0)
    archive_all(broker, "timely", tmp_path, cursors=("shop",))
    times = sorted(row[1] for row in rows(stream))
    place, chosen = access(broker, tmp_path), Selection(end_ns=times[5])
    whole = Job("timely/", "timely-again", place, chosen, keeps_offsets=True)
    found = run(whole)
    (bounds,) = again.bounds(0)
    assert (found[0].end, bounds.high_watermark) == (10, 5)
    assert set_cursors(whole, found) == 1
    assert again.fetch_cursor("shop", partition=0) == 4


def leader(lb: SyncClient) -> str:
    return lb.streams.get("orders").info().partitions[0].leader


def test_there_must_be_something_to_compare(broker: Broker, lb: SyncClient, root: Path) -> None:
    with pytest.raises(OptionError, match="orders has nothing to compare"):
        differences(broker, "orders")
    with pytest.raises(OptionError, match="stream nowhere does not exist"):
        differences(broker, "orders", other="nowhere")
    lb.streams.create("unarchived")
    with pytest.raises(OptionError, match="has no archive of stream unarchived"):
        differences(broker, "unarchived", root=root)
