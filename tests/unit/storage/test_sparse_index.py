"""The sparse index in memory: finding, cutting, and what goes to its file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.model.ids import Offset
from liftbridge_broker.storage.log.index import (
    INDEX_INTERVAL_BYTES,
    SparseIndex,
    keep_below,
    load_index,
)
from liftbridge_testkit.batches import PARTITION

BASE = Offset(100)


def filled(count: int) -> SparseIndex:
    """Entries at offsets 100, 110, ..., positions 0, 5000, ..., timestamps 0, 7, ..."""
    index = SparseIndex(BASE)
    for number in range(count):
        index.add(
            Offset(BASE + 10 * number),
            5000 * number,
            7 * number,
            records_before=3 * number,
            timestamp_before=7 * number - 7,
        )
    return index


@given(st.integers(0, 40), st.integers(90, 600), st.integers(-10, 250_000), st.integers(-5, 400))
def test_look_ups_agree_with_a_search_through_all(
    count: int, offset: int, position: int, timestamp: int
) -> None:
    index = filled(count)
    entries = [index.entry(number) for number in range(count)]
    assert index.floor_offset(Offset(offset)) == sum(e.offset <= offset for e in entries) - 1
    assert index.floor_position(position) == sum(e.position <= position for e in entries) - 1
    earlier = sum(e.timestamp < timestamp for e in entries)
    assert index.before_timestamp(timestamp) == max(0, earlier - 1)


@given(st.integers(0, 700), st.integers(0, 4_000_000))
def test_file_of_an_index_loads_to_the_same_entries(count: int, cut: int) -> None:
    index = filled(count)
    first = index.take_blocks(PARTITION)
    assert index.take_blocks(PARTITION) == b""
    index.cut(cut)
    assert not index.is_in_file
    data = index.take_blocks(PARTITION)
    loaded = load_index(data, partition_id=PARTITION, base_offset=BASE)
    kept = min(count, -(-cut // 5000))
    assert len(loaded.entries) == len(index) == kept
    assert [loaded.entries.entry(n) for n in range(kept)] == [index.entry(n) for n in range(kept)]
    assert loaded.entries.last_position == index.last_position
    assert loaded.is_whole
    assert len(load_index(first, partition_id=PARTITION, base_offset=BASE).entries) == count


def test_blocks_end_with_places_to_resume_at() -> None:
    index = SparseIndex(BASE)
    data = b""
    for number in range(600):
        index.add(
            Offset(BASE + number),
            5000 * number,
            number,
            records_before=2 * number,
            timestamp_before=number - 1,
        )
        if index.has_full_block:
            data += index.take_blocks(PARTITION)
    loaded = load_index(data, partition_id=PARTITION, base_offset=BASE)
    assert [(r.entry.position, r.entry_count, r.records) for r in loaded.resumes] == [
        (5000 * 255, 255, 510),
        (5000 * 511, 511, 1022),
    ]
    kept = keep_below(loaded, loaded.resumes[0])
    assert len(kept) == 255


def test_place_to_resume_at_is_not_claimed_for_entries_written_late() -> None:
    index = filled(300)
    loaded = load_index(index.take_blocks(PARTITION), partition_id=PARTITION, base_offset=BASE)
    assert [r.entry_count for r in loaded.resumes] == [299]
    index.cut(5000 * 100)
    loaded = load_index(index.take_blocks(PARTITION), partition_id=PARTITION, base_offset=BASE)
    assert loaded.resumes == ()


def test_empty_index_takes_the_first_batch() -> None:
    assert SparseIndex(BASE).last_position == -INDEX_INTERVAL_BYTES
    with pytest.raises(AssertionError):
        filled(2).add(Offset(500), 5000, 0, records_before=0, timestamp_before=0)
