"""R20: every step of random lives is an action of Raft's specification."""

from collections import Counter

from liftbridge_testkit.raft.chaos import Chaos
from liftbridge_testkit.raft.model import Model

LIVES = 100
STEPS = 1_000
FLOORS = {
    "BecomeLeader": 100,
    "ClientRequest": 2_000,
    "AppendEntries": 4_000,
    "AdvanceCommitIndex": 1_000,
}


def test_every_step_is_one_that_the_specification_allows():
    counts: Counter[str] = Counter()
    for seed in range(1_000, 1_000 + LIVES):
        chaos = Chaos(seed)
        model = Model(chaos.cluster)
        chaos.run(STEPS)
        counts.update(model.action_counts)
    assert {name: counts[name] for name, floor in FLOORS.items() if counts[name] < floor} == {}
