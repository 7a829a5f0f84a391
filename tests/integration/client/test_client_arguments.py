"""What is no message is refused by the call that has it, before anything changes."""

import asyncio
import inspect

import pytest

import liftbridge_client as client
from liftbridge_client import CodecError, Outgoing, UsageError, connect_sync

GOOD = {"value": b"v", "key": b"k", "headers": {"h": b"1"}}
WRONG = {
    "value": ["text", 7, None, bytearray(b"v"), memoryview(b"v")],
    "key": ["text", 7, None, bytearray(b"k")],
    "headers": [
        {"h": "text"},
        {"h": 7},
        {"h": None},
        {"h": bytearray(b"1")},
        {b"h": b"1"},
        {7: b"1"},
        {"\ud800": b"1"},
        [("h", b"1")],
        "h",
    ],
}
CASES = [(argument, wrong) for argument, values in WRONG.items() for wrong in values]
CALLS = {
    "Stream.publish": lambda _lb, stream, _publisher: stream.publish,
    "Client.publish_to_subject": lambda lb, _stream, _publisher: (
        lambda **parts: lb.publish_to_subject("anything", **parts)
    ),
    "Publisher.publish": lambda _lb, _stream, publisher: publisher.publish,
    "Publisher.publish_nowait": lambda _lb, _stream, publisher: publisher.publish_nowait,
    "Publisher.publish_batch": lambda _lb, _stream, publisher: (
        lambda **parts: publisher.publish_batch([b"before", Outgoing(**parts), b"behind"])
    ),
}
PARTS = {"value", "key", "headers", "messages"}


def told(value):
    """Name of a case, alike in every process."""
    return "memoryview" if isinstance(value, memoryview) else ascii(value)


OF_CODECS = {"encode", "decode"}


def test_every_call_that_takes_a_part_of_a_message_is_tried():
    found = {
        f"{kind.__name__}.{name}"
        for kind in vars(client).values()
        if inspect.isclass(kind)
        for name, call in vars(kind).items()
        if inspect.isfunction(call) and not name.startswith("_") and name not in OF_CODECS
        if PARTS & set(inspect.signature(call).parameters)
    }
    assert found == set(CALLS) | {f"Sync{call}" for call in CALLS}


@pytest.mark.parametrize(("argument", "wrong"), CASES, ids=told)
async def test_asyncio_calls_refuse_a_wrong_type(lb, name, argument, wrong):
    stream = await lb.streams.create(name)
    async with asyncio.timeout(20), stream.publisher() as publisher:
        for call_of in CALLS.values():
            with pytest.raises(UsageError, match=argument.removesuffix("s")):
                await call_of(lb, stream, publisher)(**{**GOOD, argument: wrong})
        assert (await publisher.publish(b"good")).offset == 0  # nothing of the batch is stored


@pytest.mark.parametrize(("argument", "wrong"), CASES, ids=told)
def test_blocking_calls_refuse_a_wrong_type(broker, name, argument, wrong):
    with connect_sync(broker.address) as lb:
        stream = lb.streams.create(name)
        with stream.publisher() as publisher:
            for call_of in CALLS.values():
                with pytest.raises(UsageError, match=argument.removesuffix("s")):
                    call_of(lb, stream, publisher)(**{**GOOD, argument: wrong})
            assert publisher.publish(b"good").offset == 0


POLICY_TAKERS = [
    (lambda lb, _stream, wrong: lb.publish_to_subject("anything", b"v", ack_policy=wrong)),
    (lambda _lb, stream, wrong: stream.publish(b"v", ack_policy=wrong)),
    (lambda _lb, stream, wrong: stream.publisher(ack_policy=wrong)),
    (lambda _lb, stream, wrong: stream.column_publisher(ack_policy=wrong)),
    (lambda _lb, stream, wrong: stream.publish_columns([], ack_policy=wrong)),
]
UNKNOWN_POLICIES = ["quorum", "", None, 1, ["all"]]


@pytest.mark.parametrize("wrong", UNKNOWN_POLICIES, ids=repr)
async def test_asyncio_calls_refuse_an_unknown_ack_policy(lb, name, wrong):
    stream = await lb.streams.create(name)
    for call in POLICY_TAKERS:
        with pytest.raises(UsageError, match=r"ack_policy .*: must be one of leader, all, none"):
            await call(lb, stream, wrong)


@pytest.mark.parametrize("wrong", UNKNOWN_POLICIES, ids=repr)
def test_blocking_calls_refuse_an_unknown_ack_policy(broker, name, wrong):
    with connect_sync(broker.address) as lb:
        stream = lb.streams.create(name)
        for call in POLICY_TAKERS:
            with pytest.raises(UsageError, match=r"ack_policy .*: must be one of leader, all"):
                call(lb, stream, wrong)


@pytest.mark.parametrize("wrong", ["text", 7, None])
async def test_a_batch_with_a_bare_value_of_a_wrong_type_is_refused_whole(lb, name, wrong):
    stream = await lb.streams.create(name)
    async with asyncio.timeout(20), stream.publisher() as publisher:
        with pytest.raises(UsageError, match="values must be bytes"):
            await publisher.publish_batch([b"before", wrong])
        assert (await publisher.publish(b"good")).offset == 0


async def test_a_codec_that_gives_no_bytes_is_told(lb, name):
    class Texts:
        def encode(self, value):
            return str(value)

        def decode(self, data):
            return data

    stream = await lb.streams.create(name)
    async with asyncio.timeout(20), stream.publisher(codec=Texts()) as publisher:
        with pytest.raises(CodecError, match=r"Texts\.encode returned str, not bytes"):
            await publisher.publish(7)
