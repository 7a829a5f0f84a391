"""A restore on real brokers: what is put back is what was there, whatever dies meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from liftbridge_client import SyncStream, connect_sync
from liftbridge_testkit.cluster import ClusterKit

COLUMNS = ["offset", "timestamp", "key", "value", "headers", "subject", "reply_subject"]
BATCHES, RECORDS = 40, 500


def read(stream: SyncStream) -> pa.Table:
    return pa.Table.from_batches([one.records for one in stream.fetch_columns(columns=COLUMNS)])


def sparse(count: int) -> pa.RecordBatch:
    """Records with every column, as compaction leaves them: some offsets are missing."""
    offsets = [at * 3 + at % 2 for at in range(count)]
    return pa.record_batch(
        {
            "offset": offsets,
            "timestamp": pa.array([10**18 + at // 7 for at in range(count)], pa.int64()).cast(
                pa.timestamp("ns", "UTC")
            ),
            "key": [None if at % 3 else b"k%d" % at for at in range(count)],
            "value": [bytes(300) + b"%d" % at for at in range(count)],
            "headers": pa.array(
                [[("h", b"%d" % at)] if at % 5 == 0 else [] for at in range(count)],
                pa.map_(pa.string(), pa.binary()),
            ),
            "subject": [f"orders.{at % 11}" for at in range(count)],
            "reply_subject": ["" if at % 4 else "_INBOX.1" for at in range(count)],
        }
    )


def test_restore_goes_on_where_the_log_ends_after_the_leader_died(tmp_path: Path) -> None:
    with ClusterKit(tmp_path, has_proxies=False) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())
        with connect_sync(servers) as lb:
            stream = lb.streams.create("again", subject="orders.*", replication=3)
            whole = sparse(BATCHES * RECORDS)
            leader = cluster.partition("again").leader

            def batches() -> Iterator[pa.RecordBatch]:
                for number in range(BATCHES):
                    if number == BATCHES // 2:
                        cluster[leader].kill()
                    yield whole.slice(number * RECORDS, RECORDS)

            end = whole.column("offset")[-1].as_py() + 1
            assert stream.restore(0, batches()) == end
            expected = pa.Table.from_batches([whole]).cast(read(stream).schema)
            assert read(stream).equals(expected)
            assert stream.restore(0, [whole]) == end
            assert read(stream).equals(expected)
            assert stream.restore(0, []) == 0
