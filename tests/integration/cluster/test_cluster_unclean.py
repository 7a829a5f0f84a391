"""An unclean election on real brokers, as a reader by the shipped client sees it (KIP-320)."""

from pathlib import Path

import pytest

from liftbridge_client import (
    Start,
    StreamSettings,
    TruncatedError,
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
            cluster.publish(STREAM, BOTH)
            leader, follower = cluster.leader_and_follower(STREAM)
            cluster[follower].kill()
            cluster.publish(STREAM, ALONE)
            assert [next(reader).value for _ in range(5)] == BOTH + ALONE
            assert [next(continuing).value for _ in range(5)] == BOTH + ALONE
            cluster[leader].kill()
            cluster.start(follower)
            cluster.elect_unclean(STREAM, follower)
            cluster.publish(STREAM, AFTER)
            with pytest.raises(TruncatedError, match="truncated s/0 at offset 2") as caught:
                next(reader)
            assert (caught.value.offset, caught.value.next_offset) == (2, 5)
            found = [next(continuing) for _ in AFTER]
            assert [(one.offset, one.value) for one in found] == [(2, b"C"), (3, b"D")]
