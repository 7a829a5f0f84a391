"""Rare points: named states and events that most runs never reach.

They are observed from outside - in the state, in transitions of brokers, in actions of the
simulator - so that the real code does not know them. A range of seeds must meet each of them
(`sim/floors.py`).
"""

from collections.abc import Callable, Mapping
from typing import Final

from liftbridge_broker.controller.state import BrokerState
from liftbridge_broker.model.ids import MetadataIndex
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_testkit.sim.broker import ClusterBroker
from liftbridge_testkit.sim.cluster_atlas import broker_on
from liftbridge_testkit.sim.invariants.replication import Look, ReplicationRules
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.rare_partitions import PARTITION
from liftbridge_testkit.sim.world import Watcher, World

TOLD: Final[Mapping[str, str]] = {
    "corruption_found": "damage found by a reader",
    "data_directory_offline": "disk given up",
    "disk_full": "disk full noticed",
    "index_rebuilt": "index rebuilt",
    "log_recovered": "end of a log cut at a start",
    "metadata_snapshot_installed": "metadata snapshot installed",
    "partition_offline": "replica offline",
    "self_fenced": "broker fenced itself",
    "unknown_directory_kept": "log of nobody kept at a start",
}
"""Transitions that are rare points: kind -> name."""

BROKER: Final = (
    "broker fenced",
    "broker unfenced",
    "broker with another disk",
    "broker drained",
    "broker stopping in order",
)
"""Rare points in the metadata of a broker."""

REPLICA: Final = (
    "truncated in several rounds",
    "truncated to nothing",
    "truncated to a segment's start",
    "log begun anew further on",
    "log start raised by the leader",
    "two leaders of a partition",
    "leadership taken with records uncommitted",
)
"""Rare points of replicas."""

GROUP: Final = (
    "two leaders of the metadata",
    "metadata leader steps down",
    "metadata log cut",
    "member added",
    "member removed",
    "members changed while links are cut",
)
"""Rare points of the metadata group."""

SIMULATED: Final = (
    "damaged disk replaced",
    "duplicate answered with its first offset",
    "outcome unknown at a change of leader",
    "power cut within a turn",
    "spoiled disk replaced",
)
"""Rare points that the simulator and its clients count themselves."""

CLUSTER: Final = (*TOLD.values(), *PARTITION, *BROKER, *REPLICA, *GROUP, *SIMULATED)


class RarePoints(Watcher):
    """Counts rare points in a world of whole brokers."""

    def __init__(self, world: World, rules: ReplicationRules) -> None:
        """Observe the changes that `rules` reports."""
        self._world = world
        self._coverage = world.coverage
        self._rules = rules
        self._seen_index = MetadataIndex(0)
        self._brokers: dict[str, BrokerState] = {}
        self._bases: dict[tuple[str, int, int], int] = {}
        self._cuts: dict[tuple[str, int, int, int], int] = {}
        rules.listeners.append(self._on_changed)

    def on_transition(self, machine: Machine, kind: str, fields: Mapping[str, object]) -> None:
        """Count a transition that a broker reported."""
        del machine, fields
        name = TOLD.get(kind)
        if name is not None:
            self._coverage.rare(name)

    def on_applied(self, machine: Machine) -> None:
        """Check brokers whose metadata changed."""
        del machine
        newest = self._rules.newest
        # A broker changes its state in place.
        if newest is not None and newest.applied_index > self._seen_index:
            self._seen_index = newest.applied_index
            for known in newest.brokers.values():
                before = self._brokers.get(known.broker)
                if known != before:
                    self._brokers[known.broker] = known
                    if before is not None:
                        self._count_broker(before, known)

    def _count_broker(self, before: BrokerState, after: BrokerState) -> None:
        met = (
            after.fenced and not before.fenced,
            before.fenced and not after.fenced,
            after.data_dir_id != before.data_dir_id,
            after.draining and not before.draining,
            after.in_controlled_shutdown and not before.in_controlled_shutdown,
        )
        self._coverage.rare_if(BROKER, met)

    # -- replicas -----------------------------------------------------------------------------

    def _on_changed(
        self,
        machine: Machine,
        broker: ClusterBroker,
        partition: Partition,
        before: Look | None,
        look: Look,
    ) -> None:
        del broker
        replica = (machine.name, machine.incarnation, partition.partition_id)
        base = self._bases.get(replica, 0)
        self._bases[replica] = partition.log.live_segments()[-1].base_offset
        if before is None:
            return
        rare = self._coverage.rare
        if look.log_start > before.log_start and look.role is Role.FOLLOWER:
            is_anew = look.log_start > before.log_end
            rare("log begun anew further on" if is_anew else "log start raised by the leader")
        if look.log_end < before.log_end:
            if look.log_end == base > look.log_start:
                rare("truncated to a segment's start")
            key = (machine.name, machine.incarnation, partition.partition_id, look.leader_epoch)
            self._cuts[key] = self._cuts.get(key, 0) + 1
            if self._cuts[key] == 2:
                rare("truncated in several rounds")
            if look.log_end == look.log_start:
                rare("truncated to nothing")
        if look.role is Role.LEADER and before.role is not Role.LEADER:
            if look.log_end > look.high_watermark:
                rare("leadership taken with records uncommitted")
            if self._is_led_elsewhere(machine, partition):
                rare("two leaders of a partition")

    def _is_led_elsewhere(self, machine: Machine, partition: Partition) -> bool:
        for other in self._world.machines.values():
            broker = broker_on(other)
            if broker is None or other is machine:
                continue
            copy = broker.node.partitions.get(partition.partition_id)
            if copy is not None and copy.role is Role.LEADER:
                return True
        return False


class GroupPoints(Watcher):
    """Counts rare points of the metadata group, in any world that has one."""

    def __init__(
        self, world: World, consensus_of: Callable[[Machine], RaftConsensus | None]
    ) -> None:
        """Observe the members that `consensus_of` returns."""
        self._world = world
        self._coverage = world.coverage
        self._consensus_of = consensus_of
        self._leads: dict[str, int] = {}
        self._members: tuple[object, ...] = ()
        self._last_index: dict[tuple[str, int], int] = {}

    def on_turn(self, machine: Machine) -> None:
        """Check the member that had a turn."""
        consensus = self._consensus_of(machine)
        if consensus is None:
            return
        core, name, rare = consensus.core, machine.name, self._coverage.rare
        key = (name, machine.incarnation)
        last = core.log.last_index
        if last < self._last_index.get(key, 0):
            rare("metadata log cut")
        self._last_index[key] = last
        if not core.is_leader:
            if self._leads.pop(name, None) is not None:
                rare("metadata leader steps down")
            return
        if self._leads.get(name) != core.term:
            self._leads[name] = core.term
            if len(self._leads) > 1 and self._count_leading() > 1:
                rare("two leaders of the metadata")
        if core.log.is_configuration_committed:
            self._look_at_members((*consensus.voters, *consensus.learners))

    def _count_leading(self) -> int:
        members = (self._consensus_of(machine) for machine in self._world.machines.values())
        return sum(member is not None and member.is_leader for member in members)

    def _look_at_members(self, members: tuple[object, ...]) -> None:
        if members == self._members:
            return
        before, self._members = self._members, members
        met = (
            bool(set(members) - set(before)),
            bool(set(before) - set(members)),
            not self._world.network.is_whole,
        )
        self._coverage.rare_if(GROUP[3:], met)
