"""Random lives of one partition on three brokers keep the invariants and end well."""

from collections import Counter

from liftbridge_testkit.replica_lives import life

SEEDS = range(150)
STEPS = 1_500
HEAL_STEPS_MAX = 20_000
FLOORS = {
    "append": 1_200,
    "accepted": 10_000,
    "applied": 300,
    "lead": 600,
    "crash": 1_000,
    "lossy": 80,
    "fence": 700,
    "diverging": 600,
    "truncation": 180,
    "restart": 4,
    "unknown outcome": 40,
    "ineligible": 20,
    "jump": 900,
    "move": 2_000,
    "move given up": 500,
    "leave": 60,
    "controlled stop": 150,
    "wiped": 15,
    "removed": 60,
}


def test_random_lives_lose_nothing_and_end_in_order():
    counts = Counter()
    for seed in SEEDS:
        cluster = life(seed)
        for _ in range(STEPS):
            cluster.step()
        cluster.heal(HEAL_STEPS_MAX)
        assert cluster.is_well, f"seed {seed} does not end well"
        counts += cluster.counts
    assert {name: counts[name] for name, floor in FLOORS.items() if counts[name] < floor} == {}


def test_equal_seeds_live_equal_lives():
    def lived():
        cluster = life(7)
        for _ in range(STEPS):
            cluster.step()
        return cluster.counts, cluster.committed

    assert lived() == lived()
