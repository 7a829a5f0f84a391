"""Stubs generated from the API, as any grpcio user has them, against the broker: every call that
one broker serves, every start and stop position, and what messages carry.
"""

import itertools
from time import monotonic

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from liftbridge_proto import api_pb2
from liftbridge_testkit.nats_client import nats_client, settled
from liftbridge_testkit.processes import Broker
from liftbridge_testkit.world import DEADLINE_SECONDS, World

ENVELOPE = b"\xb9\x0e\x43\xb4\x00\x08\x00\x00"
EARLIEST = api_pb2.EARLIEST
TRUE = api_pb2.NullableBool(value=True)


def offsets(messages: list[api_pb2.Message]) -> list[int]:
    return [message.offset for message in messages]


@pytest.fixture
def five(world: World) -> World:
    """A stream with the values 0 to 4 at the offsets 0 to 4."""
    world.create()
    world.publish_many([b"%d" % number for number in range(5)])
    return world


# Publish


def test_publish_returns_an_ack_with_all_its_fields(world: World) -> None:
    world.create()
    ack = world.publish(correlationId="c1")
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == (world.name,) * 3
    assert (ack.offset, ack.correlationId, ack.ackPolicy) == (0, "c1", api_pb2.LEADER)
    assert ack.ackError == api_pb2.Ack.OK
    assert 0 < ack.receptionTimestamp <= ack.commitTimestamp


@pytest.mark.parametrize("policy", [api_pb2.LEADER, api_pb2.ALL])
def test_publish_is_acked_under_both_policies(world: World, policy: int) -> None:
    world.create()
    assert world.publish(ackPolicy=policy).ackPolicy == policy


def test_publish_without_deadline_is_stored_and_not_acked(world: World) -> None:
    world.create()
    response = world.api.Publish(api_pb2.PublishRequest(stream=world.name, value=b"quiet"))
    assert not response.HasField("ack")
    (message,) = world.take(1, startPosition=EARLIEST)
    assert message.value == b"quiet"


def test_publish_with_policy_none_is_stored_and_not_acked(world: World) -> None:
    world.create()
    ack = world.publish(ackPolicy=api_pb2.NONE, value=b"quiet")
    assert ack == api_pb2.Ack()
    (message,) = world.take(1, startPosition=EARLIEST)
    assert message.value == b"quiet"


def test_message_carries_what_was_published(world: World) -> None:
    world.create()
    ack = world.publish(value=b"value", key=b"key", headers={"a": b"1"}, correlationId="hidden")
    (message,) = world.take(1, startPosition=EARLIEST)
    assert (message.offset, message.key, message.value) == (0, b"key", b"value")
    assert (message.stream, message.partition) == (world.name, 0)
    assert message.subject == world.name
    assert message.headers["a"] == b"1"
    assert message.headers["subject"] == world.name.encode()
    assert message.timestamp == ack.receptionTimestamp
    assert (message.ackInbox, message.correlationId) == ("", "")


def test_publish_async_acks_in_order(world: World) -> None:
    world.create()
    requests = [
        api_pb2.PublishRequest(stream=world.name, value=b"v", correlationId=f"{number}")
        for number in range(500)
    ]
    responses = world.publish_async(*requests)
    assert [response.ack.offset for response in responses] == list(range(500))
    assert [response.ack.correlationId for response in responses] == [str(n) for n in range(500)]


def test_publish_async_with_policy_none_has_no_responses(world: World) -> None:
    world.create()
    request = api_pb2.PublishRequest(stream=world.name, ackPolicy=api_pb2.NONE, value=b"v")
    assert world.publish_async(request, request) == []
    assert offsets(world.take(2, startPosition=EARLIEST)) == [0, 1]


