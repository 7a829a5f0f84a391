"""Messages with lists for maps, and without: all else is what the ordinary message says."""

import pytest
from google.protobuf.message import Message

from liftbridge_broker.wire.fields import bytes_field
from liftbridge_broker.wire.listed import mapping, with_lists, without_maps
from liftbridge_proto import api_pb2
from liftbridge_proto.ext.v1 import data_pb2

PUBLISHED = api_pb2.PublishRequest(
    stream="s",
    value=b"v",
    headers={"a": b"1", "b": b"", "": b"2"},
    correlationId="c",
    ackPolicy=api_pb2.ALL,
)
KNOWN = data_pb2.AwaitNewsRequest(
    streams=[data_pb2.KnownStream(name="s", high_watermarks={0: 7, 2: 0, -1: -1})], wait_ms=5
)


@pytest.mark.parametrize("message", [PUBLISHED, KNOWN])
def test_same_bytes_mean_the_same(message: Message) -> None:
    listed = with_lists(type(message)).FromString(message.SerializeToString())
    assert type(message).FromString(listed.SerializeToString()) == message


def test_maps_are_lists_that_become_maps() -> None:
    listed = with_lists(api_pb2.PublishRequest).FromString(PUBLISHED.SerializeToString())
    assert len(listed.headers) == 3
    assert mapping(listed.headers) == dict(PUBLISHED.headers)
    known = with_lists(data_pb2.AwaitNewsRequest).FromString(KNOWN.SerializeToString())
    assert mapping(known.streams[0].high_watermarks) == dict(KNOWN.streams[0].high_watermarks)


def test_entries_are_counted_one_by_one_and_the_last_of_equal_keys_counts() -> None:
    raw = b"".join(
        bytes_field(5, bytes_field(1, b"k") + bytes_field(2, value)) for value in (b"1", b"2")
    )
    listed = with_lists(api_pb2.PublishRequest).FromString(raw)
    assert len(listed.headers) == 2
    assert mapping(listed.headers) == dict(api_pb2.PublishRequest.FromString(raw).headers)


def test_messages_without_maps_tell_all_else() -> None:
    bare = without_maps(api_pb2.PublishRequest).FromString(PUBLISHED.SerializeToString())
    assert "headers" not in bare.DESCRIPTOR.fields_by_name
    assert (bare.stream, bare.correlationId, bare.ackPolicy) == ("s", "c", api_pb2.ALL)
