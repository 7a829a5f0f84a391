"""Protobuf fields of gRPC's own services, read by hand."""

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from liftbridge_broker.api.grpc.fields import REQUEST_BYTES_MAX, read_fields, text_field
from liftbridge_broker.api.grpc.sockets import peer_text
from liftbridge_broker.errors import InvalidRequestError, TooLargeError


def test_fields_are_those_that_protobuf_wrote() -> None:
    message = FieldDescriptorProto(name="n" * 200, number=70_000, json_name="")
    assert read_fields(message.SerializeToString(deterministic=True)) == [
        (1, b"n" * 200),
        (3, 70_000),
        (10, b""),
    ]


def test_fixed_size_fields_are_passed_over() -> None:
    assert read_fields(b"\x0d1234\x119abcdefg\x0a\x01z") == [
        (1, b"1234"),
        (2, b"9abcdefg"),
        (1, b"z"),
    ]


def test_large_message_is_refused_before_it_is_read() -> None:
    with pytest.raises(TooLargeError, match="request of 1025 bytes"):
        read_fields(b"\x0b" * (REQUEST_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a",
        b"\x0a\x02x",
        b"\x08",
        b"\x08\xff",
        b"\x0d123",
        b"\x11",
        b"\x0b",
        b"\x0c",
        b"\x80" * 11,
    ],
)
def test_bytes_that_are_no_message_are_refused(message: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="malformed request"):
        read_fields(message)


def test_last_value_of_a_text_field_counts() -> None:
    assert text_field([(1, b"a"), (2, b"b"), (1, "\u00fc".encode()), (1, 5)], 1) == "\u00fc"
    assert text_field([], 1) == ""
    with pytest.raises(InvalidRequestError):
        text_field([(1, b"\xff")], 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (("10.0.0.1", 5), "10.0.0.1:5"),
        (("::1", 5, 0, 0), "[::1]:5"),
        ("/run/socket", "/run/socket"),
        (None, "unknown"),
    ],
)
def test_peer_is_named_as_address_and_port(name: object, text: str) -> None:
    assert peer_text(name) == text
