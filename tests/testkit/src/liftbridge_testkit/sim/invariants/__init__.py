"""Invariants of true state (docs/spec/replication.md), checked every turn, one subject a file."""

from liftbridge_testkit.sim.cluster_atlas import broker_on, state_on
from liftbridge_testkit.sim.invariants.aging import Aging
from liftbridge_testkit.sim.invariants.contents import Contents
from liftbridge_testkit.sim.invariants.controller import ControllerRules
from liftbridge_testkit.sim.invariants.copies import CopyRules
from liftbridge_testkit.sim.invariants.durable import DurableEpochs
from liftbridge_testkit.sim.invariants.pace import Pace
from liftbridge_testkit.sim.invariants.replication import ReplicationRules
from liftbridge_testkit.sim.world import World


def watch_all(world: World) -> ReplicationRules:
    """Add all invariants of a world of whole brokers. Return those of replicas."""
    rules = ReplicationRules(world, broker_on)
    world.watchers += [
        ControllerRules(state_on, world.coverage),
        rules,
        CopyRules(world, rules),
        Contents(),
        Pace(world),
        Aging(world, rules),
    ]
    DurableEpochs(rules)
    return rules