def test_publish_async_to_several_streams_over_one_call(world: World, broker: Broker) -> None:
    with broker.channel() as channel:
        other = World(channel)
        names = [world.create(), other.create()]
        requests = [
            api_pb2.PublishRequest(stream=names[n % 2], value=b"v", correlationId=f"{n}")
            for n in range(20)
        ]
        responses = world.publish_async(*requests)
        acks = {response.ack.correlationId: response.ack for response in responses}
    assert len(acks) == 20
    for number in range(20):
        ack = acks[str(number)]
        assert (ack.stream, ack.offset) == (names[number % 2], number // 2)


def test_publish_to_subject_reaches_the_stream(world: World) -> None:
    world.create()
    response = world.api.PublishToSubject(
        api_pb2.PublishToSubjectRequest(
            subject=world.name, value=b"v", key=b"k", correlationId="c"
        ),
        timeout=DEADLINE_SECONDS,
    )
    assert (response.ack.stream, response.ack.offset) == (world.name, 0)
    assert response.ack.correlationId == "c"
    (message,) = world.take(1, startPosition=EARLIEST)
    assert (message.key, message.value) == (b"k", b"v")


def test_publish_to_subject_without_deadline_has_no_ack(world: World) -> None:
    world.create()
    call = world.subscribe()
    response = world.api.PublishToSubject(
        api_pb2.PublishToSubjectRequest(subject=world.name, value=b"v")
    )
    assert not response.HasField("ack")
    assert next(call).value == b"v"


def test_expected_offset_is_checked_on_streams_that_ask_for_it(world: World) -> None:
    world.create(optimisticConcurrencyControl=TRUE)
    assert [world.publish(expectedOffset=number).offset for number in range(3)] == [0, 1, 2]
    assert world.publish(expectedOffset=-1).offset == 3
    with pytest.raises(grpc.RpcError):
        world.publish(expectedOffset=3)
    assert world.partition().newestOffset == 3


def test_partition_is_a_log_of_its_own(world: World) -> None:
    world.create(partitions=3)
    for partition in range(3):
        for _ in range(partition + 1):
            world.publish(partition=partition)
    for partition in range(3):
        assert world.partition(partition).newestOffset == partition
        message, *_ = world.take(1, partition=partition, startPosition=EARLIEST)
        suffix = f".{partition}" if partition else ""
        assert (message.partition, message.subject) == (partition, world.name + suffix)


# Start positions


def test_new_only_delivers_what_comes_later(five: World) -> None:
    call = five.subscribe()
    five.publish(value=b"later")
    assert next(call).offset == 5


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"startPosition": EARLIEST}, 0),
        ({"startPosition": api_pb2.LATEST}, 4),
        ({"startPosition": api_pb2.OFFSET, "startOffset": 3}, 3),
        ({"startPosition": api_pb2.OFFSET, "startOffset": -7}, 0),
        ({"startPosition": api_pb2.TIMESTAMP, "startTimestamp": 0}, 0),
        ({"startPosition": api_pb2.TIMESTAMP, "startTimestamp": -(2**63)}, 0),
    ],
    ids=str,
)
def test_start_position(five: World, fields: dict[str, object], first: int) -> None:
    assert offsets(five.take(5 - first, **fields)) == list(range(first, 5))


def test_timestamp_starts_at_the_first_message_not_older(five: World) -> None:
    times = [message.timestamp for message in five.take(5, startPosition=EARLIEST)]
    (message,) = five.take(1, startPosition=api_pb2.TIMESTAMP, startTimestamp=times[2])
    assert message.timestamp == times[2]
    assert message.offset == times.index(times[2])


def test_timestamp_after_the_last_message_waits_for_the_next(five: World) -> None:
    call = five.subscribe(startPosition=api_pb2.TIMESTAMP, startTimestamp=2**62)
    five.publish()
    assert next(call).offset == 5


@pytest.mark.parametrize("start", [5, 100])
def test_offset_beyond_the_end_waits_for_the_next_message(five: World, start: int) -> None:
    call = five.subscribe(startPosition=api_pb2.OFFSET, startOffset=start)
    five.publish()
    assert next(call).offset == 5


@pytest.mark.parametrize(
    "position", [api_pb2.NEW_ONLY, api_pb2.OFFSET, EARLIEST, api_pb2.LATEST, api_pb2.TIMESTAMP]
)
def test_every_position_of_an_empty_log_delivers_the_first_message(
    world: World, position: int
) -> None:
    world.create()
    call = world.subscribe(startPosition=position, startOffset=10)
    world.publish()
    assert next(call).offset == 0


def test_subscription_goes_on_with_what_is_published(five: World) -> None:
    call = five.subscribe(startPosition=EARLIEST)
    seen = [next(call).offset for _ in range(5)]
    five.publish_many([b"5", b"6"])
    assert [*seen, next(call).offset, next(call).offset] == list(range(7))


def test_several_subscribers_see_the_same(five: World) -> None:
    calls = [five.subscribe(startPosition=EARLIEST) for _ in range(4)]
    five.publish(value=b"5")
    for call in calls:
        assert [next(call).value for _ in range(6)] == [b"%d" % n for n in range(6)]


