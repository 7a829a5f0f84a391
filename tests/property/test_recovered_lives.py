"""Random lives of one partition beyond its promise, and of one whose leaders are replaced."""

from collections import Counter
from collections.abc import Callable

import pytest

from liftbridge_testkit import replica_recovery, replica_successions
from liftbridge_testkit.replica_cluster import ReplicaCluster

STEPS = 1_500
HEAL_STEPS_MAX = 20_000


@pytest.mark.parametrize(
    ("life", "seeds", "floors"),
    [
        (
            replica_recovery.life,
            range(20),
            {
                "unclean election": 50,
                "recovered proactive": 15,
                "recovered balanced": 8,
                "given up": 4,
                "damage": 30,
                "applied": 50,
            },
        ),
        (
            replica_successions.life,
            range(12),
            {"report": 400, "change": 2, "let go": 20, "applied": 15},
        ),
    ],
    ids=["unclean", "reports"],
)
def test_random_lives_keep_the_invariants_and_end_well(
    life: Callable[[int], ReplicaCluster], seeds: range, floors: dict[str, int]
) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        cluster = life(seed)
        for _ in range(STEPS):
            cluster.step()
        cluster.heal(HEAL_STEPS_MAX)
        assert cluster.is_well, f"seed {seed} does not end well"
        counts += cluster.counts
    assert {name: counts[name] for name, floor in floors.items() if counts[name] < floor} == {}
