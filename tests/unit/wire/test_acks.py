"""Acks built from constants equal those of a protobuf library, at every boundary of a varint."""

from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.wire.acks import AckEncoder, AckError, AckPolicy, inbox_frame
from liftbridge_broker.wire.envelope import decode_ack
from liftbridge_broker.wire.fields import bytes_head, headers_field, varint, varint_field
from liftbridge_proto import api_pb2

TS = 1_700_000_000_123_456_789


def ack_message(
    offset,
    correlation_id,
    *,
    policy=0,
    reception=TS,
    commit=TS + 5,
    inbox="",
    error=0,
    epoch=0,
    refusal="",
):
    return api_pb2.Ack(
        stream="stream",
        partitionSubject="foo",
        msgSubject="foo.1",
        offset=offset,
        ackInbox=inbox,
        correlationId=correlation_id,
        ackPolicy=policy,
        receptionTimestamp=reception,
        commitTimestamp=commit,
        ackError=error,
        leaderEpoch=epoch,
        refusal=refusal,
    )


def response_frame(ack, correlation_id):
    body = api_pb2.PublishResponse(ack=ack, correlationId=correlation_id).SerializeToString()
    return b"\0" + len(body).to_bytes(4, "big") + body


def test_golden_ack():
    ack = AckEncoder("s", "f").ack(
        offset=300, correlation_id=b"c", policy=AckPolicy.ALL, reception_ts=1, commit_ts=2,
        msg_subject=b"f.1", ack_inbox=b"in",
    )  # fmt: skip
    assert ack == bytes.fromhex(
        "0a0173" "120166" "1a03662e31" "20ac02" "2a02696e" "320163" "3801" "4001" "4802"
    )  # fmt: skip


def test_golden_publish_response():
    frames = AckEncoder("s", "f").publish_responses(
        0, [b"c"], policy=0, reception_ts=1, commit_ts=2, msg_subject=b"f"
    )
    ack = bytes.fromhex("0a01731201661a016632016340014802")
    assert (
        b"".join(frames) == b"\0\0\0\0" + bytes((len(ack) + 5, 0x0A, len(ack))) + ack + b"\x1a\x01c"
    )


def test_golden_inbox_ack():
    frames = AckEncoder("s", "f").inbox_acks(
        1, [b"c"], policy=0, reception_ts=1, commit_ts=2, msg_subject=b"f", ack_inbox=b"in"
    )
    ack = bytes.fromhex("b90e43b4000800010a01731201661a016620012a02696e32016340014802")
    assert b"".join(frames) == b"PUB in %d\r\n" % len(ack) + ack + b"\r\n"


def test_error_ack():
    encoder = AckEncoder("stream", "foo")
    ack = encoder.ack(
        offset=0, correlation_id=b"c", policy=1, reception_ts=TS, commit_ts=0,
        msg_subject=b"foo.1", ack_inbox=b"in", error=AckError.TOO_LARGE, refusal=b"7 bytes",
    )  # fmt: skip
    expected = ack_message(0, "c", policy=1, commit=0, inbox="in", error=3, refusal="7 bytes")
    assert ack == expected.SerializeToString()
    frame = inbox_frame(b"in", ack)
    head, _, payload = frame.partition(b"\r\n")
    assert head == b"PUB in %d" % (len(payload) - 2)
    assert decode_ack(payload[:-2]) == expected


BASES = st.one_of(
    st.integers(0, 2**62),
    st.sampled_from(
        [0, 1, 127, 128, 16_383, 16_384, 2**21, 2**28, 2**35, 2**42, 2**49, 2**56]
    ).flatmap(lambda edge: st.integers(max(0, edge - 4), edge + 1)),
)
IDS = st.one_of(
    st.lists(st.text(max_size=4), max_size=6),
    st.lists(st.just("0123456789abcdefghijkl"), min_size=1, max_size=9),
    st.lists(st.sampled_from(["", "x" * 127, "x" * 128, "\u20ac" * 80]), max_size=5),
)
TIMES = st.sampled_from([0, 1, TS, 2**62])
EPOCHS = st.sampled_from([0, 1, 127, 128, 2**40])


@given(BASES, IDS, st.integers(0, 2), TIMES, TIMES, st.sampled_from(["", "acks.1"]), EPOCHS)
def test_publish_responses_equal_the_protobuf_library(
    base, ids, policy, reception, commit, inbox, epoch
):
    frames = AckEncoder("stream", "foo").publish_responses(
        base,
        [text.encode() for text in ids],
        policy=policy,
        reception_ts=reception,
        commit_ts=commit,
        msg_subject=b"foo.1",
        ack_inbox=inbox.encode(),
        leader_epoch=epoch,
    )
    same = {"policy": policy, "reception": reception, "commit": commit, "epoch": epoch}
    expected = b"".join(
        response_frame(
            ack_message(base + i, text, inbox=inbox, **same),
            text,
        )
        for i, text in enumerate(ids)
    )
    assert b"".join(frames) == expected


@given(BASES, IDS, st.integers(0, 2), TIMES, TIMES, EPOCHS)
def test_inbox_acks_equal_the_protobuf_library(base, ids, policy, reception, commit, epoch):
    encoder = AckEncoder("stream", "foo")
    common = {"policy": policy, "reception_ts": reception, "commit_ts": commit}
    common["leader_epoch"] = epoch
    frames = encoder.inbox_acks(
        base, [text.encode() for text in ids], msg_subject=b"foo.1", ack_inbox=b"in", **common
    )
    expected = b""
    for i, text in enumerate(ids):
        message = ack_message(
            base + i,
            text,
            policy=policy,
            reception=reception,
            commit=commit,
            inbox="in",
            epoch=epoch,
        )
        ack = encoder.ack(
            offset=base + i, correlation_id=text.encode(), msg_subject=b"foo.1", ack_inbox=b"in",
            **common,
        )  # fmt: skip
        assert ack == message.SerializeToString()
        expected += inbox_frame(b"in", ack)
    assert b"".join(frames) == expected


def test_long_run_over_all_boundaries():
    ids = [b"id"] * 40_000
    frames = AckEncoder("stream", "foo").publish_responses(
        0, ids, policy=0, reception_ts=TS, commit_ts=TS + 5, msg_subject=b"foo.1"
    )
    data, position = b"".join(frames), 0
    for offset in range(len(ids)):
        end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")
        response = api_pb2.PublishResponse.FromString(data[position + 5 : end])
        assert response.ack.offset == offset
        position = end
    assert position == len(data)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_equal_the_protobuf_library(value):
    assert varint_field(4, value) == api_pb2.Ack(offset=value).SerializeToString()
    assert len(varint(value)) <= 10


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=200), max_size=5))
def test_headers_are_read_back_by_the_protobuf_library(headers):
    data = headers_field(9, headers)
    assert api_pb2.Message.FromString(data).headers == headers
    # The library writes maps of one entry in the only possible way.
    if len(headers) < 2:
        assert data == api_pb2.Message(headers=headers).SerializeToString()


def test_empty_fields_are_omitted():
    assert varint_field(3, 0) == bytes_head(3, 0) == b""