# Stop positions


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"stopPosition": api_pb2.STOP_OFFSET, "stopOffset": 2}, [0, 1, 2]),
        ({"stopPosition": api_pb2.STOP_OFFSET, "stopOffset": 0}, [0]),
        ({"stopPosition": api_pb2.STOP_LATEST}, [0, 1, 2, 3, 4]),
        ({"stopPosition": api_pb2.STOP_TIMESTAMP, "stopTimestamp": 2**62}, [0, 1, 2, 3, 4]),
    ],
    ids=str,
)
def test_stop_position(five: World, fields: dict[str, object], wanted: list[int]) -> None:
    messages, code, _ = five.read(startPosition=EARLIEST, **fields)
    assert offsets(messages) == wanted
    assert code is StatusCode.RESOURCE_EXHAUSTED


def test_stop_timestamp_is_the_last_message_not_newer(five: World) -> None:
    times = [message.timestamp for message in five.take(5, startPosition=EARLIEST)]
    messages, _, _ = five.read(
        startPosition=EARLIEST, stopPosition=api_pb2.STOP_TIMESTAMP, stopTimestamp=times[3]
    )
    assert max(message.timestamp for message in messages) == times[3]
    assert offsets(messages)[-1] == max(n for n, time in enumerate(times) if time == times[3])


