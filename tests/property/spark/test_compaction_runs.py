"""Archiving and compaction at once, with a fault at every step: nothing is lost, twice, or back."""

from itertools import pairwise
from random import Random

import pytest

from liftbridge_testkit.archive_runs import Fault, Source, Turns, archive, archived
from liftbridge_testkit.compaction_runs import (
    compact_by_key,
    compact_small_files,
    held_after,
    is_tombstone,
    kept_of,
    key_of,
)
from pyspark_liftbridge.archive import fence, verify
from pyspark_liftbridge.archive.delta_log import delta, log
from pyspark_liftbridge.archive.stores.store import Below

# Partition 0 is compacted by the broker, and begins at 5; nothing of 1 was removed.
OFFSETS = {0: [5, 6, 9, 10, 15, 16, 17, 30], 1: list(range(12))}
SOURCE = Source(OFFSETS, {0: 31, 1: 12}, {0: 5})


def play(seed, runners, faults):
    turns = Turns(seed, faults)
    turns.play(runners)
    return turns


def check_log(turns):
    """Ends of partitions are those of archiving, and the log says so by itself."""
    table = Below(turns.store, "orders/")
    snapshot = log.load(table)
    assert [snapshot.ends[fence.app_id(7, one)].version for one in (0, 1)] == [31, 12]
    assert verify._read_history(table, snapshot).findings == []
    return table, snapshot


def joins():
    return [archive(SOURCE), compact_small_files(), compact_small_files()]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("runner", [0, 1])
def test_small_files_are_joined_while_others_are_archived(fault, runner):
    steps = max(play(seed, joins(), {}).calls[runner] for seed in range(3))
    assert steps > 8
    for step in range(steps):
        turns = play(step, joins(), {(runner, step): fault})
        assert archived(turns.store) == OFFSETS
        check_log(turns)


def mixed():
    return [archive(SOURCE), compact_by_key(), compact_by_key(), compact_small_files()]


def check_keys(turns):
    """After each entry: no record twice, the last of each key is there, and none that is gone."""
    table, snapshot = check_log(turns)
    for version in range(snapshot.version + 1):
        for partition, (offsets, end) in held_after(table, version).items():
            assert len(offsets) == len(set(offsets)), (version, partition)
            last = {key_of(one): one for one in OFFSETS[partition] if one < end}
            for key, newest in last.items():
                held = [one for one in offsets if key_of(one) == key]
                assert newest in held or (is_tombstone(newest) and not held), (version, key, held)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("runner", [0, 1])
def test_compaction_by_key_brings_nothing_back(fault, runner):
    steps = max(play(seed, mixed(), {}).calls[runner] for seed in range(3))
    assert steps > 8
    for step in range(steps):
        check_keys(play(step, mixed(), {(runner, step): fault}))


def test_any_faults_in_any_order_leave_the_last_of_each_key():
    for seed in range(40):
        random = Random(seed)
        faults = {
            (runner, step): random.choice(list(Fault))
            for runner in range(4)
            for step in range(60)
            if random.random() < 0.1
        }
        turns = play(seed, mixed(), faults)
        turns.play([compact_by_key()])
        check_keys(turns)
        wanted = {one: sorted(kept_of(offsets)) for one, offsets in OFFSETS.items()}
        assert {**{one: [] for one in OFFSETS}, **archived(turns.store)} == wanted


def test_compactions_get_into_each_others_way():
    """Else the tests above show nothing: files were written and given up, entries are of both."""
    given_up = entries = turns_of_kind = 0
    for seed in range(20):
        turns = play(seed, mixed(), {})
        table = Below(turns.store, "orders/")
        named, kinds = set(), []
        for version in log.versions_there(table):
            actions = log.read_entry(table, version)
            named |= {one.path for one in actions if isinstance(one, delta.Add)}
            kinds.append(actions[0].operation)
        written = {path for path in turns.store.objects if "/data/" in path and "/c-" in path}
        given_up += len(written - {f"orders/{path}" for path in named})
        entries += kinds.count("OPTIMIZE")
        turns_of_kind += sum(one != other for one, other in pairwise(kinds))
    assert given_up > 20
    assert entries > 20
    assert turns_of_kind > 40
