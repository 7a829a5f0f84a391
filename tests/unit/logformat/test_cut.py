"""Re-cutting: any part of any batch is a batch of exactly that range with the same frames."""

import pytest

from liftbridge_broker.errors import CorruptionError
from liftbridge_broker.logformat.batch import (
    ATTRIBUTE_COMPACTED,
    ATTRIBUTE_FILLER,
    HEADER_SIZE,
    read_header,
    seal,
    verify,
)
from liftbridge_broker.logformat.cut import cut
from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_testkit.batches import PARTITION, Batches, frames_of, header_of


def ranges(base: int, end: int) -> list[tuple[int, int]]:
    return [(first, stop) for first in range(base, end) for stop in range(first + 1, end + 1)]


@pytest.mark.parametrize(("first", "end"), ranges(10, 16))
def test_part_of_a_batch_is_a_batch_of_that_range(first: int, end: int) -> None:
    batch = Batches().make(10, [b"v%d" % n for n in range(6)], epoch=4, publisher=(8, 2, 100))
    part = cut(batch, Offset(first), Offset(end))
    header = header_of(part)
    verify(part, 0, header)
    assert (header.base_offset, header.end_offset) == (first, end)
    assert header.count == end - first
    assert (header.leader_epoch, header.publisher_id, header.publisher_epoch) == (4, 8, 2)
    assert header.first_sequence == 100 + first - 10
    whole = frames_of([batch[HEADER_SIZE:]])
    assert frames_of([part[HEADER_SIZE:]]) == whole[first - 10 : end - 10]


@pytest.mark.parametrize(("first", "end"), ranges(0, 7))
def test_part_of_a_compacted_batch_keeps_its_range(first: int, end: int) -> None:
    kept = {1: b"a", 2: b"b", 5: b"c"}
    part = cut(Batches().sparse(0, 7, kept), Offset(first), Offset(end))
    header = header_of(part)
    inside = [offset for offset in kept if first <= offset < end]
    assert (header.base_offset, header.end_offset) == (first, end)
    assert [frame.offset for frame in frames_of([part[HEADER_SIZE:]])] == inside
    assert (header.count, header.is_filler) == (len(inside), not inside)
    assert header.attributes & ATTRIBUTE_COMPACTED


def test_filler_is_cut_to_a_filler() -> None:
    header = header_of(cut(Batches().filler(0, 10), Offset(3), Offset(5)))
    assert (header.base_offset, header.end_offset, header.count) == (3, 5, 0)
    assert header.attributes == ATTRIBUTE_FILLER


def test_whole_range_gives_the_same_bytes_without_what_follows() -> None:
    batch = Batches().make(3, [b"a", b"b"])
    assert cut(batch + b"more", Offset(3), Offset(5)) == batch


def test_timestamps_are_those_of_what_is_left() -> None:
    made = Batches()
    times = [50, 70, 60, 10]
    frames = [made.make(n, [b"x"], timestamp=t)[HEADER_SIZE:] for n, t in enumerate(times)]
    batch = seal(
        frames=frames,
        partition_id=PARTITION,
        leader_epoch=LeaderEpoch(1),
        base_offset=Offset(0),
        last_offset=Offset(3),
        count=4,
        first_timestamp=50,
        largest_timestamp=70,
    )
    left = read_header(cut(batch, Offset(2), Offset(4)), 0)
    assert (left.first_timestamp, left.largest_timestamp) == (60, 60)
    assert header_of(cut(batch, Offset(1), Offset(3))).largest_timestamp == 70


def test_no_publisher_means_no_sequence() -> None:
    part = cut(Batches().make(0, [b"a", b"b"]), Offset(1), Offset(2))
    assert header_of(part).first_sequence == 0


def test_damaged_batch_is_not_cut() -> None:
    batch = bytearray(Batches().make(0, [b"a", b"b"]))
    batch[-1] ^= 1
    with pytest.raises(CorruptionError):
        cut(bytes(batch), Offset(0), Offset(1))


@pytest.mark.parametrize(("first", "end"), [(4, 6), (5, 5), (6, 5), (5, 8)])
def test_range_outside_of_the_batch_stops(first: int, end: int) -> None:
    with pytest.raises(AssertionError):
        cut(Batches().make(5, [b"a", b"b"]), Offset(first), Offset(end))
