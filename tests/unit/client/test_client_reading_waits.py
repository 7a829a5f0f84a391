"""How long a subscription waits for messages that were there when it began."""

import asyncio
from types import SimpleNamespace

import pytest

from liftbridge_client import CallTimeoutError, Start, Stop
from liftbridge_client.aio.subscription import Subscription
from liftbridge_proto.ext.v1 import data_pb2


class Silence:
    """A call that nothing comes of."""

    async def read(self):
        await asyncio.Event().wait()

    def cancel(self):
        pass


class Cluster:
    """A session with brokers that tell how far a partition goes and then say nothing more."""

    timeout_seconds = 0.02
    retry_seconds = call_seconds = 1.0
    has_data = True

    def __init__(self):
        self.refreshed = 0
        self.stats = SimpleNamespace(received=0, retries=0)
        self.hub = SimpleNamespace(emit=lambda _event: None)
        self.transport = SimpleNamespace(server_stream=lambda *_call: Silence())

    async def call(self, *_call, **_options):
        bounds = data_pb2.PartitionBounds(log_start=0, high_watermark=5, log_end=9)
        return data_pb2.PartitionBoundsResponse(partitions=[bounds])

    async def leader_address(self, *_partition):
        return "127.0.0.1:1"

    replica_address = leader_address

    async def refresh(self):
        self.refreshed += 1


def subscription(cluster, stop, **more):
    how = {"resume": False, "reverse": False, "read_replica": False, **more}
    return Subscription(cluster, "s", 0, start=Start.earliest(), stop=stop, codec=None, **how)


@pytest.mark.parametrize("read_replica", [False, True], ids=["batches", "messages"])
async def test_what_was_there_is_not_waited_for_beyond_the_retry_time(read_replica):
    cluster = Cluster()
    reading = subscription(cluster, Stop.latest(), read_replica=read_replica).batches()
    with pytest.raises(CallTimeoutError, match="nothing arrived from s/0"):
        await asyncio.wait_for(anext(reading), timeout=5)
    assert cluster.refreshed > 0


@pytest.mark.parametrize("stop", [Stop.never(), Stop.at(7)], ids=["never", "offset"])
async def test_what_is_to_come_is_waited_for(stop):
    cluster = Cluster()
    reading = subscription(cluster, stop).batches()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5 * cluster.timeout_seconds):
            await anext(reading)
    assert cluster.refreshed == 0
