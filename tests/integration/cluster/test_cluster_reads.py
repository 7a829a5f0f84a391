"""Questions about logs to each of three real brokers: who answers, and who sends elsewhere."""

import json
from collections.abc import Iterator
from datetime import timedelta

import grpc
import pytest

from liftbridge_client import RetriableError, Start, Stop, connect, connect_sync
from liftbridge_client.cli.app import run
from liftbridge_proto import api_pb2
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api

STREAM = "orders"
PARTITIONS = 6
COUNT = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterKit]:
    """Three brokers with a stream whose partitions they share; all is committed."""
    with ClusterKit(tmp_path_factory.mktemp("reads")) as running:
        with connect_sync(servers(running)) as lb:
            stream = lb.streams.create(STREAM, partitions=PARTITIONS, replication=3)
            with stream.publisher(ack_policy="all") as publisher:
                for number in range(COUNT * PARTITIONS):
                    publisher.publish(b"%d" % number, partition=number % PARTITIONS)
        running.until(
            lambda: len({partition.leader for partition in partitions(running).values()}) > 1,
            "leaders on several brokers",
        )
        yield running


def servers(cluster: ClusterKit) -> str:
    return ",".join(broker.address for broker in cluster.brokers.values())


def partitions(cluster: ClusterKit) -> dict[int, api_pb2.PartitionMetadata]:
    with cluster["b1"].channel() as channel:
        request = api_pb2.FetchMetadataRequest(streams=[STREAM])
        return dict(api(channel).FetchMetadata(request, timeout=5).streamMetadata[0].partitions)


def read(cluster: ClusterKit, at: str, **fields: object) -> list[bytes] | grpc.StatusCode:
    """Partition 0 from its beginning to its end at one broker, or why it is not given."""
    request = api_pb2.SubscribeRequest(
        stream=STREAM,
        startPosition=api_pb2.EARLIEST,
        stopPosition=api_pb2.STOP_LATEST,
        **fields,  # type: ignore[arg-type]  # by name
    )
    values: list[bytes] = []
    with cluster[at].channel() as channel:
        try:
            values.extend(one.value for one in api(channel).Subscribe(request, timeout=10))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                return error.code()
    return values[1:]


def test_a_replica_serves_a_subscription_that_takes_one(cluster: ClusterKit) -> None:
    leader = partitions(cluster)[0].leader
    expected = [b"%d" % number for number in range(0, COUNT * PARTITIONS, PARTITIONS)]
    for at in cluster.brokers:
        assert read(cluster, at, readISRReplica=True) == expected
        plain = read(cluster, at)
        assert plain == (expected if at == leader else grpc.StatusCode.FAILED_PRECONDITION)


def test_metadata_of_one_partition_are_told_by_its_leader_alone(cluster: ClusterKit) -> None:
    for number, known in partitions(cluster).items():
        for at in cluster.brokers:
            request = api_pb2.FetchPartitionMetadataRequest(stream=STREAM, partition=number)
            with cluster[at].channel() as channel:
                if at == known.leader:
                    told = api(channel).FetchPartitionMetadata(request, timeout=5).metadata
                    assert (told.leader, told.highWatermark) == (at, COUNT - 1)
                    continue
                with pytest.raises(grpc.RpcError) as refused:
                    api(channel).FetchPartitionMetadata(request, timeout=5)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            text = "The request should be sent to partition leader"
            assert refused.value.details() == text


async def test_bounds_are_put_together_from_all_leaders(cluster: ClusterKit) -> None:
    async with connect(servers(cluster)) as lb:
        stream = lb.streams.get(STREAM)
        for found in (await stream.bounds(), await stream.bounds(read_replica=True)):
            assert [one.partition for one in found] == list(range(PARTITIONS))
            assert {(one.log_start, one.high_watermark) for one in found} == {(0, COUNT)}
            assert len({one.stream_id for one in found}) == 1
        assert [one.partition for one in await stream.bounds(4, 2)] == [4, 2]


def test_bounds_are_put_together_for_the_blocking_client_and_the_command(
    cluster: ClusterKit, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect_sync(servers(cluster)) as lb:
        assert len(lb.streams.get(STREAM).bounds()) == PARTITIONS
    code = run(["bounds", STREAM, "--servers", servers(cluster), "-o", "jsonl"])
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert [row["partition"] for row in rows] == list(range(PARTITIONS))


@pytest.mark.parametrize("is_reverse", [False, True], ids=["forwards", "backwards"])
async def test_reads_that_take_a_replica_are_served_by_one(
    cluster: ClusterKit, is_reverse: bool
) -> None:
    leader = partitions(cluster)[0].leader
    before = {at: cluster.metric("delivered_messages_total", at) for at in cluster.brokers}
    async with connect(servers(cluster)) as lb:
        reading = lb.streams.get(STREAM).subscribe(
            start=Start.latest() if is_reverse else Start.earliest(),
            stop=Stop.never() if is_reverse else Stop.latest(),
            reverse=is_reverse,
            read_replica=True,
        )
        offsets = [message.offset for message in [one async for one in reading]]
    assert sorted(offsets) == list(range(COUNT))
    given = {at: cluster.metric("delivered_messages_total", at) - before[at] for at in before}
    assert given[leader] == 0
    assert sum(given.values()) == COUNT


async def test_a_broker_that_is_named_answers_whatever_its_role(cluster: ClusterKit) -> None:
    async with connect(servers(cluster)) as lb:
        stream = lb.streams.get(STREAM)
        for at in cluster.brokers:
            before = {
                one: cluster.metric("delivered_messages_total", one) for one in cluster.brokers
            }
            assert [one.high_watermark for one in await stream.bounds(0, broker=at)] == [COUNT]
            batches = [one.records async for one in stream.fetch_columns(0, broker=at)]
            assert sum(one.num_rows for one in batches) == COUNT
            after = {one: cluster.metric("delivered_messages_total", one) for one in before}
            assert [one for one in before if after[one] > before[one]] == [at]


async def test_a_broker_that_is_not_there_does_not_answer(cluster: ClusterKit) -> None:
    async with connect(servers(cluster), retry_time=timedelta(0)) as lb:
        with pytest.raises(RetriableError, match="no such broker in the cluster now: b9"):
            await lb.streams.get(STREAM).bounds(broker="b9")
