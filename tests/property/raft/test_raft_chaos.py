"""Random lives of groups (R1, R2, R10 to R16, R19): no invariant breaks, and all recover."""

from collections import Counter

import pytest

from liftbridge_broker.raft.types import AddLearner, Promote, Remove
from liftbridge_testkit.raft.chaos import Chaos

LIVES = 110
STEPS = 1_500
# Each must happen that often in all lives together: a fault that no longer occurs proves nothing.
FLOORS = {
    "elections": 300,
    "committed": 8_000,
    "truncations": 20,
    "snapshots": 60,
    "crash": 1_000,
    "partition": 1_000,
    "stall": 1_000,
    "slow disk": 2_000,
    "lost": 1_000,
    "doubled": 1_000,
    "stale": 400,
    "late": 800,
    "votes lost": 30,
    "former leader cut off": 4,
    "compaction": 400,
    "reads served": 200,
    "transfer": 100,
    "AddLearner": 40,
    "Promote": 8,
    "Remove": 60,
}


def test_groups_survive_random_faults(record_property):
    counts: Counter[str] = Counter()
    for seed in range(LIVES):
        counts += Chaos(seed).run(STEPS).counts
    record_property("note", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    assert {name: counts[name] for name, floor in FLOORS.items() if counts[name] < floor} == {}


def test_same_seed_gives_same_life():
    first, second = Chaos(7), Chaos(7)
    assert first.run(1_000) == second.run(1_000)
    assert [h.state for h in first.cluster.hosts.values()] == [
        h.state for h in second.cluster.hosts.values()
    ]


def next_change(leader, everyone, target):
    """What brings a group nearer to so many voters."""
    voters, learners = leader.log.membership.latest
    if len(voters) > target:
        return Remove(voters[0] if voters[0] != leader.me or len(voters) == 5 else voters[1])
    if learners:
        return Promote(learners[0])
    return AddLearner(next(peer for peer in everyone if peer not in voters))


@pytest.mark.parametrize("seed", range(6))
def test_group_grows_and_shrinks_under_load_and_loss(seed):
    """R16: 1, 3, 5, then 3 voters, with proposals all the time and a tenth of messages lost."""
    chaos = Chaos(seed, voter_count=1, spare_count=4)
    chaos.calm()
    everyone = list(chaos.cluster.hosts)
    for target in (1, 3, 5, 3):
        for _ in range(400):
            chaos.live(60)
            leader = chaos.cluster.leader()
            if leader is None:
                continue
            if not leader.log.is_configuration_committed:
                continue
            if len(leader.log.membership.latest.voters) == target:
                break
            change = next_change(leader, everyone, target)
            chaos.attempt(
                leader.me, "change", lambda core, change=change: core.propose_config(change)
            )
        assert len(chaos.cluster.leader().log.membership.latest.voters) == target
    chaos.recover()
    assert chaos.cluster.watch.last_committed > 20
