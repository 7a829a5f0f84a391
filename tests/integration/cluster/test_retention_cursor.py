"""Retention that waits for an archive: nothing of what it has not got goes, whoever leads."""

import functools
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from liftbridge_client import InvalidRequestError, StreamSettings, SyncStream, connect_sync
from liftbridge_client.errors import LiftbridgeError
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import data
from liftbridge_testkit.processes import Broker

STREAM, CURSOR, VALUE_BYTES, A_SEGMENT = "orders", "archive/7", 400, 10
SETTINGS = StreamSettings(
    retention_max_bytes=8_000,
    segment_max_bytes=2_000,
    cleaner_interval=timedelta(milliseconds=100),
    min_isr=2,
    retention_cursor=CURSOR,
)


class Archived:
    """A stream on real brokers with what was published to it, and the cursor of its archive."""

    def __init__(self, cluster: ClusterKit, stream: SyncStream) -> None:
        """Take over an empty stream."""
        self.cluster = cluster
        self.stream = stream
        self.count = 0

    def publish(self, count: int) -> None:
        """Publish records one by one: followers, too, get them so, and keep segments small."""
        for at in range(count):
            value = b"%d" % at + bytes(VALUE_BYTES)
            self.stream.publish_columns([pa.record_batch({"value": [value]})])
        self.count += count

    def log_start(self) -> int:
        """Where the leader begins."""
        (found,) = self.stream.bounds()
        return found.log_start

    def check_replicas(self, cursor: int) -> None:
        """No replica has removed what the cursor holds, and all of that can be read."""
        request = data_pb2.PartitionBoundsRequest(stream=STREAM, partitions=[0], read_replica=True)
        for broker in self.cluster.living:
            with broker.channel() as channel:
                found = data(channel).PartitionBounds(request, timeout=10).partitions[0]
            assert found.log_start <= cursor
        columns = self.stream.fetch_columns(0, cursor, self.count, columns=["offset"])
        offsets = [at for one in columns for at in one.records.column("offset").to_pylist()]
        assert offsets == list(range(cursor, self.count))

    def await_cursor(self, cursor: int) -> None:
        """Retention comes to the cursor, but for the segment that it stands in."""
        self.cluster.until(
            lambda: cursor - A_SEGMENT < self.log_start() <= cursor, f"removed up to {cursor}"
        )

    def await_in_sync(self) -> None:
        """All replicas are in sync."""
        self.cluster.until(lambda: len(self.cluster.partition(STREAM).isr) == 3, "3 in sync")

    def await_told(self, event: str, at: str) -> None:
        """A broker has told something."""
        self.cluster.until(lambda: event in self.cluster[at].log_text(), event)


def test_what_is_not_archived_stays_through_changes_of_leaders(tmp_path: Path) -> None:
    config = {"cursors.stream.partitions": 1}
    with ClusterKit(tmp_path, config=config, has_proxies=False) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())
        with connect_sync(servers) as lb:
            stream = lb.streams.create(STREAM, replication=3, settings=SETTINGS)
            archived = Archived(cluster, stream)
            archived.await_in_sync()
            leaders = [cluster.await_leader(STREAM)]
            keepers = [cluster.await_leader("__cursors")]
            archived.publish(80)
            archived.await_told("retention_waits", leaders[-1])
            archived.check_replicas(0)

            for cursor in (20, 40, 60):
                stream.set_cursor(CURSOR, cursor)
                archived.await_cursor(cursor)
                cluster[leaders[-1]].kill()
                leaders.append(cluster.await_leader(STREAM, other_than=leaders[-1]))
                archived.publish(20)
                cluster.start(leaders[-2])
                archived.await_in_sync()
                keepers.append(cluster.await_leader("__cursors"))
                archived.check_replicas(cursor)
            assert any(pair[0] != pair[1] for pair in zip(leaders, keepers, strict=True))

            stream.set_cursor(CURSOR, archived.count)
            cluster.until(
                lambda: archived.log_start() > archived.count - 30, "retention at its limit"
            )
            pass_over(archived)


def pass_over(archived: Archived) -> None:
    """Beyond the limit of bytes the cursor is passed over, so far and no farther, which is told."""
    cluster, stream, cursor = archived.cluster, archived.stream, archived.count
    archived.publish(120)
    archived.await_cursor(cursor)
    archived.check_replicas(cursor)
    leader = cluster.leader_of(STREAM)
    assert cluster.metric("log_retention_cursor_passed_total", leader) == 0
    stream.alter(StreamSettings(retention_cursor_max_bytes=30_000))
    passed = functools.partial(cluster.metric, "log_retention_cursor_passed_total", leader)
    cluster.until(lambda: passed() > 0, "the cursor passed over")
    archived.await_told("retention_cursor_passed", leader)
    assert archived.log_start() > cursor
    # Segments go once the journal has the new log start.
    cluster.until(lambda: stream.bounds()[0].bytes <= 32_000, "segments removed")
    assert stream.bounds()[0].bytes > 20_000
    stream.alter(StreamSettings(retention_cursor=""))
    cluster.until(lambda: archived.log_start() > archived.count - 30, "retention alone")


def test_brokers_without_cursors_refuse_what_would_wait_for_ever(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, connect_sync(broker.address) as lb:
        with pytest.raises(LiftbridgeError, match=r"keeps no cursors, set cursors\.stream"):
            lb.streams.create("s", settings=StreamSettings(retention_cursor="c"))
        assert lb.streams.list("s") == []
        stream = lb.streams.create("s")
        with pytest.raises(LiftbridgeError, match="keeps no cursors"):
            stream.alter(StreamSettings(retention_cursor="c"))
        stream.alter(StreamSettings(retention_cursor="", retention_cursor_max_bytes=5))
        (found,) = lb.streams.describe("s")
        assert found.settings.retention_cursor == ""
        assert found.settings.retention_cursor_max_bytes == 5
        with pytest.raises(InvalidRequestError, match="retention_cursor_max_bytes -1"):
            stream.alter(StreamSettings(retention_cursor_max_bytes=-1))
