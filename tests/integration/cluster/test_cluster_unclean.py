"""An unclean election on real brokers, as a reader by the shipped client sees it (KIP-320)."""

from pathlib import Path

import pytest

from liftbridge_client import (
    PartitionName,
    Start,
    StreamSettings,
    TruncatedError,
    connect_admin_sync,
    connect_sync,
)
from liftbridge_testkit.cluster import ClusterKit

STREAM = "s"
BOTH, ALONE, AFTER = [b"a", b"b"], [b"c", b"d", b"e"], [b"C", b"D"]


def test_reader_learns_that_an_unclean_election_took_back_what_it_had(tmp_path: Path) -> None:
    with ClusterKit(tmp_path, has_proxies=False) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())
        with connect_sync(servers) as lb:
            stream = lb.streams.create(STREAM, replication=2, settings=StreamSettings(min_isr=1))
            reader = iter(stream.subscribe(start=Start.earliest()))
            continuing = iter(
                stream.subscribe(start=Start.earliest(), on_truncation="continue"),
            )
            _publish(cluster, servers, BOTH)
            leader, follower = _leader_and_follower(cluster)
            cluster[follower].kill()
            _publish(cluster, servers, ALONE)
            assert [next(reader).value for _ in range(5)] == BOTH + ALONE
            assert [next(continuing).value for _ in range(5)] == BOTH + ALONE
            cluster[leader].kill()
            cluster.start(follower)
            _elect(cluster, follower)
            _publish(cluster, servers, AFTER)
            with pytest.raises(TruncatedError, match="truncated s/0 at offset 2") as caught:
                next(reader)
            assert (caught.value.offset, caught.value.next_offset) == (2, 5)
            found = [next(continuing) for _ in AFTER]
            assert [(one.offset, one.value) for one in found] == [(2, b"C"), (3, b"D")]


def _publish(cluster: ClusterKit, servers: str, values: list[bytes]) -> None:
    """Publish what all replicas in sync acknowledge."""
    with connect_sync(servers) as lb, lb.streams.get(STREAM).publisher(ack_policy="all") as sender:
        for value in values:
            sender.publish(value)


def _leader_and_follower(cluster: ClusterKit) -> tuple[str, str]:
    found = cluster.partition(STREAM)
    (follower,) = [one for one in found.replicas if one != found.leader]
    return found.leader, follower


def _elect(cluster: ClusterKit, broker: str) -> None:
    """Decide as an operator does, as soon as the cluster knows that nobody else can lead."""
    servers = ",".join(one.admin_address for one in cluster.living)
    with connect_admin_sync(servers) as admin:

        def is_elected() -> bool:
            (state,) = admin.partitions(STREAM)
            if state.unclean_epoch:
                return not state.is_recovering
            if not state.leader:
                name = PartitionName(STREAM, 0)
                admin.elect_unclean(name, broker, partition_epoch=state.partition_epoch)
            return False

        cluster.until(is_elected, f"{broker} to lead")
