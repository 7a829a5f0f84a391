"""Publishers that know nothing but NATS, or JetStream, get the acks of a stream."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from nats.aio.client import Client as NatsClient
from nats.js.errors import ServiceUnavailableError

from liftbridge_broker.wire.envelope import decode_ack, encode_publish
from liftbridge_client import Client, Start, Stop, StreamSettings, connect
from liftbridge_proto import api_pb2
from liftbridge_testkit.nats_client import nats_client, settled
from liftbridge_testkit.processes import Broker

WAIT_SECONDS = 30.0
ANSWERING = StreamSettings(ack_reply=True)
_names = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("replies")) as running:
        yield running


@pytest.fixture
async def lb(broker: Broker) -> AsyncIterator[Client]:
    async with connect(broker.address) as client:
        yield client


@pytest.fixture
async def nats(broker: Broker) -> AsyncIterator[NatsClient]:
    async with nats_client(broker.nats_url) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"replies-{next(_names)}"


async def values_of(lb: Client, name: str) -> list[bytes]:
    found = lb.streams.get(name).subscribe(start=Start.earliest(), stop=Stop.latest())
    return [message.value async for message in found]


async def test_request_is_answered_with_the_place_of_the_message(
    lb: Client, nats: NatsClient, name: str
) -> None:
    await lb.streams.create(name, settings=ANSWERING)
    for offset in range(3):
        answer = await nats.request(name, b"%d" % offset, timeout=WAIT_SECONDS)
        told = {"stream": name, "seq": offset + 1, "partition": 0, "offset": offset}
        assert json.loads(answer.data) == told
    assert await values_of(lb, name) == [b"0", b"1", b"2"]


async def test_publisher_of_jetstream_works_against_a_stream(
    lb: Client, nats: NatsClient, name: str
) -> None:
    stream = await lb.streams.create(name, subject=f"{name}.*", settings=ANSWERING)
    jetstream = nats.jetstream()
    acks = [
        await jetstream.publish(f"{name}.x", b"a", timeout=WAIT_SECONDS, headers=headers)
        for headers in (None, {"Nats-Msg-Id": "same"}, {"Nats-Msg-Id": "same"})
    ]
    assert [(ack.stream, ack.seq, ack.duplicate) for ack in acks] == [
        (name, seq, None) for seq in (1, 2, 3)
    ]
    futures = [await jetstream.publish_async(f"{name}.y", b"%d" % n) for n in range(100)]
    async with asyncio.timeout(WAIT_SECONDS):
        assert [(await one).seq for one in futures] == list(range(4, 104))
    assert len(await values_of(lb, name)) == 103
    await stream.set_readonly()
    with pytest.raises(ServiceUnavailableError, match="readonly partition: 0"):
        await jetstream.publish(f"{name}.x", b"a", timeout=WAIT_SECONDS)


async def test_stream_without_the_setting_sends_nothing(
    lb: Client, nats: NatsClient, name: str
) -> None:
    stream = await lb.streams.create(name)
    answers = await nats.subscribe("_INBOX.mine")
    await settled(nats)
    await nats.publish(name, b"a", reply="_INBOX.mine")
    async with asyncio.timeout(WAIT_SECONDS):
        messages = aiter(stream.subscribe(start=Start.earliest()))
        message = await anext(messages)
        await messages.aclose()
    assert (message.value, message.reply) == (b"a", "_INBOX.mine")
    # An ack would have been sent before the message was delivered.
    await nats.publish("_INBOX.mine", b"end")
    assert (await answers.next_msg(timeout=WAIT_SECONDS)).data == b"end"


async def test_ack_goes_to_no_stream_and_the_message_is_stored(
    lb: Client, nats: NatsClient, name: str
) -> None:
    await lb.streams.create(name, settings=ANSWERING)
    await lb.streams.create(f"{name}-other", subject=f"{name}-other.>", settings=ANSWERING)
    forbidden = (f"{name}-other.x", name, "_LIFTBRIDGE.liftbridge-default.ack.1")
    for reply in forbidden:
        await nats.publish(name, reply.encode(), reply=reply)
    last = await nats.request(name, b"last", timeout=WAIT_SECONDS)
    assert json.loads(last.data)["seq"] == 4
    assert await values_of(lb, name) == [*(one.encode() for one in forbidden), b"last"]
    (bounds,) = await lb.streams.get(f"{name}-other").bounds()
    assert bounds.log_end == 0


async def test_envelope_without_an_inbox_is_answered_by_an_envelope(
    lb: Client, nats: NatsClient, name: str
) -> None:
    await lb.streams.create(name, settings=ANSWERING)
    message = api_pb2.Message(key=b"k", value=b"v", correlationId="c", ackPolicy=api_pb2.ALL)
    answer = await nats.request(name, encode_publish(message), timeout=WAIT_SECONDS)
    ack = decode_ack(answer.data)
    assert ack is not None
    assert (ack.stream, ack.offset, ack.correlationId) == (name, 0, "c")
    assert await values_of(lb, name) == [b"v"]


async def test_streams_that_a_subject_feeds_are_listed(lb: Client, name: str) -> None:
    await lb.streams.create(f"{name}-a", subject=f"{name}.*", partitions=2)
    await lb.streams.create(f"{name}-b", subject=f"{name}.x.1")
    await lb.streams.create(f"{name}-c", subject=f"{name}.>")

    async def fed(subject: str) -> str:
        found = await lb.streams.list(name, subject=subject)
        return "".join(one.name[-1] for one in found)

    assert [await fed(f"{name}{rest}") for rest in (".x", ".x.1", ".x.2", "")] == [
        "ac",
        "abc",
        "c",
        "",
    ]
