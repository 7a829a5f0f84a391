"""Our client beside a real cluster whose partitions change their leaders."""

import asyncio
from datetime import timedelta
from pathlib import Path

from liftbridge_client import Ack, PublishResult, connect
from liftbridge_testkit.cluster import ClusterKit

ATTEMPTS_MAX = 50
CLOSED_MAX = 5
HUNG_SECONDS_MAX = 60


async def test_publisher_follows_a_leader_that_moved_while_its_broker_lives(
    tmp_path: Path,
) -> None:
    with ClusterKit(tmp_path) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())
        async with connect(servers) as lb:
            stream = await lb.streams.create("moved", replication=3)
            async with stream.publisher(ack_policy="all") as publisher:
                first = (await publisher.publish_batch([b"before"]))[0]
                assert isinstance(first, Ack)
                former = cluster.leader_of("moved")
                await asyncio.to_thread(cluster.stop, former)
                await asyncio.to_thread(cluster.start, former)
                assert cluster.leader_of("moved") != former
                results: list[PublishResult] = []
                while len(results) < ATTEMPTS_MAX and not (
                    results and isinstance(results[-1], Ack)
                ):
                    results += await publisher.publish_batch([b"after"])
                assert isinstance(results[-1], Ack)
                assert results[-1].offset == 1


async def test_publishers_that_are_closed_at_each_error_find_the_leader_that_moved(
    tmp_path: Path,
) -> None:
    with ClusterKit(tmp_path) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())
        async with connect(servers) as lb:
            stream = await lb.streams.create("moved", replication=3)
            async with stream.publisher(ack_policy="all") as publisher:
                await publisher.publish_batch([b"before"])
            former = cluster.leader_of("moved")
            await asyncio.to_thread(cluster.stop, former)
            await asyncio.to_thread(cluster.start, former)
            assert cluster.leader_of("moved") != former
            results: list[PublishResult] = []
            while len(results) < CLOSED_MAX and not (results and isinstance(results[-1], Ack)):
                async with stream.publisher(ack_policy="all") as publisher:
                    results += await publisher.publish_batch([b"after"])
            assert isinstance(results[-1], Ack)
            assert results[-1].offset == 1


async def test_publisher_leaves_a_leader_that_hangs_long_before_its_calls_time_out(
    tmp_path: Path,
) -> None:
    with ClusterKit(tmp_path) as cluster:
        servers = ",".join(broker.address for broker in cluster.brokers.values())
        async with connect(servers, timeout=timedelta(minutes=10)) as lb:
            stream = await lb.streams.create("hung", replication=3)
            async with stream.publisher(ack_policy="all", idempotent=True) as publisher:
                await publisher.publish_batch([b"before"])
                former = cluster.leader_of("hung")
                cluster[former].pause()
                try:
                    async with asyncio.timeout(HUNG_SECONDS_MAX):
                        (result,) = await publisher.publish_batch([b"after"])
                finally:
                    cluster[former].resume()
                assert isinstance(result, Ack)
                assert result.offset == 1
