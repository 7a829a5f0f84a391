"""Publishing at a broker that passes messages on, while the leader that it passed them to dies."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any

import grpc
import pytest
from nats.aio.client import Client

from liftbridge_broker.replication.publishers import HEADER_EPOCH, HEADER_ID, HEADER_SEQUENCE
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.load import api, data, read_log
from liftbridge_testkit.nats_client import nats_client, settled

STREAM = "orders"
STREAMED = 200
"""Messages of one call of `PublishAsync`."""

PLAIN = b"plain"
"""The message without a stamp."""

ACK_SECONDS = 55.0
"""Deadline of the calls, which is nearly that of acks."""

SECONDS_MAX = 15.0
"""Longest wait for the outcomes; a failover takes one second on a machine that is at rest."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterKit]:
    """Three brokers with a stream of three replicas."""
    with ClusterKit(tmp_path, has_proxies=False) as running:
        with running["b1"].channel() as channel:
            request = api_pb2.CreateStreamRequest(name=STREAM, subject=STREAM, replicationFactor=3)
            api(channel).CreateStream(request, timeout=10)
        await_known(running)
        yield running


def await_known(cluster: ClusterKit) -> None:
    """Wait until every broker can pass messages on to the leader."""
    cluster.everywhere(lambda at: cluster.partition(STREAM, at=at).leader != "", "a known leader")


class Stamps:
    """An idempotent publisher of one partition."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        request = data_pb2.InitPublisherRequest(stream=STREAM, publisher=name)
        self._known = data(channel).InitPublisher(request, timeout=10)
        self._name = name

    def request(self, number: int) -> api_pb2.PublishRequest:
        """The message of a number."""
        return api_pb2.PublishRequest(
            stream=STREAM,
            value=f"{self._name}-{number}".encode(),
            ackPolicy=api_pb2.ALL,
            correlationId=str(number),
            headers={
                HEADER_ID: b"%d" % self._known.publisher_id,
                HEADER_EPOCH: b"%d" % self._known.publisher_epoch,
                HEADER_SEQUENCE: b"%d" % number,
            },
        )


async def until_passed_on(client: Client, count: int, act: Callable[[], None]) -> None:
    """Wait until as many messages as `act` publishes have been passed on over NATS."""
    passed = await client.subscribe(STREAM)
    await settled(client)
    await asyncio.to_thread(act)
    for _ in range(count):
        await passed.next_msg(timeout=SECONDS_MAX)
    await passed.unsubscribe()


async def test_idempotent_publishers_get_their_acks_from_the_next_leader(
    cluster: ClusterKit,
) -> None:
    """Nobody is elected before all is passed on: of three brokers one is dead, another frozen."""
    leader = await asyncio.to_thread(cluster.await_leader, STREAM)
    passing, frozen = (name for name in cluster.brokers if name != leader)
    async with nats_client(cluster.nats.url) as client:
        with cluster[passing].channel() as channel:
            streamed, single = Stamps(channel, "streamed"), Stamps(channel, "single")
            requests: SimpleQueue[api_pb2.PublishRequest | None] = SimpleQueue()
            calls: list[Any] = []
            answers = api(channel).PublishAsync(iter(requests.get, None), timeout=ACK_SECONDS)

            def publish() -> None:
                for number in range(STREAMED):
                    requests.put(streamed.request(number))
                plain = api_pb2.PublishRequest(stream=STREAM, value=PLAIN, ackPolicy=api_pb2.ALL)
                publish_one = partial(api(channel).Publish.future, timeout=ACK_SECONDS)
                calls.extend(map(publish_one, (single.request(0), plain)))

            cluster[frozen].pause()
            cluster[leader].kill()
            await until_passed_on(client, STREAMED + 2, publish)
            cluster[frozen].resume()
            began = monotonic()
            acks = await asyncio.to_thread(lambda: [next(answers) for _ in range(STREAMED)])
            outcomes = await asyncio.to_thread(lambda: [one.exception() for one in calls])
            assert monotonic() - began < SECONDS_MAX
            requests.put(None)
    assert [ack.correlationId for ack in acks] == [str(number) for number in range(STREAMED)]
    assert not [ack for ack in acks if ack.HasField("asyncError")]
    assert outcomes[0] is None
    assert outcomes[1].code() is grpc.StatusCode.UNKNOWN
    assert f"broker {leader} led {STREAM}/0 in leader epoch" in outcomes[1].details()
    stored = await asyncio.to_thread(values, cluster, leader)
    wanted = [f"streamed-{number}".encode() for number in range(STREAMED)]
    assert [value for value in stored if value.startswith(b"streamed")] == wanted
    assert stored.count(b"single-0") == 1
    assert stored.count(PLAIN) == 0


def values(cluster: ClusterKit, dead: str) -> list[bytes]:
    """What is stored."""
    after = cluster.await_leader(STREAM, other_than=dead)
    with cluster[after].channel() as channel:
        return [record.value for record in read_log(channel, STREAM)]


@pytest.mark.parametrize("loses", ["leader", "passing"])
def test_message_lost_with_a_connection_is_answered_long_before_the_deadline(
    tmp_path: Path, loses: str
) -> None:
    with ClusterKit(tmp_path) as cluster:
        with cluster["b1"].channel() as channel:
            request = api_pb2.CreateStreamRequest(name=STREAM, subject=STREAM, replicationFactor=3)
            api(channel).CreateStream(request, timeout=10)
        await_known(cluster)
        leader = cluster.leader_of(STREAM)
        passing = next(name for name in cluster.brokers if name != leader)
        cluster.proxies[passing].lose_to(STREAM)
        with cluster[passing].channel() as channel:
            began = monotonic()
            answer = api(channel).Publish.future(
                api_pb2.PublishRequest(stream=STREAM, value=PLAIN, ackPolicy=api_pb2.ALL),
                timeout=ACK_SECONDS,
            )
            # Requests of a connection are handled in order: the message is forwarded, and lost.
            api(channel).FetchMetadata(api_pb2.FetchMetadataRequest(), timeout=10)
            proxy = cluster.proxies[leader if loses == "leader" else passing]
            proxy.cut()
            proxy.heal()
            with pytest.raises(grpc.RpcError) as refused:
                answer.result()
            assert monotonic() - began < SECONDS_MAX
            assert "lost a connection to NATS" in str(refused.value)
