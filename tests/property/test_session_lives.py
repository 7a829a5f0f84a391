"""Random lives of a few partitions on three brokers with fetch sessions lose nothing and mend."""

from collections import Counter

from liftbridge_testkit.sessions.life import SessionLife

SEEDS = range(20)
FLOORS = {
    "append": 1_500,
    "accepted": 4_000,
    "AlterPartition applied": 250,
    "ChangeLeader applied": 60,
    "doubled": 100,
    "healed": 180,
    "late": 100,
    "lossy": 5,
    "lost": 150,
    "not attempted": 1,
    "overtaken": 100,
    "report": 200,
    "restart": 20,
    "session lost": 100,
    "truncation": 40,
}


def test_random_lives_lose_nothing_and_mend():
    counts = Counter()
    for seed in SEEDS:
        life = SessionLife(seed)
        life.run()
        counts += life.world.counts
    assert {name: counts[name] for name, floor in FLOORS.items() if counts[name] < floor} == {}


def test_equal_seeds_live_equal_lives():
    def life():
        life = SessionLife(3)
        life.run()
        return life.events, life.world.counts, life.world.committed

    assert life() == life()
