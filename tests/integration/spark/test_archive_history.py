"""An unclean election on real brokers, before and while a stream is archived and read back."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from liftbridge_client import StreamSettings, SyncClient, connect_sync
from liftbridge_testkit.cluster import ClusterKit
from pyspark_liftbridge.archive import reading
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.stores.store import Below, open_store
from pyspark_liftbridge.archive.verify import verify
from pyspark_liftbridge.jobs import archive
from pyspark_liftbridge.jobs.archive import Job, archive_once, do
from pyspark_liftbridge.plan.archiving import MissingError
from pyspark_liftbridge.plan.histories import Read
from pyspark_liftbridge.plan.options import SourceOptions, read_source
from pyspark_liftbridge.plan.ranges import Range
from pyspark_liftbridge.source import cluster as asking
from pyspark_liftbridge.source.archived import Archive
from pyspark_liftbridge.source.reading import DataLossError, records_of
from pyspark_liftbridge.source.schema import layout_of

STREAM = "s"
BOTH, ALONE, AFTER = [b"a", b"b"], [b"c", b"d", b"e"], [b"C", b"D", b"E", b"F"]


def in_turn(works: Sequence[str]) -> list[str]:
    return [do(one) for one in works]


def test_archive_and_log_of_two_histories_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClusterKit(tmp_path, has_proxies=False) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())

        def job(root: str) -> Job:
            return Job(STREAM, str(tmp_path / root), {"servers": servers}, {}, fails_on_loss=True)

        def elected(works: Sequence[str]) -> list[str]:
            election.close()
            return in_turn(works)

        def elect() -> None:
            cluster[leader].kill()
            cluster.start(follower)
            cluster.elect_unclean(STREAM, follower)
            cluster.publish(STREAM, AFTER)

        election = ExitStack()
        election.callback(elect)
        with connect_sync(servers) as lb:
            lb.streams.create(STREAM, replication=2, settings=StreamSettings(min_isr=1))
            cluster.publish(STREAM, BOTH)
            for root in ("lost", "kept"):
                assert archive_once(job(root), in_turn).records == 2
            leader, follower = cluster.leader_and_follower(STREAM)
            cluster[follower].kill()
            cluster.publish(STREAM, ALONE)
            assert archive_once(job("lost"), in_turn).records == 3
            # This one is to read what is lost then; it reads what came in its place.
            assert archive_once(job("kept"), elected).records == len(AFTER)
            assert values(tmp_path / "kept") == BOTH + AFTER
            table = Below(open_store(str(tmp_path / "kept")), f"{STREAM}/")
            assert verify(table) == []
            (bounds,) = lb.streams.get(STREAM).bounds(0)
            assert bounds.unclean_epoch
            read = Read(bounds.unclean_epoch, bounds.epochs[-1][0], 6)
            assert reading.held_of(log.load(table))[0].read == read

            # Of this one the log has other records, which no clock tells.
            monkeypatch.setattr(archive, "_check_same", lambda *_: None)
            both = f"archived in history 0, .* in history {bounds.unclean_epoch} and has one"
            with pytest.raises(MissingError, match=rf"s/0: offsets up to 4 were {both}"):
                archive_once(job("lost"), in_turn)
            assert values(tmp_path / "lost") == BOTH + ALONE
            with pytest.raises(MissingError, match=rf"{both}.*without the option archive"):
                unified(servers, tmp_path / "lost")
            unified(servers, tmp_path / "kept")

            # A task that was planned before the election, and looks at an archive again.
            planned = Range(STREAM, bounds.stream_id, 0, len(BOTH), 6, unclean_epoch=0)
            options = options_of(servers, archive=str(tmp_path / "lost"))
            assert options.archive is not None
            with pytest.raises(MissingError, match=both):
                Archive(options.archive).newest_part(planned, asking.known_of(lb, planned, options))

            # The same without an archive.
            with pytest.raises(DataLossError, match=r"offsets 2 to 5 .* in history 0, and"):
                task_values(lb, servers, planned, fails_on_loss=True)
            assert task_values(lb, servers, planned, fails_on_loss=False) == AFTER


def options_of(servers: str, **given: str) -> SourceOptions:
    return read_source({"servers": servers, "subscribe": STREAM, **given}, is_stream=False)


def task_values(
    lb: SyncClient, servers: str, planned: Range, *, fails_on_loss: bool
) -> list[bytes]:
    options = options_of(servers, failOnDataLoss=str(fails_on_loss).lower())
    found = records_of(lb, [planned], layout_of(options.shape), options)
    return [value for batch in found for value in batch.column("value").to_pylist()]


def unified(servers: str, root: Path) -> None:
    options = options_of(servers, archive=str(root))
    assert options.archive is not None
    found = asking.ask(options, lambda client: asking.bounds_at_start(client, options))
    Archive(options.archive).bounds(found)


def values(root: Path) -> list[bytes]:
    """Values of the files that the log names."""
    files = log.load(Below(open_store(str(root)), f"{STREAM}/")).files.values()
    tables = [pq.read_table(root / STREAM / one.object_path) for one in files]
    rows = [row for table in tables for row in table.select(["offset", "value"]).to_pylist()]
    return [row["value"] for row in sorted(rows, key=lambda row: row["offset"])]
