"""Values of gRPC's header fields and the blocks that are sent."""

import pytest
from hpack import Decoder

from liftbridge_broker.http2 import grpc


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1H", 3_600_000_000_000),
        (b"2M", 120_000_000_000),
        (b"3S", 3_000_000_000),
        (b"4m", 4_000_000),
        (b"5u", 5_000),
        (b"6n", 6),
        (b"0n", 0),
        (b"99999999H", 99_999_999 * 3_600_000_000_000),
        (b"100000000n", None),
        (b"", None),
        (b"n", None),
        (b"-1S", None),
        (b"1.5S", None),
        (b"1s", None),
        (b"1S ", None),
    ],
)
def test_timeout(value: bytes, expected: int | None) -> None:
    assert grpc.parse_timeout(value) == expected


def test_message_is_percent_encoded() -> None:
    assert grpc.percent_encode("plain ~!") == b"plain ~!"
    assert grpc.percent_encode("100% \u00e9\U0001f600\n\x7f") == b"100%25 %C3%A9%F0%9F%98%80%0A%7F"
    assert grpc.percent_encode("\ud800") == b"?"


def test_long_message_is_cut_at_a_whole_character() -> None:
    encoded = grpc.percent_encode("x" + "\U0001f600" * 2000)
    assert len(encoded) == 1 + 4095 // 12 * 12
    assert encoded.endswith(b"%F0%9F%98%80")
    assert len(grpc.percent_encode("x" * 5000)) == 4096


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 4096, 100_000])
def test_literal_of_any_size_is_read_by_hpack(size: int) -> None:
    value = b"v" * size
    decoded = Decoder(1 << 20).decode(grpc.literal(b"name", value), raw=True)
    assert list(decoded) == [(b"name", value)]


@pytest.mark.parametrize("status", [200, 400, 404, 405, 415, 431, 500])
def test_status_field_is_read_by_hpack(status: int) -> None:
    decoded = Decoder().decode(grpc.status_field(status), raw=True)
    assert list(decoded) == [(b":status", b"%d" % status)]


def test_trailers_may_go_without_a_message() -> None:
    assert list(Decoder().decode(grpc.trailers_block(5, ""), raw=True)) == [(b"grpc-status", b"5")]


def test_trailers_of_success_are_one_constant() -> None:
    assert grpc.trailers_block(0, "") is grpc.trailers_block(0, "")
    assert list(Decoder().decode(grpc.trailers_block(0, "fine"), raw=True)) == [
        (b"grpc-status", b"0"),
        (b"grpc-message", b"fine"),
    ]
