"""Features of one broker end to end: cleaning, identity, addresses, inboxes, restarts."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from grpc import StatusCode

from liftbridge_broker.wire.envelope import decode_ack, encode_publish
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2
from liftbridge_testkit.load import data
from liftbridge_testkit.nats_client import nats_client, settled
from liftbridge_testkit.processes import Broker, free_port
from liftbridge_testkit.world import DEADLINE_SECONDS, World

TRUE = api_pb2.NullableBool(value=True)
EARLIEST = api_pb2.EARLIEST
QUICK: dict[str, object] = {
    "segmentMaxBytes": api_pb2.NullableInt64(value=4096),
    "cleanerInterval": api_pb2.NullableInt64(value=100),
}
"""Small segments, and a cleaner that comes often."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that syncs often, because only what is synced is cleaned."""
    config = {"streams.fsync.interval": "50ms"}
    with Broker(tmp_path_factory.mktemp("features"), config=config) as running:
        yield running


@pytest.fixture
def world(broker: Broker) -> Iterator[World]:
    """The broker as one test sees it."""
    with broker.channel() as channel:
        world = World(channel)
        world.name = f"feature-{world.name}"
        yield world


def bounds(broker: Broker, name: str) -> data_pb2.PartitionBounds:
    with broker.channel() as channel:
        response: data_pb2.PartitionBoundsResponse = data(channel).PartitionBounds(
            data_pb2.PartitionBoundsRequest(stream=name), timeout=DEADLINE_SECONDS
        )
    return response.partitions[0]


def read_all(world: World) -> list[api_pb2.Message]:
    messages, code, _ = world.read(startPosition=EARLIEST, stopPosition=api_pb2.STOP_LATEST)
    assert code is StatusCode.RESOURCE_EXHAUSTED
    return messages


# -- settings -----------------------------------------------------------------------------------


def test_every_setting_of_a_stream_overrides_the_default_of_the_broker(tmp_path: Path) -> None:
    numbers = {
        "retentionMaxBytes": 1_000_001,
        "retentionMaxMessages": 1_002,
        "retentionMaxAge": 3_000,
        "cleanerInterval": 4_000,
        "segmentMaxBytes": 5_000,
        "segmentMaxAge": 6_000,
        "autoPauseTime": 7_000,
    }
    flags = (
        "compactEnabled",
        "autoPauseDisableIfSubscribers",
        "optimisticConcurrencyControl",
    )
    given = {
        **{name: api_pb2.NullableInt64(value=value) for name, value in numbers.items()},
        **dict.fromkeys(flags, TRUE),
        "compactMaxGoroutines": api_pb2.NullableInt32(value=3),
        "minIsr": api_pb2.NullableInt32(value=1),
        "encryption": api_pb2.NullableBool(value=False),
    }
    config = {"streams.segment.max.bytes": 9_999, "streams.retention.max.messages": 77}
    with Broker(tmp_path, config=config) as broker, broker.channel() as channel:
        world = World(channel)
        world.create(**given)
        plain = World(channel)
        plain.create()
        response = data(channel).ListStreams(
            data_pb2.ListStreamsRequest(), timeout=DEADLINE_SECONDS
        )
    found = {stream.settings.name: stream.settings for stream in response.streams}
    assert {name: getattr(found[world.name], name) for name in given} == given
    assert found[plain.name].segmentMaxBytes.value == 9_999
    assert found[plain.name].retentionMaxMessages.value == 77
    assert not found[plain.name].compactEnabled.value


# -- cleaning -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [("retentionMaxMessages", 10), ("retentionMaxBytes", 9_000), ("retentionMaxAge", 500)],
)
def test_retention_removes_the_oldest_and_keeps_the_rest_readable(
    world: World, broker: Broker, setting: str, value: int
) -> None:
    world.create(**QUICK, **{setting: api_pb2.NullableInt64(value=value)})
    world.publish_many([b"%04d" % number * 200 for number in range(40)])
    broker.wait_until(lambda: bounds(broker, world.name).log_start > 0, "cleaned")
    start = bounds(broker, world.name).log_start
    # Offsets go on behind the last, also when nothing was left.
    assert world.publish(value=b"0040" * 200).offset == 40
    messages = read_all(world)
    assert messages[0].offset >= start
    assert [m.offset for m in messages] == list(range(messages[0].offset, 41))
    assert all(m.value == b"%04d" % m.offset * 200 for m in messages)
    # An offset that is gone begins at the oldest.
    assert world.take(1, startPosition=api_pb2.OFFSET, startOffset=0)[0].offset >= start


