"""Copies of the same records are compared by buckets, and then by offsets."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest

from pyspark_liftbridge.archive.delta_log.schema import SCHEMA
from pyspark_liftbridge.jobs.comparing import (
    BUCKET,
    Copy,
    appear_later,
    compare,
    copy_of,
    lacking,
    runs,
)

Changes = Mapping[int, Mapping[str, object]]


def batch(offsets: Sequence[int], changes: Changes) -> pa.RecordBatch:
    """Records of offsets, alike but for changes of some."""
    plain = {
        "stream": "orders",
        "partition": 0,
        "timestamp": 0,
        "timestamp_ns": 0,
        "key": None,
        "value": b"v",
        "subject": "orders",
        "reply_subject": "",
        "headers": [],
        "leader_epoch": 1,
    }
    rows = [{**plain, "offset": one, **changes.get(one, {})} for one in offsets]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def copy(
    offsets: Sequence[int],
    changes: Changes | None = None,
    *,
    start: int = 0,
    end: int = 3 * BUCKET,
    has_epochs: bool = True,
) -> Copy:
    found = batch(offsets, changes or {})
    pieces = [found.slice(at, 1_000) for at in range(0, len(offsets), 1_000)]
    return copy_of("copy", start, end, pieces, has_epochs=has_epochs)


def found(one: Copy, other: Copy) -> list[list[list[int]]]:
    return [[part.tolist() for part in unlike] for unlike in compare(one, other)]


def test_copies_are_alike_however_their_records_came() -> None:
    offsets = range(0, 2 * BUCKET, 7)
    one = copy_of("a", 0, 2 * BUCKET, [batch(offsets, {})], has_epochs=True)
    assert found(one, copy(offsets)) == []
    assert found(copy(()), copy(())) == []


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp_ns": 1},
        {"key": b"k"},
        {"value": b"w"},
        {"subject": "payments"},
        {"reply_subject": "answers"},
        {"headers": [{"key": "a", "value": b"1"}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_record_that_is_not_the_same_is_found_by_its_offset(change: Mapping[str, object]) -> None:
    offsets = range(0, 2 * BUCKET, 5)
    at = BUCKET + 5
    assert found(copy(offsets), copy(offsets, {at: change})) == [[[], [], [at], []]]


def test_what_one_of_them_lacks_is_found_on_each_side() -> None:
    assert found(copy([1, 2, 3, BUCKET]), copy([2, 4, BUCKET])) == [[[4], [1, 3], [], []]]
    assert found(copy([BUCKET]), copy(())) == [[[], [BUCKET], [], []]]


def test_leader_epochs_count_where_both_have_them() -> None:
    one, other = copy([1, 2]), copy([1, 2], {2: {"leader_epoch": 2}})
    assert found(one, other) == [[[], [], [], [2]]]
    assert found(copy([1, 2], has_epochs=False), other) == []


def test_only_what_both_are_to_have_is_compared() -> None:
    one = copy(range(100), start=0, end=100)
    assert found(one, copy(range(50, 200), start=50, end=200)) == []
    assert found(one, copy(range(100, 200), start=100, end=200)) == []
    assert found(one, copy(range(51, 200), start=50, end=200)) == [[[], [50], [], []]]


def test_compaction_accounts_for_records_with_a_later_one_of_their_key() -> None:
    keyed = {
        1: {"key": b"a"},
        2: {"key": b"b"},
        3: {"key": b"a"},
        4: {"key": b"c", "value": b""},
        6: {"key": b"d"},
    }
    holder = copy([1, 2, 3, 4, 5, 6], keyed)
    gone = lacking(holder, np.array([1, 2, 4, 5, 6]))
    assert gone.gone.tolist() == [1, 4]
    assert gone.open.tolist() == [2, 5, 6]
    assert gone.open_is_kept.tolist() == [False, True, False]


def test_what_follows_is_read_until_each_key_is_found_or_the_end() -> None:
    holder = copy([1, 2, 3], {1: {"key": b"a"}, 2: {"key": b"b"}})
    later = copy([25, 47], {25: {"key": b"a"}, 47: {"key": b"x"}})
    asked: list[tuple[int, int]] = []

    def read(start: int, end: int) -> Copy:
        asked.append((start, end))
        return later.within(start, end)

    gone = lacking(holder, np.array([1, 2, 3]))
    assert appear_later(gone, read, 10, 45, 10).tolist() == [True, False, False]
    assert asked == [(10, 20), (20, 30), (30, 40), (40, 45)]
    asked.clear()
    assert appear_later(lacking(holder, np.array([1, 3])), read, 10, 45, 10).tolist() == [
        True,
        False,
    ]
    assert asked == [(10, 20), (20, 30)]


def test_neighbouring_offsets_are_one_range() -> None:
    assert runs(np.array([1, 2, 3, 7, 9, 10])) == [(1, 4), (7, 8), (9, 11)]
    assert runs(np.array([], np.int64)) == []
