"""Batches: the bytes of the header, what is refused, and what one damaged bit does."""

import re

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_FILLER,
    ATTRIBUTE_IDEMPOTENT,
    BATCH_BYTES_MAX,
    COVERED_START,
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    check_follows,
    filler,
    read_header,
    seal,
    verify,
    walk,
    walk_verified,
)
from liftbridge_broker.logformat.checksum import crc32c, crc32c_extend
from liftbridge_broker.logformat.records import RecordEncoder
from liftbridge_broker.model.ids import (
    OFFSET_MAX,
    LeaderEpoch,
    Offset,
    PartitionId,
    PublisherId,
)
from liftbridge_testkit.batches import Batches

GOLDEN = bytes.fromhex(
    "4c420100"  # magic, version, reserved
    "000000b9"  # length
    "e6032e5c"  # checksum
    "0008"  # attributes: idempotent
    "0000"
    "0000000500000002"  # partition id
    "0000000000000009"  # leader epoch
    "0000000000000080"  # base offset
    "0000000000000081"  # last offset
    "00000002"  # count
    "00000003"  # publisher epoch
    "17979cfe362a0000"  # first timestamp
    "17979cfe362a0000"  # largest timestamp
    "0000000000000011"  # publisher id
    "0000000000000021"  # first sequence
    # first frame: offset 128, value "a", timestamp, stream "s", partition 2, subject "x", headers
    "00000000310880011a0161208080a8b1e39fe7cb172a0173"
    "30023a01784a0c0a077375626a656374120178"
    "4a090a057265706c791200"
    # second frame: offset 129, value "bc"
    "00000000320881011a026263208080a8b1e39fe7cb172a0173"
    "30023a01784a0c0a077375626a656374120178"
    "4a090a057265706c791200"
)


def golden() -> bytes:
    pieces = RecordEncoder("s", 2).encode(
        base_offset=128,
        timestamp=1_700_000_000_000_000_000,
        subject="x",
        reply="",
        values=[b"a", b"bc"],
    )
    return seal(
        frames=pieces,
        partition_id=PartitionId(5 << 32 | 2),
        leader_epoch=LeaderEpoch(9),
        base_offset=Offset(128),
        last_offset=Offset(129),
        count=2,
        first_timestamp=1_700_000_000_000_000_000,
        largest_timestamp=1_700_000_000_000_000_000,
        attributes=ATTRIBUTE_IDEMPOTENT,
        publisher_id=PublisherId(17),
        publisher_epoch=3,
        first_sequence=33,
    )


def test_bytes_of_a_batch_are_the_documented_ones() -> None:
    assert golden().hex() == GOLDEN.hex()


def test_header_of_the_golden_batch_reads_back() -> None:
    header = read_header(GOLDEN, 0)
    assert header == BatchHeader(
        length=len(GOLDEN) - COVERED_START,
        crc=crc32c(GOLDEN[COVERED_START:]),
        attributes=ATTRIBUTE_IDEMPOTENT,
        partition_id=PartitionId(5 << 32 | 2),
        leader_epoch=LeaderEpoch(9),
        base_offset=Offset(128),
        last_offset=Offset(129),
        count=2,
        publisher_epoch=3,
        first_timestamp=1_700_000_000_000_000_000,
        largest_timestamp=1_700_000_000_000_000_000,
        publisher_id=PublisherId(17),
        first_sequence=33,
    )
    assert (header.size, header.end_offset, header.is_filler) == (len(GOLDEN), 130, False)


def test_checksum_is_crc32c_of_rfc_3720() -> None:
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c_extend(crc32c(b"12345"), b"6789") == crc32c(b"123456789") == 0xE3069283


def test_every_truncation_of_a_batch_is_refused() -> None:
    for length in range(len(GOLDEN)):
        with pytest.raises(CorruptionError):
            verify(GOLDEN[:length], 0, read_header(GOLDEN[:length], 0))
        with pytest.raises(CorruptionError):
            list(walk(GOLDEN + GOLDEN[:length], len(GOLDEN), len(GOLDEN) + max(1, length)))


def test_every_flipped_bit_is_noticed() -> None:
    unnoticed = []
    for bit in range(len(GOLDEN) * 8):
        damaged = bytearray(GOLDEN)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            list(walk_verified(bytes(damaged), 0, len(damaged)))
        except CorruptionError:
            continue
        unnoticed.append(bit)
    assert unnoticed == []


def test_views_are_read_like_bytes() -> None:
    view = memoryview(b"xx" + GOLDEN)[2:]
    assert [header.count for _, header in walk_verified(view, 0, len(view))] == [2]


