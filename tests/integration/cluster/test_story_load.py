"""The load of a story on real brokers: it goes on over a kill, and a loss planted then is seen."""

from pathlib import Path

from liftbridge_client import connect
from liftbridge_proto import api_pb2
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.kube.journal import read, wall_seconds
from liftbridge_testkit.kube.load import Load, path_of
from liftbridge_testkit.kube.verdict import broken, judge, read_log
from liftbridge_testkit.load import api

STREAMS = {"orders": 2, "events": 2}
SECONDS_MAX = 40.0


def created(cluster: ClusterKit) -> str:
    """Make the streams; addresses of all brokers."""
    cluster.until(lambda: len(cluster.metadata().brokers) == 3, "all known")
    for stream, partitions in STREAMS.items():
        request = api_pb2.CreateStreamRequest(
            name=stream, subject=stream, partitions=partitions, replicationFactor=3
        )
        with cluster["b1"].channel() as channel:
            api(channel).CreateStream(request, timeout=10)
        for number in range(partitions):
            cluster.await_leader(stream, number=number)
    return ",".join(broker.address for broker in cluster.brokers.values())


async def test_load_outlives_a_kill_and_a_planted_loss_is_seen(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    with ClusterKit(tmp_path, has_proxies=False) as cluster:
        servers = created(cluster)
        load = Load(journals, servers, STREAMS)
        load.start()
        load.wait_for_all(SECONDS_MAX, more=5)
        cluster["b1"].kill()
        began = wall_seconds()
        load.wait_for_all(SECONDS_MAX, more=5)
        ended = wall_seconds()
        cluster.start("b1")
        load.wait_for_all(SECONDS_MAX, more=5)
        load.stop()
        verdict = await judge(journals, servers, STREAMS)
        async with connect(servers) as client:
            log = await read_log(client, "orders", 0)
    assert verdict.violations == []
    assert set(verdict.acks) == {"orders/0", "orders/1", "events/0", "events/1"}
    assert verdict.counts["delivered"] == verdict.counts["stored"] >= verdict.counts["acked"] >= 60
    # Each partition took messages while the killed broker was away.
    assert all(any(began < at < ended for at in acks) for acks in verdict.acks.values())

    account = read(path_of(journals, "orders", 0))
    assert broken(account, log) == []
    without = [record for record in log if record.offset != len(log) // 2]
    assert {one.promise for one in broken(account, without)} >= {"offsets", "acked"}
