"""Two and three runners archive one stream, with a fault at every step: each record once."""

from random import Random

import pytest

from liftbridge_testkit.archive_runs import Fault, Source, Turns, archive, archived
from pyspark_liftbridge.archive import log, reading, verify
from pyspark_liftbridge.archive.store import Below
from pyspark_liftbridge.plan.unified import Held

# Partition 0 is compacted, and begins at 5; nothing of 1 was removed.
OFFSETS = {0: [5, 6, 9, 10, 15, 16, 17, 30], 1: list(range(12))}
SOURCE = Source(OFFSETS, {0: 31, 1: 12}, {0: 5})
RUNNERS = (2, 3)


def play(seed, runners, faults):
    turns = Turns(seed, faults)
    turns.play([archive(SOURCE)] * runners)
    return turns


def check_archive(turns):
    """Every record once, and a log that says so by itself."""
    assert archived(turns.store) == OFFSETS
    table = Below(turns.store, "orders/")
    snapshot = log.load(table)
    assert reading.held_of(snapshot) == {0: Held(5, 31), 1: Held(0, 12)}
    history = verify._read_history(table, snapshot)
    assert history.findings == []
    assert history.ends == {0: 31, 1: 12}
    assert replayed(table) == (snapshot.files, snapshot.ends, snapshot.metadata)


def replayed(table):
    """The same without any checkpoint."""
    versions = log.versions_there(table)
    whole = log.Snapshot().after([log.read_entry(table, version) for version in versions])
    return whole.files, whole.ends, whole.metadata


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("runners", RUNNERS)
def test_fault_at_any_step_loses_nothing_and_repeats_nothing(fault, runners):
    steps = max(play(seed, runners, {}).calls[0] for seed in range(3))
    assert steps > 15
    for step in range(steps):
        check_archive(play(step, runners, {(0, step): fault}))


@pytest.mark.parametrize("runners", RUNNERS)
def test_any_faults_in_any_order_lose_nothing_and_repeat_nothing(runners):
    seen = set()
    for seed in range(60):
        random = Random(seed)
        faults = {
            (runner, step): random.choice(list(Fault))
            for runner in range(runners)
            for step in range(60)
            if random.random() < 0.12
        }
        turns = play(seed, runners, faults)
        check_archive(turns)
        seen |= {fault for at, fault in faults.items() if at[1] < turns.calls[at[0]]}
    assert seen == set(Fault)


def test_runners_get_into_each_others_way():
    """Else the tests above show nothing: there are entries of several runners, and lost numbers."""
    lost = 0
    for seed in range(20):
        turns = play(seed, 3, {})
        data = [path for path in turns.store.objects if "/data/" in path]
        lost += len(data) - len(log.load(Below(turns.store, "orders/")).files)
    assert lost > 20


def test_the_same_seed_plays_the_same():
    def once():
        turns = play(5, 3, {(1, 7): Fault.LATE, (2, 9): Fault.KILLED_AFTER})
        return turns.store.objects, turns.calls

    assert once() == once()
