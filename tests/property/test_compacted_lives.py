"""Random lives of a compacted partition: an unclean election takes what it takes, and no more."""

from collections import Counter

from liftbridge_testkit.compacted_life import life

SEEDS = 16
STEPS = 1_500
FLOORS = {
    "compaction": 150,
    "clean election": 150,
    "unclean election": 150,
    "compacted, and cut": 25,
    "copy of a compacted log": 100,
}


def test_replicas_have_the_last_record_of_each_key_that_their_leader_has():
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        one = life(seed)
        for _ in range(STEPS):
            one.step()
        one.heal(1)
        assert one.is_well
        counts += one.counts
    assert {name: counts[name] for name, floor in FLOORS.items() if counts[name] < floor} == {}
