"""Wall clocks of running brokers leap by days: nothing that is not old goes."""

from functools import partial
from pathlib import Path

import pytest

from liftbridge_proto import api_pb2
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api
from liftbridge_testkit.wall_clocks import WallClocks

STREAM, SHORT = "orders", "seconds"
DAY_NS = 86_400 * 10**9
LEAP_NS = 9 * DAY_NS
COUNT = 300


def create(cluster: ClusterKit, name: str, age_ms: int) -> None:
    def number(value: int) -> api_pb2.NullableInt64:
        return api_pb2.NullableInt64(value=value)

    with cluster["b1"].channel() as channel:
        api(channel).CreateStream(
            api_pb2.CreateStreamRequest(
                name=name,
                subject=name,
                replicationFactor=3,
                retentionMaxAge=number(age_ms),
                segmentMaxBytes=number(2_000),
                cleanerInterval=number(100),
            ),
            timeout=10,
        )
    cluster.until(lambda: len(cluster.partition(name).isr) == 3, "three in sync")


def publish(cluster: ClusterKit, name: str, count: int) -> None:
    with cluster[cluster.leader_of(name)].channel() as channel:
        for number in range(count):
            api(channel).Publish(
                api_pb2.PublishRequest(
                    stream=name, value=b"%d" % number, ackPolicy=api_pb2.AckPolicy.ALL
                ),
                timeout=10,
            )


def log_start(cluster: ClusterKit, name: str) -> int:
    found = cluster.read_log(name)
    return found[0].offset if found else -1


def removals(cluster: ClusterKit) -> int:
    """How often brokers removed segments."""
    return sum(broker.log_text().count("segments_deleted") for broker in cluster.brokers.values())


def has_removed_more(cluster: ClusterKit, before: int) -> bool:
    return removals(cluster) > before


@pytest.fixture
def clocks(tmp_path: Path) -> WallClocks:
    return WallClocks(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, clocks: WallClocks):
    with ClusterKit(tmp_path, has_proxies=False, environment=clocks.environment) as cluster:
        yield cluster


def test_nothing_that_is_not_old_goes_whatever_clocks_show(
    cluster: ClusterKit, clocks: WallClocks
) -> None:
    create(cluster, STREAM, 168 * 3_600_000)
    create(cluster, SHORT, 1_000)
    publish(cluster, STREAM, COUNT)
    names = set(cluster.brokers)
    leader = cluster.leader_of(SHORT)
    other = min(names - {leader})
    # A leader that is ahead stamps records with the future until the date is ten minutes old.
    for leap_ns, one in ((LEAP_NS, other), (-LEAP_NS, leader), (-LEAP_NS, other)):
        # One clock is wrong: the others decide, and what is old goes.
        clocks.set_ahead(leap_ns, one)
        before = removals(cluster)
        publish(cluster, SHORT, 60)
        cluster.until(partial(has_removed_more, cluster, before), "segments that were old")
        clocks.set_ahead(0, one)
        # All but one are wrong: nothing goes, and it is told.
        clocks.set_ahead(leap_ns, *names - {one})
        cluster.until(lambda: cluster.metric("cluster_time_known", "b1") == 0, "a leap")
        publish(cluster, STREAM, 20)
        clocks.set_ahead(0, *names - {one})
        cluster.until(
            lambda: all(cluster.metric("cluster_time_known", at) == 1 for at in names), "time"
        )
    assert log_start(cluster, STREAM) == 0
    assert len(cluster.read_log(STREAM)) == COUNT + 60
    assert any("cluster_clock_leapt" in broker.log_text() for broker in cluster.brokers.values())