def test_stop_offset_ahead_waits_until_it_is_there(five: World) -> None:
    call = five.subscribe(startPosition=EARLIEST, stopPosition=api_pb2.STOP_OFFSET, stopOffset=6)
    assert [next(call).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    five.publish_many([b"5", b"6", b"7"])
    assert [next(call).offset for _ in range(2)] == [5, 6]
    with pytest.raises(grpc.RpcError, match="Stop offset reached"):
        next(call)


# Further ways to read


def test_replica_read_is_served_by_the_leader_too(five: World) -> None:
    assert offsets(five.take(5, startPosition=EARLIEST, readISRReplica=True)) == [0, 1, 2, 3, 4]


def test_reverse_reads_from_newest_to_oldest_and_ends(five: World) -> None:
    messages, code, _ = five.read(startPosition=api_pb2.LATEST, reverse=True)
    assert offsets(messages) == [4, 3, 2, 1, 0]
    assert code is not StatusCode.DEADLINE_EXCEEDED


def test_reverse_from_an_offset(five: World) -> None:
    messages, _, _ = five.read(startPosition=api_pb2.OFFSET, startOffset=2, reverse=True)
    assert offsets(messages) == [2, 1, 0]


def test_cancelled_subscription_leaves_the_broker_as_it_was(five: World) -> None:
    for _ in range(50):
        five.take(1, startPosition=EARLIEST)
    assert five.publish().offset == 5


def test_large_values_arrive_whole(world: World) -> None:
    world.create()
    values = [bytes([number]) * 300_000 for number in range(5)]
    world.publish_many(values)
    assert [m.value for m in world.take(5, startPosition=EARLIEST)] == values


# Pause, resume, read-only, delete


def test_publish_resumes_a_paused_partition(five: World) -> None:
    five.pause()
    assert five.metadata().partitions[0].paused
    assert five.publish().offset == 5
    assert not five.metadata().partitions[0].paused


def test_async_publish_resumes_a_paused_partition(five: World) -> None:
    five.pause()
    (response,) = five.publish_async(
        api_pb2.PublishRequest(stream=five.name, value=b"v", correlationId="c")
    )
    assert response.ack.offset == 5


def test_subscribe_with_resume_reads_a_paused_partition(five: World) -> None:
    five.pause()
    assert offsets(five.take(5, startPosition=EARLIEST, resume=True)) == [0, 1, 2, 3, 4]
    assert not five.metadata().partitions[0].paused


def test_resume_all_resumes_every_partition(world: World) -> None:
    world.create(partitions=3)
    world.pause(resumeAll=True)
    world.publish(partition=1)
    assert [world.metadata().partitions[n].paused for n in range(3)] == [False] * 3


def test_pause_of_some_partitions_leaves_the_others(world: World) -> None:
    world.create(partitions=3)
    world.pause(partitions=[0, 2])
    assert [world.metadata().partitions[n].paused for n in range(3)] == [True, False, True]
    world.publish(partition=2)
    assert [world.metadata().partitions[n].paused for n in range(3)] == [True, False, False]


def test_readonly_can_be_taken_back(five: World) -> None:
    five.set_readonly()
    with pytest.raises(grpc.RpcError):
        five.publish()
    five.set_readonly(readonly=False)
    assert five.publish().offset == 5


def test_deleted_name_can_be_used_again_and_starts_empty(five: World) -> None:
    five.delete()
    assert five.metadata().error == api_pb2.StreamMetadata.UNKNOWN_STREAM
    five.create()
    assert five.partition().newestOffset == -1
    assert five.publish().offset == 0


# Metadata and cursors


def test_metadata_names_broker_streams_and_partitions(world: World, broker: Broker) -> None:
    world.create(partitions=2)
    response = world.api.FetchMetadata(api_pb2.FetchMetadataRequest(), timeout=DEADLINE_SECONDS)
    (described,) = response.brokers
    assert (described.id, described.host, described.port) == ("broker", "127.0.0.1", broker.port)
    assert described.leaderCount == described.partitionCount >= 2
    streams = {stream.name: stream for stream in response.streamMetadata}
    assert "__cursors" in streams
    stream = streams[world.name]
    assert (stream.subject, sorted(stream.partitions)) == (world.name, [0, 1])
    assert stream.creationTimestamp > 0
    partition = stream.partitions[1]
    assert (partition.id, partition.leader) == (1, "broker")
    assert (list(partition.replicas), list(partition.isr)) == (["broker"], ["broker"])


def test_partition_metadata_has_offsets_and_event_times(world: World) -> None:
    world.create()
    empty = world.partition()
    assert (empty.highWatermark, empty.newestOffset) == (-1, -1)
    assert empty.messagesReceivedTimestamps.firstTimestamp == 0
    world.publish_many([b"a", b"b"])
    world.set_readonly()
    full = world.partition()
    assert (full.highWatermark, full.newestOffset, full.readonly) == (1, 1, True)
    times = full.messagesReceivedTimestamps
    assert 0 < times.firstTimestamp <= times.latestTimestamp
    assert full.readonlyTimestamps.latestTimestamp > 0


def test_cursor_keeps_the_last_value_also_backwards(world: World) -> None:
    for offset in (5, 9, 2):
        world.api.SetCursor(
            api_pb2.SetCursorRequest(stream=world.name, partition=1, cursorId="c", offset=offset),
            timeout=DEADLINE_SECONDS,
        )
        fetched = world.api.FetchCursor(
            api_pb2.FetchCursorRequest(stream=world.name, partition=1, cursorId="c"),
            timeout=DEADLINE_SECONDS,
        )
        assert fetched.offset == offset


def test_cursor_belongs_to_a_name_whether_or_not_there_is_such_a_stream(world: World) -> None:
    def fetch(partition: int) -> int:
        request = api_pb2.FetchCursorRequest(stream=world.name, partition=partition, cursorId="c")
        response: api_pb2.FetchCursorResponse = world.api.FetchCursor(
            request, timeout=DEADLINE_SECONDS
        )
        return response.offset

    assert fetch(7) == -1
    world.api.SetCursor(
        api_pb2.SetCursorRequest(stream=world.name, partition=7, cursorId="c", offset=3),
        timeout=DEADLINE_SECONDS,
    )
    assert fetch(7) == 3
    world.create()
    world.api.DeleteStream(api_pb2.DeleteStreamRequest(name=world.name), timeout=DEADLINE_SECONDS)
    assert (fetch(7), fetch(0)) == (3, -1)


# Plain NATS


# gRPC calls of these tests block the loop; nothing on it has to run meanwhile.


async def over_nats(url: str, subject: str, *payloads: bytes, reply: str = "") -> None:
    async with nats_client(url) as client:
        for payload in payloads:
            await client.publish(subject, payload, reply=reply)


async def test_plain_nats_message_is_stored(world: World, broker: Broker) -> None:
    world.create()
    call = world.subscribe()
    await over_nats(broker.nats_url, world.name, b"plain", reply="answer.here")
    message = next(call)
    assert (message.offset, message.key, message.value) == (0, b"", b"plain")
    assert (message.subject, message.replySubject) == (world.name, "answer.here")
    assert message.headers["reply"] == b"answer.here"


async def test_plain_nats_message_is_stored_in_the_partition_its_suffix_names(
    world: World, broker: Broker
) -> None:
    world.create(partitions=3)
    calls = [world.subscribe(partition=partition) for partition in range(3)]
    for partition, suffix in enumerate(("", ".1", ".2")):
        await over_nats(broker.nats_url, world.name + suffix, b"%d" % partition)
    found = [next(call) for call in calls]
    assert [(m.offset, m.partition, m.value) for m in found] == [
        (0, partition, b"%d" % partition) for partition in range(3)
    ]


async def test_wildcard_stream_collects_and_shows_the_subject(world: World, broker: Broker) -> None:
    world.create(subject=f"{world.name}.*")
    call = world.subscribe()
    await over_nats(broker.nats_url, f"{world.name}.a", b"1")
    await over_nats(broker.nats_url, f"{world.name}.b", b"2")
    assert {next(call).subject, next(call).subject} == {f"{world.name}.a", f"{world.name}.b"}


async def test_two_streams_on_a_subject_both_store(world: World, broker: Broker) -> None:
    with broker.channel() as channel:
        other = World(channel)
        world.create(subject=f"{world.name}.both")
        other.create(subject=f"{world.name}.both")
        calls = [world.subscribe(), other.subscribe()]
        await over_nats(broker.nats_url, f"{world.name}.both", b"v")
        assert [next(call).value for call in calls] == [b"v", b"v"]


async def test_broken_envelopes_are_stored_as_plain_messages(world: World, broker: Broker) -> None:
    world.create()
    call = world.subscribe()
    broken = [
        ENVELOPE[:5] + b"\xff\x00\x00",  # header length beyond the data
        ENVELOPE[:7],
        ENVELOPE[:4] + b"\x01" + ENVELOPE[5:] + b"x",  # unknown version
        ENVELOPE + b"\xff\xff\xff",  # no protobuf
    ]
    await over_nats(broker.nats_url, world.name, *broken)
    assert [next(call).value for _ in broken] == broken


async def test_enveloped_message_is_acked_to_its_inbox(world: World, broker: Broker) -> None:
    world.create()

    async with nats_client(broker.nats_url) as client:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        published = api_pb2.Message(value=b"v", key=b"k", ackInbox=inbox, correlationId="c")
        await client.publish(world.name, ENVELOPE + published.SerializeToString())
        data = (await answers.next_msg(timeout=DEADLINE_SECONDS)).data

    assert data[:4] == ENVELOPE[:4]
    assert data[7] == 1, "message type: ack"
    ack = api_pb2.Ack.FromString(data[data[5] :])
    assert (ack.stream, ack.offset, ack.correlationId) == (world.name, 0, "c")
    (message,) = world.take(1, startPosition=EARLIEST)
    assert (message.key, message.value, message.ackInbox) == (b"k", b"v", "")


async def test_grpc_publish_reaches_plain_nats_subscribers_once(
    world: World, broker: Broker
) -> None:
    world.create()

    async with nats_client(broker.nats_url) as client:
        seen = await client.subscribe(world.name)
        await settled(client)
        world.publish_many([b"1", b"2"])
        values = []
        for _ in range(2):
            data = (await seen.next_msg(timeout=DEADLINE_SECONDS)).data
            values.append(api_pb2.Message.FromString(data[data[5] :]).value)
        # A third one would have arrived before this marker.
        await client.publish(world.name, b"marker")
        values.append((await seen.next_msg(timeout=DEADLINE_SECONDS)).data)
    assert values == [b"1", b"2", b"marker"]
    assert [m.value for m in world.take(3, startPosition=EARLIEST)] == [b"1", b"2", b"marker"]


async def test_queue_group_shares_messages_between_streams(world: World, broker: Broker) -> None:
    with broker.channel() as channel:
        other = World(channel)
        subject = f"{world.name}.shared"
        world.create(subject=subject, group="g")
        other.create(subject=subject, group="g")
        await over_nats(broker.nats_url, subject, *[b"v"] * 200)
        deadline = monotonic() + DEADLINE_SECONDS
        counts = [0, 0]
        while sum(counts) < 200 and monotonic() < deadline:
            counts = [w.partition().newestOffset + 1 for w in (world, other)]
    assert sum(counts) == 200
    assert min(counts) > 0


# Health, deadlines and cancellation


@pytest.mark.parametrize("service", ["", "proto.API"])
def test_running_broker_is_healthy(broker: Broker, service: str) -> None:
    with broker.channel() as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_SECONDS
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_deadline_ends_a_subscription(world: World) -> None:
    world.create()
    call = world.api.Subscribe(api_pb2.SubscribeRequest(stream=world.name), timeout=0.3)
    with pytest.raises(grpc.RpcError) as caught:
        list(itertools.islice(call, 2))
    assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
