"""A full disk is noticed, refused, survived and left again."""

import pytest

from liftbridge_broker.errors import FilesError
from liftbridge_broker.model.ids import Instant
from liftbridge_broker.storage.reserve import (
    CHECK_NS,
    CHUNK_BYTES,
    RETRY_NS,
    SpaceGuard,
    SpaceLimits,
)
from liftbridge_testkit.memory_files import Fault, MemoryFiles

NOW = Instant(5_000)
LIMITS = SpaceLimits(reserve_bytes=1_000, free_bytes_min=800)


def guard(files: MemoryFiles, limits: SpaceLimits = LIMITS) -> SpaceGuard:
    made = SpaceGuard(files, "reserve", limits, lambda _: None)
    made.open(NOW)
    return made


def fill(files: MemoryFiles, size: int) -> None:
    files.put("filler", bytes(size))


def test_reserve_is_made_when_there_is_room() -> None:
    files = MemoryFiles(capacity_bytes=10_000)
    assert not guard(files).is_full
    assert len(files.content("reserve")) == 1_000


def test_reserve_larger_than_a_chunk_gets_its_size() -> None:
    files = MemoryFiles()
    guard(files, SpaceLimits(reserve_bytes=2 * CHUNK_BYTES + 5, free_bytes_min=0))
    assert len(files.content("reserve")) == 2 * CHUNK_BYTES + 5


@pytest.mark.parametrize("size", [0, 400, 1_000, 3_000])
def test_reserve_of_another_size_is_brought_to_its_size(size: int) -> None:
    files = MemoryFiles(capacity_bytes=10_000)
    files.put("reserve", bytes(size))
    guard(files)
    assert len(files.content("reserve")) == 1_000


def test_start_without_room_is_full_and_leaves_no_part_of_a_reserve() -> None:
    files = MemoryFiles(capacity_bytes=2_000)
    fill(files, 1_500)
    made = guard(files)
    assert made.is_full
    assert not files.exists("reserve")


def test_limit_of_free_space_is_met_before_the_disk_is_full() -> None:
    files = MemoryFiles(capacity_bytes=10_000)
    made = guard(files)
    fill(files, 8_200)
    made.check(NOW)
    assert not made.is_full
    fill(files, 8_201)
    made.check(NOW)
    assert made.is_full
    assert files.exists("reserve")


def test_full_disk_gives_the_reserve_back() -> None:
    files = MemoryFiles(capacity_bytes=10_000)
    made = guard(files)
    fill(files, 9_000)
    made.on_full(NOW)
    assert made.is_full
    assert files.free_bytes() == 1_000


def test_space_must_return_with_some_to_spare() -> None:
    files = MemoryFiles(capacity_bytes=10_000)
    made = guard(files)
    fill(files, 9_000)
    made.on_full(NOW)
    fill(files, 8_101)
    made.check(NOW)
    assert made.is_full
    fill(files, 8_100)
    made.check(NOW)
    assert not made.is_full
    assert len(files.content("reserve")) == 1_000


def test_reserve_that_was_not_needed_is_kept_over_a_full_spell() -> None:
    files = MemoryFiles(capacity_bytes=10_000)
    made = guard(files)
    fill(files, 8_500)
    made.check(NOW)
    fill(files, 8_000)
    made.check(NOW)
    assert not made.is_full


def test_reserve_that_cannot_be_written_keeps_the_disk_full() -> None:
    files = MemoryFiles(capacity_bytes=10_000)
    made = guard(files)
    made.on_full(NOW)
    files.fail(Fault("append", "reserve", is_full=True))
    made.check(NOW)
    assert made.is_full
    made.check(NOW)
    assert not made.is_full


def test_broken_disk_is_not_a_full_one() -> None:
    files = MemoryFiles()
    files.fail(Fault("append", "reserve"))
    with pytest.raises(FilesError):
        guard(files)


def test_no_reserve_is_a_choice() -> None:
    files = MemoryFiles(capacity_bytes=1_000)
    assert not guard(files, SpaceLimits(0, 100)).is_full


def test_changes_are_told_once_each_with_the_free_bytes() -> None:
    files, told = MemoryFiles(capacity_bytes=10_000), list[int]()
    made = SpaceGuard(files, "reserve", LIMITS, told.append)
    made.open(NOW)
    for size in (0, 8_500, 8_600, 100, 200):
        fill(files, size)
        made.check(NOW)
    assert told == [500, 8_900]


def test_full_disk_is_looked_at_without_appends_and_another_one_is_not() -> None:
    files = MemoryFiles(capacity_bytes=10_000)
    made = guard(files)
    assert made.next_deadline() is None
    assert made.check_due == NOW + CHECK_NS
    made.on_full(NOW)
    assert made.next_deadline() == NOW + RETRY_NS
