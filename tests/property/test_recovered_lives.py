"""Random lives: a partition beyond its promise, one whose leaders are replaced, many streams."""

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from liftbridge_testkit import replica_recovery, replica_successions, stream_life
from liftbridge_testkit.replica_cluster import ReplicaCluster
from liftbridge_testkit.stream_life import StreamLife

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
            {"report": 350, "change": 2, "let go": 20, "applied": 15},
        ),
        (
            stream_life.life,
            range(20),
            {"CreateStream": 600, "AlterStream": 500, "join": 400, "mark": 80, "done": 1_500},
        ),
    ],
    ids=["unclean", "reports", "streams"],
)
def test_random_lives_keep_the_invariants_and_end_well(
    life: Callable[[int], ReplicaCluster | StreamLife], seeds: Iterable[int], floors: dict[str, int]
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
