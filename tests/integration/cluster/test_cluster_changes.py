"""Changes of a real cluster under load: no publish is refused in the end, nothing is lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from liftbridge_client import (
    Ack,
    AdminClient,
    Member,
    PartitionName,
    Start,
    Stop,
    Stream,
    connect,
    connect_admin,
)
from liftbridge_testkit.cluster import ClusterKit

STREAM = "orders"
ORDERS = PartitionName(STREAM, 0)
NEW = ("b4", "b5")
BATCH = 20
CHANGE_SECONDS = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterKit]:
    """Three brokers, the first of them the seed, and two that may join them."""
    with ClusterKit(tmp_path, has_seed=True) as running:
        for name in NEW:
            running.add(name)
        yield running


class Load:
    """An idempotent publisher that goes on until it is told to stop.

    Attributes:
        count: Messages acknowledged.
    """

    def __init__(self, stream: Stream) -> None:
        self.count = 0
        self._stream = stream
        self._is_over = False
        self._acked = asyncio.Event()

    async def run(self) -> None:
        """Publish numbers, each of which must be acknowledged."""
        async with self._stream.publisher(ack_policy="all", idempotent=True) as publisher:
            while not self._is_over:
                values = [str(self.count + number).encode() for number in range(BATCH)]
                results = await publisher.publish_batch(values)
                refused = [result for result in results if not isinstance(result, Ack)]
                assert not refused, refused[0]
                self.count += BATCH
                self._acked.set()

    async def more(self) -> None:
        """Wait until more was acknowledged."""
        wanted = self.count + 5 * BATCH
        async with asyncio.timeout(CHANGE_SECONDS):
            while self.count < wanted:
                self._acked.clear()
                await self._acked.wait()

    def stop(self) -> None:
        """End after this batch."""
        self._is_over = True


@asynccontextmanager
async def loaded(cluster: ClusterKit) -> AsyncIterator[tuple[Load, AdminClient]]:
    """Publish during the block; behind it everything must be there once and in order."""
    servers = ",".join(broker.address for broker in cluster.brokers.values())
    admins = ",".join(broker.admin_address for broker in cluster.brokers.values())
    async with connect(servers) as client, connect_admin(admins) as admin:
        await asyncio.to_thread(cluster.await_voters, 3)
        stream = await client.streams.create(STREAM, replication=3)
        load = Load(stream)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            await load.more()
            yield load, admin
            await load.more()
            load.stop()
        found = [
            message.value
            async for message in stream.subscribe(start=Start.earliest(), stop=Stop.latest())
        ]
    assert found == [str(number).encode() for number in range(load.count)]


async def until_moved(cluster: ClusterKit, admin: AdminClient, *to: str) -> None:
    """Wait until exactly these hold the partition, all in sync."""
    await asyncio.to_thread(
        cluster.until,
        lambda: sorted(cluster.partition(STREAM).isr) == sorted(to) == held(cluster),
        f"replicas {to}",
        seconds_max=CHANGE_SECONDS,
    )
    assert not await admin.reassignments()


def held(cluster: ClusterKit) -> list[str]:
    return sorted(cluster.partition(STREAM).replicas)


def is_empty(cluster: ClusterKit, name: str) -> bool:
    return name not in held(cluster)


def holds_nothing(cluster: ClusterKit, name: str) -> bool:
    return not any(
        name in partition.replicas
        for stream in cluster.metadata().streamMetadata
        for partition in stream.partitions.values()
    )


def is_gone(cluster: ClusterKit, name: str) -> bool:
    return all(broker.id != name for broker in cluster.metadata().brokers)


async def grow(cluster: ClusterKit) -> None:
    await asyncio.to_thread(cluster.start, *NEW)
    await asyncio.to_thread(cluster.await_voters, 5)


async def test_partition_moves_to_other_brokers_under_load(cluster: ClusterKit) -> None:
    async with loaded(cluster) as (load, admin):
        await grow(cluster)
        await load.more()
        await admin.start_reassignment(ORDERS, ["b3", "b4", "b5"])
        await until_moved(cluster, admin, "b3", "b4", "b5")
        assert cluster.leader_of(STREAM) in {"b3", "b4", "b5"}
        await load.more()


async def test_cluster_grows_and_shrinks_under_load(cluster: ClusterKit) -> None:
    async with loaded(cluster) as (load, admin):
        await grow(cluster)
        await admin.start_reassignment(ORDERS, ["b1", "b4", "b5"])
        await until_moved(cluster, admin, "b1", "b4", "b5")
        for name in NEW:
            await admin.cordon(name, drain=True)
            await asyncio.to_thread(cluster.until, partial(is_empty, cluster, name), "drained")
            member = next(one for one in (await admin.cluster()).members if one.broker == name)
            await admin.remove_member(Member(name, member.data_dir_id))
            await admin.retire(name, member.data_dir_id)
            assert await asyncio.to_thread(cluster.stop, name) == [0]
            await asyncio.to_thread(cluster.until, partial(is_gone, cluster, name), "fenced")
            await admin.remove_broker(name)
            del cluster.brokers[name]
            await load.more()
        await asyncio.to_thread(cluster.await_voters, 3)
        assert {one.broker for one in await admin.brokers()} == {"b1", "b2", "b3"}


async def test_retired_directory_is_let_in_as_another_member_and_founds_nothing(
    cluster: ClusterKit,
) -> None:
    await asyncio.to_thread(cluster.start, *NEW)
    await asyncio.to_thread(cluster.await_voters, 5)
    servers = ",".join(broker.admin_address for broker in cluster.brokers.values())
    async with connect_admin(servers) as admin:
        await admin.cordon("b5", drain=True)
        await asyncio.to_thread(cluster.until, partial(holds_nothing, cluster, "b5"), "drained")
        member = next(one for one in (await admin.cluster()).members if one.broker == "b5")
        await admin.remove_member(Member("b5", member.data_dir_id))
        await admin.retire("b5", member.data_dir_id)
        assert (await admin.identities())[cluster["b5"].admin_address].is_retired
        assert cluster.stop("b5") == [0]
        await admin.uncordon("b5")
        cluster.start("b5")
        await asyncio.to_thread(cluster.await_voters, 5)
        again = next(one for one in (await admin.cluster()).members if one.broker == "b5")
        assert again.data_dir_id != member.data_dir_id


async def test_rolling_restart_of_all_under_load(cluster: ClusterKit) -> None:
    async with loaded(cluster) as (load, admin):
        for name in ("b1", "b2", "b3"):
            check = await admin.check_restart(name)
            assert check.blockers == ()
            assert await asyncio.to_thread(cluster.stop, name) == [0]
            await asyncio.to_thread(cluster.start, name)
            async with asyncio.timeout(CHANGE_SECONDS):
                while (await admin.verify_restart(name, check.token)).blockers:
                    continue  # each look is a call
            await load.more()
