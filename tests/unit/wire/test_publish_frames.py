"""Frames published for clients: equal to what a protobuf library and a plain NATS client write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.wire.envelope import decode_publish
from liftbridge_broker.wire.nats import appended_header_block, publish_head
from liftbridge_broker.wire.publish import (
    LAYOUT_CACHE_COUNT_MAX,
    LENGTH_CACHE_COUNT_MAX,
    EnvelopeEncoder,
)
from liftbridge_proto import api_pb2

HEADER = bytes.fromhex("b90e43b400080000")


def reference(message, subject, appended=None):
    """The frame by way of protobuf objects."""
    payload = HEADER + message.SerializeToString(deterministic=True)
    block = b"" if appended is None else appended_header_block(appended)
    return publish_head(subject, len(payload), headers=block) + payload + b"\r\n"


def test_golden_frame():
    encoder = EnvelopeEncoder("s", "foo.2", 2)
    frames = encoder.frames(
        [b"v"], keys=[b"k"], headers=[{"h": b"1"}], correlation_ids=[b"c"],
        ack_inbox=b"in", ack_policy=1, expected_offsets=[7], appended_partition_id=3,
    )  # fmt: skip
    message = bytes.fromhex(
        "0807"  # offset 7
        "12016b" "1a0176"  # key, value
        "2a0173" "3002" "3a05666f6f2e32"  # stream, partition, subject
        "4a060a0168120131"  # headers
        "5202696e" "5a0163" "6001"  # inbox, correlation id, policy ALL
    )  # fmt: skip
    block = b"NATS/1.0\r\nLiftbridge-Appended: 3\r\n\r\n"
    size = len(block) + 8 + len(message)
    expected = b"HPUB foo.2 %d %d\r\n" % (len(block), size) + block + HEADER + message + b"\r\n"
    assert b"".join(frames) == expected


def test_frame_without_anything_optional():
    frames = EnvelopeEncoder("s", "foo", 0).frames([b"v"])
    expected = HEADER + bytes.fromhex("1a0176 2a0173 3a03666f6f")
    assert b"".join(frames) == b"PUB foo %d\r\n" % len(expected) + expected + b"\r\n"


def test_no_values_give_no_frames():
    assert b"".join(EnvelopeEncoder("s", "foo", 0).frames([])) == b""


SIZES = st.sampled_from([0, 1, 2, 22, 126, 127, 128, 129, 300, 16_383, 16_384])


# Keys of headers have one length: the library puts a key before its own prefix.
@given(
    data=st.data(),
    count=st.integers(1, 5),
    partition=st.integers(0, 300),
    policy=st.integers(0, 2),
    inbox=st.sampled_from(["", "acks.1"]),
    appended=st.none() | st.integers(1, 2**63),
)
def test_frames_equal_the_protobuf_library(data, count, partition, policy, inbox, appended):
    def maybe(strategy):
        return data.draw(st.none() | st.lists(strategy, min_size=count, max_size=count))

    values = [b"v" * data.draw(SIZES) for _ in range(count)]
    keys = maybe(st.binary(max_size=3))
    headers = maybe(
        st.none() | st.dictionaries(st.sampled_from(["a1", "b2", "z\u00e9"]), st.binary(max_size=3))
    )
    ids = maybe(st.text(max_size=3)) if data.draw(st.booleans()) else ["id-1"] * count
    expected_offsets = maybe(st.integers(-1, 2**62))
    subject = f"foo.{partition}"
    frames = EnvelopeEncoder("stream", subject, partition).frames(
        values,
        keys=keys,
        headers=headers,
        correlation_ids=None if ids is None else [text.encode() for text in ids],
        ack_inbox=inbox.encode(),
        ack_policy=policy,
        expected_offsets=expected_offsets,
        appended_partition_id=appended,
    )
    expected = b""
    for i, value in enumerate(values):
        message = api_pb2.Message(
            offset=expected_offsets[i] if expected_offsets else 0,
            key=keys[i] if keys else b"",
            value=value,
            stream="stream",
            partition=partition,
            subject=subject,
            headers=(headers[i] if headers else None) or {},
            ackInbox=inbox,
            correlationId=ids[i] if ids else "",
            ackPolicy=policy,
        )
        expected += reference(message, subject.encode(), appended)
    assert b"".join(frames) == expected


def test_an_encoder_keeps_nothing_of_one_run_for_the_next():
    encoder = EnvelopeEncoder("s", "foo", 0)
    for inbox, policy, ids, appended in [
        (b"", 0, None, None), (b"in", 2, [b"a", b"b"], 5), (b"", 2, [b"cc", b"dd"], None),
        (b"in", 0, [b"", b""], 5), (b"", 0, None, None), (b"", 0, None, 6), (b"", 0, None, 7),
        (b"", 0, [b"a", b"bb"], None), (b"", 0, [b"", b"bb"], None), (b"", 0, [b"bb", b""], None),
    ]:  # fmt: skip
        frames = encoder.frames(
            [b"1", b"22"], correlation_ids=ids, ack_inbox=inbox, ack_policy=policy,
            appended_partition_id=appended,
        )  # fmt: skip
        expected = b"".join(
            reference(
                api_pb2.Message(
                    value=value, stream="s", subject="foo", ackInbox=inbox.decode(),
                    ackPolicy=policy, correlationId=ids[i].decode() if ids else "",
                ),
                b"foo",
                appended,
            )
            for i, value in enumerate((b"1", b"22"))
        )  # fmt: skip
        assert b"".join(frames) == expected


def test_caches_are_bounded():
    encoder = EnvelopeEncoder("s", "foo", 0)
    for size in range(LENGTH_CACHE_COUNT_MAX + 10):
        encoder.frames([b"x" * size])
    for size in range(LENGTH_CACHE_COUNT_MAX + 10):
        encoder.frames([b"x"], keys=[b"x" * size])
    for number in range(LAYOUT_CACHE_COUNT_MAX + 10):
        [*_, last] = encoder.frames(
            [b"x"], ack_inbox=b"in.%d" % number, appended_partition_id=number
        )
    assert last.endswith(b"\r\n")
    assert len(encoder._layouts) <= LAYOUT_CACHE_COUNT_MAX
    assert len(encoder._heads) <= LAYOUT_CACHE_COUNT_MAX
    assert all(len(v.between) <= LENGTH_CACHE_COUNT_MAX for v in encoder._layouts.values())
    assert all(len(v.between_keyed) <= LENGTH_CACHE_COUNT_MAX for v in encoder._layouts.values())
    assert all(len(heads) <= LENGTH_CACHE_COUNT_MAX for heads in encoder._heads.values())


def test_frames_survive_the_way_back():
    frames = b"".join(EnvelopeEncoder("s", "foo", 0).frames([b"v"], correlation_ids=[b"c"]))
    payload = frames.partition(b"\r\n")[2].removesuffix(b"\r\n")
    message = decode_publish(payload)
    assert message is not None
    assert (message.value, message.correlationId, message.stream) == (b"v", "c", "s")


def test_subject_that_would_inject_protocol_is_a_bug():
    with pytest.raises(AssertionError):
        EnvelopeEncoder("s", "foo\r\nPUB x 0", 0).frames([b"v"])
