"""A bulk read on real brokers whose leader dies within the range."""

from pathlib import Path

from liftbridge_client import connect_sync
from liftbridge_testkit.cluster import ClusterKit

STREAM = "s"
BATCHES, RECORDS, SIZE = 60, 500, 400


def test_bulk_read_goes_on_at_the_next_leader_without_loss_or_repetition(tmp_path: Path) -> None:
    with ClusterKit(tmp_path, has_proxies=False) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())
        with connect_sync(servers) as lb:
            stream = lb.streams.create(STREAM, replication=3)
            with stream.publisher(ack_policy="all") as publisher:
                for number in range(BATCHES):
                    publisher.publish_batch(
                        [b"%d" % (number * RECORDS + at) + bytes(SIZE) for at in range(RECORDS)]
                    )
            columns = ["offset", "value", "leader_epoch"]
            reading = stream.fetch_columns(columns=columns, prefetch=0)
            found = [next(reading)]
            leader = cluster.partition(STREAM).leader
            cluster[leader].kill()
            found += list(reading)
            offsets = [at for one in found for at in one.records.column("offset").to_pylist()]
            values = [value for one in found for value in one.records.column("value").to_pylist()]
            assert offsets == list(range(BATCHES * RECORDS))
            assert [int(value[:-SIZE]) for value in values] == offsets
            assert found[-1].next_offset == BATCHES * RECORDS
        others = [at for at in cluster.brokers if at != leader]
        assert sum(cluster.metric("delivered_messages_total", at) for at in others) > 0
