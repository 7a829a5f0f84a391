"""Index blocks: bytes, and that nothing damaged or foreign is taken for an index."""

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.index_blocks import (
    ENTRIES_PER_BLOCK_MAX,
    ENTRY,
    SUMMARY_SIZE,
    EntryBlock,
    Summary,
    decode_blocks,
    decode_summary,
    encode_entries,
    encode_summary,
)
from liftbridge_broker.model.ids import Offset, PartitionId

PARTITION = PartitionId(5)
BASE = Offset(1000)
ENTRIES = ENTRY.pack(0, 0, -5) + ENTRY.pack(10, 5000, 7)
SUMMARY = Summary(9000, Offset(1020), 19, -5, 8, 8000, 0xDEADBEEF)


def entries(data: bytes = ENTRIES) -> bytes:
    return encode_entries(
        partition_id=PARTITION,
        base_offset=BASE,
        records_before=9,
        timestamp_before=3,
        entries=data,
    )


def summary() -> bytes:
    return encode_summary(partition_id=PARTITION, base_offset=BASE, summary=SUMMARY)


def decoded(data: bytes) -> list[EntryBlock | Summary]:
    return list(decode_blocks(data, partition_id=PARTITION, base_offset=BASE))


def test_bytes_of_blocks_are_the_documented_ones() -> None:
    assert entries().hex() == (
        "4c490101" + "00000040" + "212ab385" + "0000000000000005" + "00000000000003e8"
        "0000000000000009" + "0000000000000003"
        "00000000" + "00000000" + "fffffffffffffffb"
        "0000000a" + "00001388" + "0000000000000007"
    )
    assert summary().hex() == (
        "4c490102" + "00000044" + "1ceaaa35" + "0000000000000005" + "00000000000003e8"
        "0000000000002328" + "00000000000003fc" + "0000000000000013" + "fffffffffffffffb"
        "0000000000000008" + "0000000000001f40" + "deadbeef"
    )
    assert len(summary()) == SUMMARY_SIZE


def test_blocks_read_back() -> None:
    more = ENTRY.pack(11, 5001, 7)
    data = entries() + summary() + entries(more)
    assert decoded(data) == [EntryBlock(9, 3, ENTRIES), SUMMARY, EntryBlock(9, 3, more)]


def test_every_truncation_of_a_block_is_refused() -> None:
    for block in (entries(), summary()):
        for length in range(1, len(block)):
            with pytest.raises(CorruptionError):
                decoded(block[:length])


def test_every_flipped_bit_is_noticed() -> None:
    for block in (entries(), summary()):
        for bit in range(len(block) * 8):
            damaged = bytearray(block)
            damaged[bit // 8] ^= 1 << bit % 8
            try:
                found = decoded(bytes(damaged))
            except CorruptionError:
                continue
            pytest.fail(f"bit {bit}: {found}")


def test_good_blocks_before_damage_are_told() -> None:
    blocks = decode_blocks(entries() + b"junk", partition_id=PARTITION, base_offset=BASE)
    assert next(blocks) == EntryBlock(9, 3, ENTRIES)
    with pytest.raises(CorruptionError):
        next(blocks)


@pytest.mark.parametrize(("partition", "base"), [(6, 1000), (5, 1001)])
def test_block_of_another_segment_is_refused(partition: int, base: int) -> None:
    for block in (entries(), summary()):
        with pytest.raises(CorruptionError, match="another segment"):
            list(
                decode_blocks(block, partition_id=PartitionId(partition), base_offset=Offset(base))
            )


@pytest.mark.parametrize("second", [ENTRY.pack(10, 5001, 7), ENTRY.pack(11, 5000, 7), ENTRIES])
def test_entries_must_rise_from_block_to_block(second: bytes) -> None:
    with pytest.raises(CorruptionError, match="do not rise"):
        decoded(entries() + entries(second))


def test_summary_is_only_what_fills_its_bytes() -> None:
    def found(data: bytes) -> Summary | None:
        return decode_summary(data, partition_id=PARTITION, base_offset=BASE)

    assert found(summary()) == SUMMARY
    assert found(summary()[:-1]) is None
    assert found(b"\0" + summary()[1:]) is None
    assert found(entries()) is None


@pytest.mark.parametrize("count", [0, ENTRIES_PER_BLOCK_MAX + 1])
def test_blocks_are_bounded(count: int) -> None:
    with pytest.raises(AssertionError):
        entries(ENTRY.pack(1, 1, 1) * count)
    with pytest.raises(AssertionError):
        entries(ENTRIES[:-1])