def test_adjoining_batches_are_walked_in_order() -> None:
    made = Batches()
    data = made.make(5, [b"a"] * 3) + made.filler(8, 20) + made.make(20, [b"b"], epoch=4)
    walked = list(walk_verified(data, 0, len(data)))
    assert [(h.base_offset, h.end_offset, h.leader_epoch) for _, h in walked] == [
        (5, 8, 1),
        (8, 20, 1),
        (20, 21, 4),
    ]
    assert [data[p : p + h.size] for p, h in walked] == [
        made.make(5, [b"a"] * 3),
        made.filler(8, 20),
        made.make(20, [b"b"], epoch=4),
    ]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (Batches().make(3, [b"b"]), "begins at offset 3, not at 2"),
        (Batches().make(1, [b"b"]), "begins at offset 1, not at 2"),
        (Batches(PartitionId(8)).make(2, [b"b"], epoch=5), "batch of partition 8"),
        (Batches().make(2, [b"b"], epoch=4), "leader epoch falls from 5 to 4"),
    ],
)
def test_batch_that_does_not_belong_behind_is_refused(second: bytes, message: str) -> None:
    data = Batches().make(0, [b"a", b"b"], epoch=5) + second
    with pytest.raises(CorruptionError, match=re.escape(message)) as caught:
        list(walk(data, 0, len(data)))
    assert caught.value.position == len(data) - len(second)
    with pytest.raises(CorruptionError):
        check_follows(read_header(data, 0), read_header(second, 0), 1)


def resealed(**changes: int) -> bytes:
    """The golden batch with other fields and a right checksum."""
    names = (
        *("magic", "version", "reserved", "length", "crc", "attributes", "reserved_too"),
        *("partition_id", "leader_epoch", "base_offset", "last_offset", "count"),
        *("publisher_epoch", "first_timestamp", "largest_timestamp"),
        *("publisher_id", "first_sequence"),
    )
    fields = dict(zip(names, HEADER.unpack_from(GOLDEN), strict=True)) | changes
    covered = HEADER.pack(*fields.values())[COVERED_START:] + GOLDEN[HEADER_SIZE:]
    fields["crc"] = crc32c(covered[: fields["length"]])
    return HEADER.pack(*fields.values())[:COVERED_START] + covered


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": 0x4C43},
        {"version": 2},
        {"reserved": 1},
        {"reserved_too": 1},
        {"length": 75},
        {"length": BATCH_BYTES_MAX},
        {"base_offset": -1},
        {"base_offset": 130},
        {"last_offset": OFFSET_MAX},
        {"count": 3},
        {"count": 0},
        {"length": 76},
        {"attributes": ATTRIBUTE_FILLER},
        {"attributes": 16},
        {"attributes": 0x8000},
    ],
)
def test_impossible_fields_are_refused_even_with_a_right_checksum(changes: dict[str, int]) -> None:
    assert read_header(resealed(), 0) == read_header(GOLDEN, 0)
    with pytest.raises(CorruptionError):
        read_header(resealed(**changes), 0)


def test_negative_position_is_refused() -> None:
    with pytest.raises(CorruptionError):
        read_header(GOLDEN, -1)


def test_filler_is_a_header_and_nothing_else() -> None:
    batch = filler(
        partition_id=PartitionId(1),
        leader_epoch=LeaderEpoch(2),
        base_offset=Offset(10),
        last_offset=Offset(1 << 40),
        timestamp=99,
    )
    header = read_header(batch, 0)
    verify(batch, 0, header)
    assert len(batch) == HEADER_SIZE
    assert (header.count, header.is_filler, header.end_offset) == (0, True, (1 << 40) + 1)
    assert header.first_timestamp == header.largest_timestamp == 99


def test_frames_may_be_given_as_bytes_or_pieces() -> None:
    one = Batches().make(0, [b"abc"])
    again = seal(
        frames=one[HEADER_SIZE:],
        partition_id=PartitionId(7 << 24 | 3),
        leader_epoch=LeaderEpoch(1),
        base_offset=Offset(0),
        last_offset=Offset(0),
        count=1,
        first_timestamp=1,
        largest_timestamp=1,
    )
    assert again == one


@pytest.mark.parametrize(
    ("base", "last", "count", "attributes", "frames"),
    [
        (-1, 0, 1, 0, b"x"),
        (1, 0, 1, 0, b"x"),
        (0, OFFSET_MAX, 1, 0, b"x"),
        (0, 0, 2, 0, b"x"),
        (0, 0, 0, 0, b"x"),
        (0, 0, 0, 0, b""),
        (0, 0, 1, ATTRIBUTE_FILLER, b"x"),
        (0, 0, 1, 0, b""),
    ],
)
def test_misuse_of_seal_stops(
    base: int, last: int, count: int, attributes: int, frames: bytes
) -> None:
    with pytest.raises(AssertionError):
        seal(
            frames=frames,
            partition_id=PartitionId(1),
            leader_epoch=LeaderEpoch(1),
            base_offset=Offset(base),
            last_offset=Offset(last),
            count=count,
            first_timestamp=0,
            largest_timestamp=0,
            attributes=attributes,
        )
