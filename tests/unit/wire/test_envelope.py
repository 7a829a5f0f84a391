"""Envelopes: golden bytes, tolerance of what anybody may send, and no way to break the reader."""

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.wire.envelope import (
    ACK_HEADER,
    EnvelopeType,
    decode,
    decode_ack,
    decode_publish,
    encode,
    encode_publish,
    encode_with_crc,
    has_envelope,
)
from liftbridge_proto import api_pb2

MAGIC = bytes.fromhex("b90e43b4")
MESSAGE = api_pb2.Message(
    key=b"k", value=b"v", stream="s", headers={"h": b"1"}, ackInbox="in", correlationId="c"
)


def test_envelope_has_the_bytes_of_the_specification():
    assert encode(EnvelopeType.PUBLISH, b"xy") == bytes.fromhex("b90e43b4 00 08 00 00") + b"xy"
    assert encode(EnvelopeType.ACK, b"") == bytes.fromhex("b90e43b4 00 08 00 01")


def test_envelope_with_crc_has_the_bytes_of_the_specification():
    # CRC-32C of "123456789" is the check value of the polynomial: e3069283.
    expected = bytes.fromhex("b90e43b4 00 0c 01 00 e3069283") + b"123456789"
    assert encode_with_crc(EnvelopeType.PUBLISH, b"123456789") == expected
    assert decode(expected, EnvelopeType.PUBLISH) == b"123456789"


def test_golden_publish():
    golden = bytes.fromhex(
        "b90e43b400080000"  # header
        "12016b" "1a0176" "2a0173"  # key, value, stream
        "4a060a0168120131"  # headers
        "5202696e" "5a0163"  # inbox, correlation id
    )  # fmt: skip
    assert encode_publish(MESSAGE) == golden
    assert decode_publish(golden) == MESSAGE


def test_golden_ack():
    golden = bytes.fromhex("b90e43b400080001") + bytes.fromhex("0a0173 1201 66 2005 320163")
    assert decode_ack(golden) == api_pb2.Ack(
        stream="s", partitionSubject="f", offset=5, correlationId="c"
    )
    assert decode_publish(golden) is None


@given(st.binary(max_size=300), st.sampled_from(EnvelopeType))
def test_round_trip(payload, kind):
    assert decode(encode(kind, payload), kind) == payload
    assert decode(encode_with_crc(kind, payload), kind) == payload


def test_header_of_twelve_bytes_without_crc_flag_is_skipped():
    data = MAGIC + bytes((0, 12, 0, 0)) + b"....payload"
    assert decode(data, EnvelopeType.PUBLISH) == b"payload"


def test_unknown_flag_bits_are_ignored():
    data = MAGIC + bytes((0, 8, 0b110, 0)) + b"payload"
    assert decode(data, EnvelopeType.PUBLISH) == b"payload"


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("header length beyond the data", bytes.fromhex("B90E43B400FF0000")),
        ("header length below eight", MAGIC + bytes((0, 7, 0, 0)) + b"\x1a\x01v"),
        ("header length zero", MAGIC + bytes((0, 0, 0, 0)) + b"\x1a\x01v"),
        ("header length zero, the whole being protobuf", MAGIC + bytes(4) + b"zz\x1a\x01v"),
        ("seven bytes", MAGIC + bytes((0, 8, 0))),
        ("magic alone", MAGIC),
        ("nothing", b""),
        ("other magic", b"\xb9\x0e\x43\xb5" + bytes((0, 8, 0, 0))),
        ("version one", MAGIC + bytes((1, 8, 0, 0))),
        ("an ack", encode(EnvelopeType.ACK, b"")),
        ("crc flag with a header of eight", MAGIC + bytes((0, 8, 1, 0)) + b"\x1a\x01v"),
        (
            "crc flag with a header of sixteen",
            MAGIC + bytes((0, 16, 1, 0)) + bytes(8) + b"\x1a\x01v",
        ),
        ("crc flag with a header of eight, empty", MAGIC + bytes((0, 8, 1, 0))),
        (
            "crc flag with a header of sixteen that fits",
            MAGIC
            + bytes((0, 16, 1, 0, 0, 0, 0, 0))
            + encode_with_crc(EnvelopeType.PUBLISH, b"\x1a\x01v")[8:],
        ),
        ("crc flag and no room for it", MAGIC + bytes((0, 12, 1, 0))),
        ("wrong crc", encode_with_crc(EnvelopeType.PUBLISH, b"\x1a\x01v")[:-1] + b"w"),
        ("no protobuf", encode(EnvelopeType.PUBLISH, b"\xff\xff\xff")),
        ("a string that is not UTF-8", encode(EnvelopeType.PUBLISH, b"\x2a\x01\xff")),
        ("a field cut short", encode(EnvelopeType.PUBLISH, b"\x1a\x05v")),
    ],
)
def test_unsound_envelopes_are_plain_messages(why, data):
    assert decode_publish(data) is None, why


def test_envelope_cut_anywhere_is_whole_or_plain():
    for data in (encode_publish(MESSAGE), encode_with_crc(EnvelopeType.PUBLISH, b"\x1a\x01v")):
        for end in range(len(data)):
            decoded = decode_publish(data[:end])
            assert decoded is None or decoded.ByteSize() == end - 8


def test_only_enveloped_payloads_are_opened():
    payloads = [b"plain", encode_publish(MESSAGE), MAGIC, b""]
    assert [decode_publish(payload) for payload in payloads] == [None, MESSAGE, None, None]


def test_mutated_envelopes_never_raise(fuzz):
    seeds = [
        encode_publish(MESSAGE),
        encode_with_crc(EnvelopeType.PUBLISH, MESSAGE.SerializeToString()),
        ACK_HEADER + api_pb2.Ack(stream="s", offset=1 << 40).SerializeToString(),
    ]
    decoded = 0
    for rng in fuzz.rounds(20260, 100_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            position = rng.randrange(len(data))
            data[position] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        blob = bytes(data)
        decoded += decode_publish(blob) is not None
        decoded += decode_ack(blob) is not None
    # Some mutations hit a value only, so the corpus is not all rubbish.
    assert fuzz.count // 100 < decoded < fuzz.count * 19 // 10


_PAYLOADS = st.one_of(
    st.binary(max_size=6), st.binary(max_size=3).map(MAGIC.__add__), st.just(MAGIC[:3] + b"~")
)


@given(payloads=st.lists(_PAYLOADS, min_size=1, max_size=8))
def test_an_envelope_among_any_payloads_is_seen(payloads):
    assert has_envelope(payloads) == any(payload[:4] == MAGIC for payload in payloads)


def test_crc_implementation_is_the_compiled_one():
    assert google_crc32c.implementation == "c"
