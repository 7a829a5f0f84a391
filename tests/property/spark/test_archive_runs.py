"""Two and three runners archive one stream, with a fault at every step: each record once."""

from random import Random

import pytest

from liftbridge_testkit.archive_life import check, faults_of, play
from liftbridge_testkit.archive_runs import Fault
from pyspark_liftbridge.archive.delta_log import log
from pyspark_liftbridge.archive.stores.store import Below

RUNNERS = (2, 3)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("runners", RUNNERS)
def test_fault_at_any_step_loses_nothing_and_repeats_nothing(fault, runners):
    steps = max(play(seed, runners, {}).calls[0] for seed in range(3))
    assert steps > 15
    for step in range(steps):
        check(play(step, runners, {(0, step): fault}))


@pytest.mark.parametrize("runners", RUNNERS)
def test_any_faults_in_any_order_lose_nothing_and_repeat_nothing(runners):
    seen = set()
    for seed in range(60):
        faults = faults_of(Random(seed), runners)
        turns = play(seed, runners, faults)
        check(turns)
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
