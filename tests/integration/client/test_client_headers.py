"""Messages with many headers go through every way to write them, cut into requests that fit."""

from datetime import timedelta

import pyarrow as pa
import pytest

from liftbridge_client import Ack, LiftbridgeError, Outgoing, Published, connect

HEADERS = pa.map_(pa.string(), pa.binary())

SHAPES = {
    "one each": (9_000, 1, 0),
    "some each": (7_000, 6, 0),
    "many each": (900, 50, 0),
    "as many as may be": (50, 1_000, 0),
    "large ones": (600, 2, 20_000),
}
"""Messages, headers of each, and bytes of each header."""


@pytest.fixture(params=SHAPES)
def messages(request):
    """Values and headers of messages."""
    count, each, size = SHAPES[request.param]
    headers = {f"{number}": bytes(size) for number in range(each)}
    return [(b"%d" % number, headers) for number in range(count)]


def batch_of(messages, **columns):
    columns["value"] = [value for value, _ in messages]
    columns["headers"] = pa.array([list(headers.items()) for _, headers in messages], HEADERS)
    return pa.record_batch(columns)


async def test_messages_of_a_publisher(broker, name, messages):
    async with connect(broker.address, retry_time=timedelta(seconds=30)) as client:
        stream = await client.streams.create(name)
        async with stream.publisher() as publisher:
            outgoing = [Outgoing(value, headers=headers) for value, headers in messages]
            results = await publisher.publish_batch(outgoing)
        assert [one for one in results if not isinstance(one, Ack)] == []


async def test_records_in_columns(broker, name, messages):
    async with connect(broker.address, retry_time=timedelta(seconds=30)) as client:
        stream = await client.streams.create(name)
        published = await stream.publish_columns([batch_of(messages)])
        assert published == Published(len(messages), 0)


async def test_records_of_a_restore(broker, name, messages):
    async with connect(broker.address, retry_time=timedelta(seconds=30)) as client:
        stream = await client.streams.create(name)
        given = batch_of(messages, offset=list(range(len(messages))))
        assert await stream.restore(0, [given]) == len(messages)


@pytest.mark.parametrize("is_idempotent", [False, True])
@pytest.mark.parametrize(
    "large",
    [
        Outgoing(bytes(2 << 20)),
        Outgoing(b"", headers={"h": bytes(2 << 20)}),
        Outgoing(b"", headers={f"{number}": b"" for number in range(1_001)}),
        bytes(2 << 20),
    ],
    ids=["value", "header", "headers", "bare values"],
)
async def test_message_that_is_refused_takes_no_other_along(broker, name, large, is_idempotent):
    others = (b"before", b"behind")
    if isinstance(large, Outgoing):
        others = tuple(map(Outgoing, others))
    async with connect(broker.address, retry_time=timedelta(seconds=30)) as client:
        stream = await client.streams.create(name)
        async with stream.publisher(idempotent=is_idempotent) as publisher:
            given = [others[0], large, others[1]]
            before, refused, behind = await publisher.publish_batch(given)
        assert isinstance(refused, LiftbridgeError)
        assert (before.offset, behind.offset) == (0, 1)
