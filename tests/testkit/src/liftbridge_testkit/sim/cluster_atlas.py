"""Track the losses that a cluster must tolerate, as an `Atlas`.

A record acknowledged with policy ALL survives as long as fewer replicas than its minimum in sync
lose their unsynced data, or their disk, before all replicas are in sync again. If only synced
records count, any number of replicas may lose unsynced data. The minimum in force at the time of
the ack applies; a raised minimum protects older records once all replicas are in sync. Undetected
damage counts until the damaged file is no longer used. A voter may lose its disk when all other
voters are well.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from liftbridge_broker.controller.state import ClusterState, effective_min_isr
from liftbridge_broker.model.ids import BrokerId, PartitionId
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.partition.roles import Role
from liftbridge_testkit.sim.broker import ClusterBroker
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World


def broker_on(machine: Machine) -> ClusterBroker | None:
    """Return the broker on a machine, once its node exists."""
    program = machine.program
    if program is None:
        return None
    broker = cast("ClusterBroker", program)
    return broker if broker.is_open else None


def state_on(machine: Machine) -> ClusterState | None:
    """Return the metadata of the broker on a machine."""
    broker = broker_on(machine)
    return None if broker is None else broker.node.state


def consensus_on(machine: Machine) -> RaftConsensus | None:
    """Return the member of the metadata group on a machine."""
    broker = broker_on(machine)
    return None if broker is None else broker.consensus


@dataclass(slots=True)
class ClusterAtlas(Watcher):
    """Counts lossy failures since all replicas were in sync; implements `Atlas`.

    Attributes:
        committed_end: Offset after the last committed record of a partition.
        trusts_commit: Whether power cuts do not count while all streams have fsync policy `commit`.
        has_damage: Whether disks may be damaged.
        lossy: Machines that lost data and may not have recovered.
        least: Smallest minimum in sync of any partition since then.
    """

    world: World
    committed_end: Callable[[PartitionId], int]
    trusts_commit: bool = False
    has_damage: bool = True
    lossy: dict[BrokerId, None] = field(default_factory=dict)
    least: int = sys.maxsize
    _applied: ClusterState | None = None

    def on_turn(self, machine: Machine) -> None:
        """Count a machine that gives up unreadable files: its replica is copied again.

        A process whose store failed ends, and has all its data again at its next start.
        """
        broker = broker_on(machine)
        if broker is None or machine.name in self.lossy or broker.node.context.store.disk.failure:
            return
        if any(partition.offline_reason for partition in broker.node.partitions.values()):
            self.lossy[machine.name] = None
            self._check_losses_to_come(broker.node.state)

    def on_applied(self, machine: Machine) -> None:
        """Keep the smallest minimum, and call off pending losses that it does not allow."""
        state = state_on(machine)
        if state is not None and state is self._newest():
            self._applied = state
            self.least = min(self.least, _least_min_isr(state))
            self._check_losses_to_come(state)

    def _check_losses_to_come(self, state: ClusterState) -> None:
        losing = [machine for machine in self.world.machines.values() if machine.files.is_losing]
        if not losing or self._loses_nothing(state):
            return
        lossy = {**self.lossy, **dict.fromkeys(one.name for one in losing)}
        if len(lossy) <= self.least - 1:
            self.lossy = lossy
            return
        for one in losing:
            one.files.call_off_loss()

    def may_lose(self, machine: Machine) -> bool:
        """Return whether the loss of unsynced data is within the promise of every partition."""
        state = self._newest()
        if state is not None and state.streams and self._loses_nothing(state):
            return True
        return self._may_count(machine, state)

    def _loses_nothing(self, state: ClusterState) -> bool:
        """Return whether the unsynced data include nothing that counts."""
        return self.trusts_commit and _is_commit(state)

    def _may_count(self, machine: Machine, state: ClusterState | None) -> bool:
        """Return whether one more lossy failure is within the promise; if so, count it."""
        if state is None or not state.streams:
            return not self._damaged(machine)
        self._forget_if_whole(state)
        self.least = min(self.least, _least_min_isr(state))
        if len({*self.lossy, *self._refusing(), machine.name}) > self.least - 1:
            return False
        self.lossy[machine.name] = None
        return True

    def _forget_if_whole(self, state: ClusterState) -> None:
        """Restart the count when all replicas are in sync."""
        if self._is_whole(state):
            self.lossy = dict.fromkeys(one.name for one in self._in_danger())
            self.least = sys.maxsize

    def may_refuse_reads(self, machine: Machine) -> bool:
        """Return whether its replicas may become unreadable: only while all others are well."""
        state = self._newest()
        if state is not None:
            self._forget_if_whole(state)
        in_danger = {*self.lossy, *self._refusing(), *(one.name for one in self._in_danger())}
        return in_danger <= {machine.name}

    def _refusing(self) -> list[BrokerId]:
        machines = self.world.machines.values()
        return [machine.name for machine in machines if machine.files.is_refusing]

    def may_damage(self, machine: Machine) -> bool:
        """Return whether it may lose its replicas and its vote: only while all others are well."""
        return (
            self.has_damage
            and self._is_group_well_without(machine)
            and self._may_count(machine, self._newest())
        )

    def may_replace(self, machine: Machine) -> bool:
        """Return whether its damaged disk may be replaced, with all others well.

        More disks may be damaged than the minimum allows if it was lowered afterwards, because
        damage cannot be called off. Such a disk is replaced once others, in no danger, hold all
        committed records.
        """
        if self.may_damage(machine):
            return True
        if not self._is_group_well_without(machine):
            return False
        unsafe = {machine.name, *(one.name for one in self._in_danger())}
        ends: dict[PartitionId, int] = {}
        for one in self.world.machines.values():
            broker = broker_on(one)
            if broker is None or one.name in unsafe:
                continue
            for partition in broker.node.partitions.values():
                if not partition.offline_reason:
                    known = ends.get(partition.partition_id, 0)
                    ends[partition.partition_id] = max(known, partition.log.log_end_offset)
        state = self._newest()
        if state is None or any(
            ends.get(one.partition_id, 0) < self.committed_end(one.partition_id)
            for _, one in state.partitions()
        ):
            return False
        self.lossy[machine.name] = None
        return True

    def leading(self) -> list[Machine]:
        """Return the machines that lead the metadata group or a partition, as they believe."""
        return [
            machine
            for machine in self.world.machines.values()
            if (broker := broker_on(machine)) is not None
            and (
                broker.consensus.is_leader
                or any(
                    partition.role is Role.LEADER for partition in broker.node.partitions.values()
                )
            )
        ]

    def _damaged(self, but: Machine | None) -> list[Machine]:
        """Return machines with damage still in use, except one."""
        machines = self.world.machines.values()
        return [machine for machine in machines if machine is not but and machine.files.is_damaged]

    def _in_danger(self) -> list[Machine]:
        """Return the healthy machines that may lose data by faults in progress."""
        machines = self.world.machines.values()
        return [
            machine for machine in machines if machine.files.is_damaged or machine.files.is_losing
        ]

    def _newest(self) -> ClusterState | None:
        """Return the newest metadata applied by any broker, including killed ones."""
        states = [state_on(machine) for machine in self.world.machines.values()]
        known = [state for state in (*states, self._applied) if state is not None]
        return max(known, key=lambda state: state.applied_index, default=None)

    def _is_whole(self, state: ClusterState) -> bool:
        """Return whether every replica of every partition is in sync, in its present session."""
        if any(
            (own := broker_on(machine)) is None or not own.is_ready
            for machine in self.world.machines.values()
        ):
            return False
        return all(set(one.isr) == set(one.replicas) for _, one in state.partitions())

    def _is_group_well_without(self, machine: Machine) -> bool:
        """Return whether each other machine runs, votes with its present disk, and is in sync."""
        brokers = [broker_on(one) for one in self.world.machines.values()]
        leading = [one for one in brokers if one is not None and one.consensus.is_leader]
        leader = max(leading, key=lambda one: one.consensus.term, default=None)
        if leader is None:
            return False
        voters = {voter.broker for voter in leader.consensus.voters}
        # A learner whose disk it already refuses is not needed, however few vote.
        is_missed = machine.name in voters or broker_on(machine) is not None
        if is_missed and len(voters) < 3:
            return False
        core = leader.consensus.core
        learners = [
            learner for learner in leader.consensus.learners if learner.broker != machine.name
        ]
        if not core.log.is_configuration_committed or learners:
            return False
        for other in self.world.machines.values():
            if other is machine:
                continue
            broker = broker_on(other)
            if broker is None or not broker.is_ready or other.is_paused:
                return False
            match = leader.consensus.match(broker.me)
            if broker.me not in leader.consensus.voters or match is None or match < core.log.commit:
                return False
        return True


def _least_min_isr(state: ClusterState) -> int:
    """Return smallest minimum in sync of all partitions."""
    return min(
        (effective_min_isr(stream, one) for stream, one in state.partitions()), default=sys.maxsize
    )


def _is_commit(state: ClusterState) -> bool:
    """Return whether every stream has had fsync policy `commit` since its creation."""
    return all(
        stream.policy.fsync_policy is FsyncPolicy.COMMIT and stream.policy.fsync_index == 0
        for stream in state.streams.values()
    )
