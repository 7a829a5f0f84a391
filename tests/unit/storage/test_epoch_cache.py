"""The leader-epoch cache: KIP-101, KIP-279, and the stories S6 to S20 that are about one cache."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.storage.log.epochs import LeaderEpochCache

Entries = Sequence[tuple[int, int]]


def cache(*entries: tuple[int, int]) -> LeaderEpochCache:
    return LeaderEpochCache([(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries])


@pytest.mark.parametrize(
    ("before", "epoch", "start", "after"),
    [
        ([], 3, 0, [(3, 0)]),
        ([(1, 0)], 2, 5, [(1, 0), (2, 5)]),
        ([(1, 0)], 1, 5, [(1, 0)]),
        ([(1, 0)], 1, 0, [(1, 0)]),
        ([(1, 5)], 1, 3, [(1, 3)]),
        ([(1, 0), (4, 7)], 2, 9, [(1, 0), (2, 9)]),
        ([(1, 0), (4, 7)], 5, 7, [(1, 0), (5, 7)]),
        ([(1, 0), (4, 7), (6, 9)], 7, 3, [(1, 0), (7, 3)]),
        ([(1, 5)], 2, 0, [(2, 0)]),
    ],
)
def test_assigned_epoch_removes_what_contradicts_it(
    before: Entries, epoch: int, start: int, after: Entries
) -> None:
    epochs = cache(*before)
    changed = epochs.assign(LeaderEpoch(epoch), Offset(start))
    assert list(epochs.entries) == list(after)
    assert changed == (list(before) != list(after))
    assert (epochs.version == 1) == changed


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (0, (0, 10)),
        (2, (2, 20)),
        (3, (2, 20)),
        (4, (4, 21)),
        (5, (5, 30)),
        (6, (5, 30)),
        (7, (7, 45)),
        (8, None),
    ],
)
def test_end_of_an_epoch_is_the_start_of_the_next_known_one(
    epoch: int, answer: tuple[int, int] | None
) -> None:
    epochs = cache((2, 10), (4, 20), (5, 21), (7, 30))
    assert epochs.end_offset_for(LeaderEpoch(epoch), Offset(45)) == answer


def test_empty_cache_knows_no_end() -> None:
    assert cache().end_offset_for(LeaderEpoch(1), Offset(0)) is None
    assert cache().latest is None
    assert cache().epoch_at(Offset(0)) is None


def test_epoch_of_an_offset() -> None:
    epochs = cache((2, 10), (4, 20))
    found = [epochs.epoch_at(Offset(offset)) for offset in (0, 9, 10, 19, 20, 999)]
    assert found == [None, None, 2, 2, 4, 4]
    assert epochs.latest == 4


@pytest.mark.parametrize(
    ("end", "after"),
    [(50, [(1, 0), (3, 10), (5, 20)]), (20, [(1, 0), (3, 10)]), (11, [(1, 0), (3, 10)]), (0, [])],
)
def test_truncation_forgets_epochs_from_there_on_also_without_data(
    end: int, after: Entries
) -> None:
    epochs = cache((1, 0), (3, 10), (5, 20))
    assert epochs.truncate(Offset(end)) == (len(after) < 3)
    assert list(epochs.entries) == list(after)


def test_epoch_without_data_at_the_end_survives_a_restart() -> None:
    epochs = cache((1, 0), (3, 10), (5, 20))
    assert not epochs.drop_beyond(Offset(20))
    assert epochs.drop_beyond(Offset(19))
    assert epochs.entries == ((1, 0), (3, 10))


@pytest.mark.parametrize(
    ("start", "after"),
    [
        (0, [(1, 5), (3, 10), (5, 20)]),
        (5, [(1, 5), (3, 10), (5, 20)]),
        (7, [(1, 7), (3, 10), (5, 20)]),
        (10, [(3, 10), (5, 20)]),
        (15, [(3, 15), (5, 20)]),
        (99, [(5, 99)]),
    ],
)
def test_log_start_keeps_the_epoch_in_force_there(start: int, after: Entries) -> None:
    epochs = cache((1, 5), (3, 10), (5, 20))
    assert epochs.clamp(Offset(start)) == (start > 5)
    assert list(epochs.entries) == list(after)


def test_clearing_counts_as_a_change_only_when_there_was_something() -> None:
    epochs = cache((1, 5))
    epochs.clear()
    epochs.clear()
    assert (epochs.entries, epochs.version) == ((), 1)


def test_entries_that_do_not_rise_are_dropped_with_what_follows() -> None:
    assert cache((1, 0), (3, 5), (2, 9), (7, 12)).entries == ((1, 0), (3, 5))
    assert cache((1, 5), (3, 5)).entries == ((1, 5),)


operations = st.lists(
    st.tuples(
        st.sampled_from(["assign", "truncate", "clamp", "drop_beyond"]),
        st.integers(0, 8),
        st.integers(0, 20),
    ),
    max_size=30,
)


@given(operations)
def test_entries_rise_strictly_whatever_is_done(operations: list[tuple[str, int, int]]) -> None:
    epochs = cache()
    for name, epoch, offset in operations:
        before, version = epochs.entries, epochs.version
        match name:
            case "assign":
                epochs.assign(LeaderEpoch(epoch), Offset(offset))
            case "truncate":
                epochs.truncate(Offset(offset))
            case "clamp":
                epochs.clamp(Offset(offset))
            case _:
                epochs.drop_beyond(Offset(offset))
        entries = epochs.entries
        assert (epochs.version != version) == (entries != before)
        for (first, start), (second, later) in pairwise(entries):
            assert first < second
            assert start < later
        assert LeaderEpochCache(entries).entries == entries
