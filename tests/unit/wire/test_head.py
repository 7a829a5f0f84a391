"""A message is parsed up to so many fields, and its beginning is a message of whole fields."""

from random import Random

import pytest

from liftbridge_broker.api.batch_run import COUNTED_BYTES_MIN, FIELDS_MAX, RECORD_COUNT_MAX, parse
from liftbridge_broker.logformat.varint import encode_varint
from liftbridge_broker.wire.head import head_of
from liftbridge_proto.ext.v1 import data_pb2

WITHIN = 7
PACKED = (12, 15)
SIZES = (0, 1, 127, 128, 300)


def bytes_field(number: int, content: bytes) -> bytes:
    """A field of any number, empty ones included."""
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def outer_field(random: Random) -> tuple[bytes, int]:
    """A field of any kind, and how many it counts for."""
    number = random.choice((1, 5, 15, 16, 100))
    match random.randrange(5):
        case 0:
            return encode_varint(number << 3) + encode_varint(random.getrandbits(63)), 1
        case 1:
            return encode_varint(number << 3 | 1) + bytes(8), 1
        case 2:
            return encode_varint(number << 3 | 5) + bytes(4), 1
        case 3:
            size = random.choice(SIZES)
            return bytes_field(number, bytes(size)), 1 + (size // 10 if number in PACKED else 0)
        case _:
            count = random.randrange(4)
            inner = [bytes_field(random.choice((1, WITHIN)), bytes(3)) for _ in range(count)]
            return bytes_field(WITHIN, b"".join(inner)), 1 + count


def head(message: bytes, fields_max: int) -> bytes:
    return head_of(message, within=WITHIN, packed=PACKED, fields_max=fields_max)


@pytest.mark.parametrize("seed", range(200))
def test_head_is_as_many_whole_fields_as_are_allowed(seed: int) -> None:
    random = Random(seed)
    fields = [outer_field(random) for _ in range(random.randrange(1, 30))]
    message = b"".join(raw for raw, _ in fields)
    total = sum(count for _, count in fields)
    for allowed in range(total):
        expected, left = b"", allowed
        for raw, count in fields:
            left -= count
            if left < 0:
                break
            expected += raw
        assert head(message, allowed) == expected
    assert head(message, total) == message


@pytest.mark.parametrize("seed", range(20))
def test_message_that_is_cut_anywhere_is_given_back_or_ends_within_a_field(seed: int) -> None:
    random = Random(seed)
    fields = [outer_field(random)[0] for _ in range(5)]
    message = b"".join(fields)
    ends = {sum(map(len, fields[:count])) for count in range(6)}
    for length in range(len(message)):
        found = head(message[:length], 1_000)
        assert found == message[:length] or len(found) not in ends


def test_number_that_is_longer_than_needed_is_skipped_and_one_without_end_is_none() -> None:
    padded = b"\x08\x81\x80\x80\x00" + bytes_field(5, b"v")
    assert head(padded, 2) == padded
    assert head(b"\x08" + b"\x80" * 100 + b"\x2a\x00", 10) == b"\x08"


def test_group_is_no_field_of_any_message() -> None:
    before = bytes_field(5, b"v")
    assert head(before + b"\x0b\x0c", 10) == before + b"\x0b"


def test_largest_request_is_parsed_as_a_whole_and_one_beyond_keeps_its_id() -> None:
    count = RECORD_COUNT_MAX
    request = data_pb2.PublishBatchRequest(
        request_id=9,
        values=[bytes(COUNTED_BYTES_MIN // count)] * count,
        keys=[b"k"] * count,
        subjects=["s"] * count,
        reply_subjects=["r"] * count,
        timestamps=[1 << 62] * count,
        offsets=[1 << 61] * count,
        headers=[data_pb2.RecordHeaders(headers={"a": b"v"})] * (count // 2)
        + [data_pb2.RecordHeaders()] * (count // 2),
    )
    raw = request.SerializeToString()
    parsed, is_whole = parse(raw)
    assert is_whole
    assert parsed.ByteSize() == len(raw)  # compared as bytes, a failure would be megabytes long
    beyond, is_whole = parse(raw + bytes_field(5, b"") * FIELDS_MAX)
    assert not is_whole
    assert beyond.request_id == 9