def test_compaction_keeps_the_last_value_of_each_key_for_every_reader(
    world: World, broker: Broker
) -> None:
    world.create(**QUICK, compactEnabled=TRUE)
    running = world.subscribe(startPosition=EARLIEST)
    last: dict[bytes, tuple[int, bytes]] = {}
    for number in range(60):
        key, value = b"key-%d" % (number % 5), b"%04d" % number * 100
        last[key] = (world.publish(key=key, value=value).offset, value)
    broker.wait_until(lambda: len(read_all(world)) < 40, "compacted")
    messages = read_all(world)
    offsets = [message.offset for message in messages]
    assert offsets == sorted(set(offsets))
    assert {m.key: (m.offset, m.value) for m in messages} == last
    # The subscriber that was there before sees everything that stays, once and in order.
    seen: list[api_pb2.Message] = []
    while not seen or seen[-1].offset < 59:
        seen.append(next(running))
    assert [m.offset for m in seen] == sorted({m.offset for m in seen})
    assert set(offsets) <= {m.offset for m in seen}
    # A stop at an offset that compaction took still stops, and a start there goes to the next.
    gone = next(offset for offset in range(60) if offset not in offsets)
    read, code, text = world.read(
        startPosition=EARLIEST, stopPosition=api_pb2.STOP_OFFSET, stopOffset=gone
    )
    assert (code, text) == (StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")
    assert all(message.offset <= gone for message in read)
    first = world.take(1, startPosition=api_pb2.OFFSET, startOffset=gone)[0].offset
    # The cleaner may come again in between and take the next one as well.
    later = [message.offset for message in read_all(world)]
    following = [next(offset for offset in kept if offset > gone) for kept in (offsets, later)]
    assert following[0] <= first <= following[1]


def test_segments_roll_by_size(world: World, broker: Broker) -> None:
    world.create(segmentMaxBytes=api_pb2.NullableInt64(value=4096))
    world.publish_many([b"v" * 1000] * 12)
    assert bounds(broker, world.name).segments >= 3
    assert len(read_all(world)) == 12


# -- inboxes ------------------------------------------------------------------------------------


async def test_acks_reach_a_nats_inbox_by_policy(world: World, broker: Broker) -> None:
    world.create()
    async with nats_client(broker.nats_url) as client:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        await settled(client)
        for policy in (api_pb2.LEADER, api_pb2.NONE, api_pb2.ALL):
            message = api_pb2.Message(
                value=b"v", ackInbox=inbox, ackPolicy=policy, correlationId=str(policy)
            )
            await client.publish(world.name, encode_publish(message))
        payloads = [(await answers.next_msg(timeout=DEADLINE_SECONDS)).data for _ in range(2)]
    found = [
        (ack.ackPolicy, ack.correlationId, ack.offset) for ack in map(decode_ack, payloads) if ack
    ]
    assert found == [(api_pb2.LEADER, "0", 0), (api_pb2.ALL, "1", 2)]


@pytest.mark.parametrize("rpc", ["Publish", "PublishToSubject"])
async def test_own_inbox_of_a_grpc_publisher_gets_the_ack_too(
    world: World, broker: Broker, rpc: str
) -> None:
    world.create()
    async with nats_client(broker.nats_url) as client:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        await settled(client)
        if rpc == "Publish":
            ack = world.publish(ackInbox=inbox, correlationId="c")
        else:
            request = api_pb2.PublishToSubjectRequest(
                subject=world.name, value=b"v", ackInbox=inbox, correlationId="c"
            )
            ack = world.api.PublishToSubject(request, timeout=DEADLINE_SECONDS).ack
        sent = decode_ack((await answers.next_msg(timeout=DEADLINE_SECONDS)).data)
    assert sent is not None
    for one in (ack, sent):
        assert (one.ackInbox, one.correlationId, one.offset) == (inbox, "c", 0)


# -- groups -------------------------------------------------------------------------------------


def members(world: World, channel: grpc.Channel) -> tuple[World, World]:
    """Two streams of one queue group: the given one and another."""
    other = World(channel)
    other.name = f"{world.name}-other"
    for member in (world, other):
        member.create(subject=f"{world.name}.shared", group="g")
    return world, other


def where_stored(broker: Broker, streams: Sequence[World]) -> dict[tuple[str, int], bytes]:
    """Values of some streams by name and offset."""
    return {
        (stream.name, message.offset): message.value
        for stream in streams
        if bounds(broker, stream.name).log_end
        for message in read_all(stream)
    }


def test_publisher_of_a_group_is_told_which_of_its_streams_stored_each_message(
    world: World, broker: Broker
) -> None:
    with broker.channel() as channel:
        group = members(world, channel)
        requests = [
            api_pb2.PublishRequest(stream=world.name, value=b"%d" % n, correlationId=str(n))
            for n in range(20)
        ]
        acks = [response.ack for response in world.publish_async(*requests)]
        acks += [world.publish(value=b"%d" % n, correlationId=str(n)) for n in range(20, 40)]
        stored = where_stored(broker, group)
    assert {(a.stream, a.offset): a.correlationId.encode() for a in acks} == stored
    assert len(stored) == len(acks)
    assert {ack.stream for ack in acks} == {member.name for member in group}
    assert {ack.partitionSubject for ack in acks} == {f"{world.name}.shared"}


async def test_inbox_of_a_publisher_to_a_group_is_told_which_of_its_streams_stored_a_message(
    world: World, broker: Broker
) -> None:
    async with nats_client(broker.nats_url) as client:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        await settled(client)
        with broker.channel() as channel:
            group = members(world, channel)
            acks = []
            for n in range(20):
                world.publish(value=b"%d" % n, correlationId=str(n), ackInbox=inbox)
                data = (await answers.next_msg(timeout=DEADLINE_SECONDS)).data
                ack = decode_ack(data)
                assert ack is not None
                acks.append(ack)
            stored = where_stored(broker, group)
    assert {(a.stream, a.offset): a.correlationId.encode() for a in acks} == stored


# -- identity, addresses, restarts --------------------------------------------------------------


class Anonymous(Broker):
    """A broker that is given no id."""

    def command(self) -> Sequence[str]:
        """Arguments of the next start, without the id."""
        command = list(super().command())
        at = command.index("--server-id")
        return command[:at] + command[at + 2 :]


def broker_of(channel: grpc.Channel) -> api_pb2.Broker:
    response: api_pb2.FetchMetadataResponse = World(channel).api.FetchMetadata(
        api_pb2.FetchMetadataRequest(), timeout=DEADLINE_SECONDS
    )
    assert len(response.brokers) == 1
    return response.brokers[0]


def test_generated_id_is_kept_over_restarts(tmp_path: Path) -> None:
    ids = []
    broker = Anonymous(tmp_path)
    for _ in range(2):
        with broker, broker.channel() as channel:
            ids.append(broker_of(channel).id)
    assert ids[0] == ids[1]
    assert ids[0]


def test_address_told_to_clients_is_not_the_one_listened_on(tmp_path: Path) -> None:
    port = free_port()
    config = {"listen": f"127.0.0.1:{port}", "host": "broker.example"}
    with (
        Broker(tmp_path, port=port, config=config, arguments=["--port", "9999"]) as broker,
        broker.channel() as channel,
    ):
        found = broker_of(channel)
    assert (found.host, found.port) == ("broker.example", 9999)


def test_killed_broker_shows_what_was_acked_without_another_publish(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with broker.channel() as channel:
            world = World(channel)
            world.create()
            world.publish_many([b"a", b"b", b"c"])
            name = world.name
        broker.kill()
        broker.start()
        with broker.channel() as channel:
            world = World(channel)
            world.name = name
            assert [message.value for message in read_all(world)] == [b"a", b"b", b"c"]
            assert world.partition().highWatermark == 2


def test_pause_and_readonly_survive_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with broker.channel() as channel:
            world = World(channel)
            world.create(partitions=2)
            world.pause(partitions=[0])
            world.set_readonly(partitions=[1])
            name = world.name
        broker.stop()
        broker.start()
        with broker.channel() as channel:
            world = World(channel)
            world.name = name
            partitions = world.metadata().partitions
            assert (partitions[0].paused, partitions[1].readonly) == (True, True)
            assert world.publish(partition=0).offset == 0
            with pytest.raises(grpc.RpcError) as caught:
                world.publish(partition=1)
            assert caught.value.code() is StatusCode.FAILED_PRECONDITION
            assert not world.metadata().partitions[0].paused


def test_idle_partition_pauses_and_wakes_by_a_message(world: World, broker: Broker) -> None:
    world.create(autoPauseTime=api_pb2.NullableInt64(value=100))
    broker.wait_until(lambda: world.metadata().partitions[0].paused, "paused")
    assert world.publish(value=b"wake").offset == 0
    assert not world.metadata().partitions[0].paused


def test_stopping_broker_ends_subscriptions_as_unavailable(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, broker.channel() as channel:
        world = World(channel)
        world.create()
        call = world.subscribe()
        assert broker.stop() == 0
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() is StatusCode.UNAVAILABLE
