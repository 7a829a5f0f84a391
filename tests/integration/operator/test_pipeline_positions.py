"""How far archives have come, asked of brokers that run as processes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from liftbridge_client import connect_sync
from liftbridge_operator.cluster.brokers.reach import Endpoint
from liftbridge_operator.pipelines.grpc_positions import GrpcPositions
from liftbridge_operator.pipelines.port import CursorError, SilentError, UnknownStreamError
from liftbridge_operator.pipelines.positions import Place, Position
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.processes import Broker, free_port

CURSOR = "archive/shop/p"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterKit]:
    """Three brokers, each of which keeps a part of the cursors."""
    folder = tmp_path_factory.mktemp("cluster")
    with ClusterKit(folder, config={"cursors.stream.partitions": 3}) as running:
        yield running


@pytest.fixture
async def brokers(cluster):
    made = GrpcPositions([Endpoint(name, cluster[name].admin_address) for name in cluster.brokers])
    yield made
    await made.close()


@pytest.fixture(scope="module")
def stream(cluster: ClusterKit) -> str:
    """A stream with partitions at all brokers: ten records in each, some archived."""
    addresses = ",".join(one.address for one in cluster.brokers.values())
    with connect_sync(addresses) as client:
        client.streams.create("orders", partitions=3)
        for number in range(3):
            cluster.await_leader("orders", other_than="", number=number)
        with client.streams.get("orders").publisher() as publisher:
            for number in range(3):
                publisher.publish_batch([b"x"] * 10, partition=number)
        for number, first_missing in ((0, 10), (1, 4)):
            client.streams.get("orders").set_cursor(CURSOR, first_missing, partition=number)
    return "orders"


async def test_positions_are_told_by_the_leaders_of_all_partitions_and_cursors(brokers, stream):
    found = await brokers.positions(stream, CURSOR)
    assert found == {
        Place(stream, 0): Position(0, 10, 9),
        Place(stream, 1): Position(0, 10, 3),
        Place(stream, 2): Position(0, 10, -1),
    }
    assert [one.lag for one in found.values()] == [0, 6, 10]


async def test_another_cursor_is_another_archive(brokers, stream):
    found = await brokers.positions(stream, "archive/shop/q")
    assert {one.archived for one in found.values()} == {-1}


async def test_stream_that_is_not_there_is_named(brokers):
    with pytest.raises(UnknownStreamError, match="absent"):
        await brokers.positions("absent", CURSOR)


async def test_partition_without_its_leader_is_not_told(cluster, stream):
    others = [name for name in cluster.brokers if name != cluster.leader_of(stream, 1)]
    made = GrpcPositions([Endpoint(name, cluster[name].admin_address) for name in others])
    with pytest.raises(SilentError, match="partition 1 of stream orders"):
        await made.positions(stream, CURSOR)
    await made.close()


async def test_nobody_answers():
    made = GrpcPositions([Endpoint("b", f"127.0.0.1:{free_port()}")])
    with pytest.raises(SilentError):
        await made.positions("orders", CURSOR)
    await made.close()


async def test_brokers_without_cursors_are_told_apart(tmp_path: Path):
    with Broker(tmp_path, config={"cursors.stream.partitions": 0}) as broker:

        def create() -> None:
            with connect_sync(broker.address) as client:
                client.streams.create("orders")

        await asyncio.to_thread(create)
        made = GrpcPositions([Endpoint(broker.name, broker.admin_address)])
        with pytest.raises(CursorError, match="ursor"):
            await made.positions("orders", CURSOR)
        await made.close()
