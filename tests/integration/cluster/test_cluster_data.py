"""Replicated streams on real brokers: what was acknowledged survives the loss of its leader."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import grpc
import pytest

from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.chaos.faults import flip, log_files
from liftbridge_testkit.checker import History, Stored, check
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import GrpcPublisher, api, data, read_log

STREAM = "orders"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterKit]:
    """Three brokers with a stream of three replicas."""
    with ClusterKit(tmp_path) as running:
        create(running)
        yield running


def create(cluster: ClusterKit) -> None:
    with cluster["b1"].channel() as channel:
        api(channel).CreateStream(
            api_pb2.CreateStreamRequest(name=STREAM, subject=STREAM, replicationFactor=3),
            timeout=10,
        )
    cluster.await_leader(STREAM)
    await_in_sync(cluster, 3)


def await_in_sync(cluster: ClusterKit, count: int) -> None:
    cluster.until(lambda: len(cluster.partition(STREAM).isr) == count, f"{count} in sync")


def publish(cluster: ClusterKit, history: History, count: int, hurt: Callable[[str], None]) -> None:
    """Publish with ALL to the leader, hurt it under load, and wait for the end of the call."""
    leader = cluster.await_leader(STREAM)
    publisher = GrpcPublisher(
        history.new_publisher(), cluster[leader].address, STREAM, policy=api_pb2.ALL
    )
    publisher.start()
    publisher.wait_for(count)
    hurt(leader)
    publisher.stop()


def committed(cluster: ClusterKit) -> list[Stored]:
    """The log as its leader tells it, once every replica is in sync again."""
    await_in_sync(cluster, 3)
    leader = cluster.await_leader(STREAM)
    with cluster[leader].channel() as channel:
        return read_log(channel, STREAM)


def nothing(_leader: str) -> None:
    """Hurt nobody."""


def test_nothing_acknowledged_by_all_is_lost_when_leaders_are_killed(cluster: ClusterKit) -> None:
    history = History()
    for _ in range(3):
        publish(cluster, history, 1_000, lambda leader: cluster[leader].kill())
        dead = next(name for name, broker in cluster.brokers.items() if not broker.is_alive())
        cluster.await_leader(STREAM, other_than=dead)
        publish(cluster, history, 300, nothing)
        cluster[dead].start()
        await_in_sync(cluster, 3)
    log = committed(cluster)
    assert check(history, log) == []
    assert len(log) >= 3 * 1_300


def test_leader_that_stops_in_order_hands_over_first(cluster: ClusterKit) -> None:
    history = History()
    leader = cluster.await_leader(STREAM)
    publish(cluster, history, 500, lambda name: cluster[name].terminate())
    assert cluster[leader].wait() == 0
    assert "is_complete=True" in cluster[leader].log_text()
    assert cluster.await_leader(STREAM, other_than=leader) != leader
    publish(cluster, history, 500, nothing)
    cluster[leader].start()
    assert check(history, committed(cluster)) == []


def test_publishing_goes_on_without_a_follower(cluster: ClusterKit) -> None:
    history = History()
    leader = cluster.await_leader(STREAM)
    follower = next(name for name in cluster.brokers if name != leader)
    publish(cluster, history, 500, lambda _leader: cluster[follower].kill())
    await_in_sync(cluster, 2)
    publish(cluster, history, 500, nothing)
    assert cluster.metric("partitions_under_replicated", leader) == 1
    cluster[follower].start()
    assert check(history, committed(cluster)) == []
    cluster.until(
        lambda: cluster.metric("partitions_under_replicated", leader) == 0, "full replication"
    )


def test_wiped_replica_is_filled_again(cluster: ClusterKit) -> None:
    history = History()
    publish(cluster, history, 1_000, nothing)
    leader = cluster.await_leader(STREAM)
    wiped, other = (name for name in cluster.brokers if name != leader)
    cluster.wipe(wiped)
    cluster.start(wiped)
    await_in_sync(cluster, 3)
    cluster.await_voters(3)
    # With both others gone, only the wiped one can have what was acknowledged.
    cluster[other].kill()
    await_in_sync(cluster, 2)
    cluster[leader].kill()
    cluster[other].start()
    cluster[leader].start()
    assert check(history, committed(cluster)) == []


def test_damage_that_nobody_reads_is_found_and_mended(tmp_path: Path) -> None:
    config = {"data.scrub.interval": "1s"}
    with ClusterKit(tmp_path, config=config) as cluster:
        create(cluster)
        history = History()
        publish(cluster, history, 1_000, nothing)
        follower = next(name for name in cluster.brokers if name != cluster.leader_of(STREAM))
        cluster.until(lambda: cluster.metric("log_scrubbed_bytes_total", follower) > 0, "a pass")
        (log,) = log_files(cluster[follower].data_dir)
        assert flip(log, Random(1))[0] == STREAM
        told = "log_corrupt_batches_total"
        cluster.until(lambda: cluster.metric(told, follower) == 1, "the damage to be found")
        assert check(history, committed(cluster)) == []


def test_any_broker_takes_a_publish(cluster: ClusterKit) -> None:
    leader = cluster.await_leader(STREAM)
    for number, name in enumerate(name for name in cluster.brokers if name != leader):
        with cluster[name].channel() as channel:
            request = api_pb2.PublishRequest(
                stream=STREAM, value=b"v", ackPolicy=api_pb2.ALL, expectedOffset=-1
            )
            assert api(channel).Publish(request, timeout=5).ack.offset == number
            with pytest.raises(grpc.RpcError) as refused:
                next(api(channel).Subscribe(api_pb2.SubscribeRequest(stream=STREAM), timeout=5))
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_publisher_is_told_by_any_broker_where_it_stands(cluster: ClusterKit) -> None:
    leader = cluster.await_leader(STREAM)
    for number, name in enumerate(cluster.brokers):
        with cluster[name].channel() as channel:
            init = data_pb2.InitPublisherRequest(stream=STREAM, publisher="p")
            known = data(channel).InitPublisher(init, timeout=10)
        assert dict(known.next_sequence) == {0: number}
        request = data_pb2.PublishBatchRequest(
            stream=STREAM,
            values=[b"v"],
            ack_policy=api_pb2.ALL,
            publisher_id=known.publisher_id,
            publisher_epoch=known.publisher_epoch,
            first_sequence=number,
        )
        with cluster[leader].channel() as channel:
            answers = [*data(channel).PublishBatch(iter([request, request]), timeout=10)]
        assert [(one.base_offset, one.duplicate) for one in answers] == [
            (number, False),
            (number, True),
        ]


def test_all_brokers_stop_and_start_with_everything(cluster: ClusterKit) -> None:
    history = History()
    publish(cluster, history, 1_000, nothing)
    assert cluster.stop() == [0, 0, 0]
    cluster.start()
    assert check(history, committed(cluster)) == []
