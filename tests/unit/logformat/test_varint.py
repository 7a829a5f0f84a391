"""Varints: protobuf's bytes, in the shortest form only."""

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.varint import (
    UINT64_MASK,
    decode_varint,
    encode_int64,
    encode_varint,
    to_int64,
)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (UINT64_MASK, "ffffffffffffffffff01"),
    ],
)
def test_known_bytes(value: int, data: str) -> None:
    assert encode_varint(value).hex() == data
    assert decode_varint(bytes.fromhex("ee" + data + "ee"), 1, 12) == (value, 1 + len(data) // 2)


@pytest.mark.parametrize("value", [0, 1, -1, (1 << 63) - 1, -(1 << 63)])
def test_signed_values_come_back(value: int) -> None:
    data = encode_int64(value)
    assert to_int64(decode_varint(data, 0, len(data))[0]) == value


@pytest.mark.parametrize("data", ["", "80", "8000", "ff" * 9 + "02", "ff" * 10 + "01", "80" * 11])
def test_cut_long_and_padded_ones_are_refused(data: str) -> None:
    with pytest.raises(CorruptionError):
        decode_varint(bytes.fromhex(data), 0, len(data) // 2)


def test_varint_must_end_inside_of_its_message() -> None:
    with pytest.raises(CorruptionError, match="outside"):
        decode_varint(b"\x80\x01", 0, 1)


@pytest.mark.parametrize("value", [-1, UINT64_MASK + 1])
def test_value_of_more_than_64_bits_stops(value: int) -> None:
    with pytest.raises(AssertionError):
        encode_varint(value)
