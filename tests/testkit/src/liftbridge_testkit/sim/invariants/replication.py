"""Check replicas of a partition in true state (I1 to I3, I5, I7, I8, I14, I15, I20, I22).

`TrueLog` contains the committed records: up to the highest high watermark of any legitimate leader,
with the leader epoch of each record. Two records with the same offset and leader epoch are equal,
because only one broker appends in an epoch (I14). So comparing epochs compares records; `contents`
compares the bytes when they are written. Only changes of a turn are checked.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from liftbridge_broker.controller.state import ClusterState, effective_min_isr
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, Offset, PartitionId
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.broker import ClusterBroker
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World


class Look(NamedTuple):
    """State of one replica after its last turn; `epochs` counts changes of its epochs."""

    role: Role
    leader_epoch: int
    log_end: int
    high_watermark: int
    epochs: int
    log_start: int


Changed = Callable[[Machine, ClusterBroker, Partition, Look | None, Look], None]


@dataclass(slots=True)
class TrueLog:
    """Committed records of one partition.

    Attributes:
        high_watermark: End of it.
        runs: (first offset, leader epoch) of each run of equal epochs, rising.
        leaders: Leader of each epoch.
        unclean_epoch: Last unclean election that was seen.
        is_unsettled: Whether there has been no leader since that election.
    """

    high_watermark: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    leaders: dict[int, BrokerId] = field(default_factory=dict)
    unclean_epoch: int = 0
    is_unsettled: bool = False

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of a committed record."""
        return next(epoch for start, epoch in reversed(self.runs) if start <= offset)

    def commit(self, end: int, epoch_at: Callable[[int], int]) -> None:
        """Note that the records between the present end and `end` are committed."""
        for offset in range(self.high_watermark, end):
            epoch = epoch_at(offset)
            if not self.runs or self.runs[-1][1] != epoch:
                self.runs.append((offset, epoch))
        self.high_watermark = end

    def give_up(self, log_start: int, log_end: int, epoch_at: Callable[[int], int]) -> None:
        """Drop committed records that the leader of an unclean election lacks."""
        end = min(self.high_watermark, log_end)
        kept = range(log_start, end)
        found = (offset for offset in kept if epoch_at(offset) != self.epoch_at(offset))
        self.high_watermark = next(found, end)
        self.runs = [run for run in self.runs if run[0] < self.high_watermark]


class ReplicationRules(Watcher):
    """Checks every replica that changed in a turn.

    Attributes:
        logs: The true log of each partition.
        newest: The newest applied metadata of any broker.
        listeners: Called for each replica that changed in a turn.
    """

    def __init__(self, world: World, broker_on: Callable[[Machine], ClusterBroker | None]) -> None:
        self.logs: dict[PartitionId, TrueLog] = {}
        self.newest: ClusterState | None = None
        self.listeners: list[Changed] = []
        self._newest_index = MetadataIndex(0)
        self._world = world
        self._broker_on = broker_on
        self._looks: dict[tuple[BrokerId, int, PartitionId], Look] = {}

    def on_applied(self, machine: Machine) -> None:
        """Keep the newest metadata."""
        broker = self._broker_on(machine)
        if broker is not None and broker.node.state.applied_index > self._newest_index:
            self.newest = broker.node.state
            self._newest_index = self.newest.applied_index

    def on_turn(self, machine: Machine) -> None:
        """Check the changes on this machine."""
        broker = self._broker_on(machine)
        if broker is None:
            return
        self.on_applied(machine)
        for partition in broker.node.partitions.values():
            log = partition.log
            look = Look(
                partition.role,
                partition.leader_epoch,
                log.log_end_offset,
                log.high_watermark,
                log.epochs.version,
                log.log_start_offset,
            )
            key = (machine.name, machine.incarnation, partition.partition_id)
            before = self._looks.get(key)
            if look != before and not partition.offline_reason:
                self._looks[key] = look
                self._check(machine, broker, partition, before, look)
                for listen in self.listeners:
                    listen(machine, broker, partition, before, look)

    def committed_end(self, partition: PartitionId) -> int:
        """Return the offset that follows the last committed record of a partition."""
        found = self.logs.get(partition)
        return 0 if found is None else found.high_watermark

    def _true(self, partition: PartitionId) -> TrueLog:
        found = self.logs.get(partition)
        if found is None:
            found = self.logs[partition] = TrueLog()
        return found

    def _newest_of(self, partition: PartitionId) -> PartitionState | None:
        return None if self.newest is None else self.newest.partition(partition)

    def _check(
        self,
        machine: Machine,
        broker: ClusterBroker,
        partition: Partition,
        before: Look | None,
        look: Look,
    ) -> None:
        true = self._true(partition.partition_id)
        where = f"{machine.name}, {partition.stream}/{partition.number}"
        if look.high_watermark > look.log_end:
            raise BrokenInvariantError("I7", f"{where}: high watermark beyond the end: {look}")
        if before is None or look.epochs != before.epochs or look.log_end < before.log_end:
            self._check_epochs(where, partition)
        newest = self._newest_of(partition.partition_id)
        if newest is not None and newest.unclean_epoch > true.unclean_epoch:
            self._on_unclean(true, newest)
        if look.role is Role.LEADER:
            self._check_leader(machine, broker, partition, before, look)
        if before is not None and look.log_end < before.log_end:
            self._on_truncated(where, machine, true, newest, before, look)
        self._check_committed(where, partition, before, look, true)

    @staticmethod
    def _check_epochs(where: str, partition: Partition) -> None:
        """Check I15."""
        last = (-1, -1)
        for epoch, start in partition.log.epochs.entries:
            if epoch <= last[0] or start < last[1] or start > partition.log.log_end_offset:
                raise BrokenInvariantError(
                    "I15",
                    f"{where}: epoch cache {partition.log.epochs.entries}, "
                    f"log end {partition.log.log_end_offset}",
                )
            last = (epoch, start)

    def _on_unclean(self, true: TrueLog, newest: PartitionState) -> None:
        """Note an unclean election: committed records may be cut to those of its leader."""
        true.unclean_epoch = newest.unclean_epoch
        true.is_unsettled = True
        self._world.coverage.rare("unclean election of a partition in use")

    def _check_leader(
        self,
        machine: Machine,
        broker: ClusterBroker,
        partition: Partition,
        before: Look | None,
        look: Look,
    ) -> None:
        true = self._true(partition.partition_id)
        where = f"{machine.name}, {partition.stream}/{partition.number}"
        other = true.leaders.setdefault(look.leader_epoch, machine.name)
        if other != machine.name:
            raise BrokenInvariantError(
                "I14", f"{where}: {other} leads leader epoch {look.leader_epoch} as well"
            )
        is_new = before is None or before.role is not Role.LEADER
        is_new = is_new or (before is not None and before.leader_epoch != look.leader_epoch)
        is_latest = look.leader_epoch == max(true.leaders)
        # It may have been elected again, in another epoch, before it began to serve.
        if is_new and true.is_unsettled and look.leader_epoch >= true.unclean_epoch:
            true.is_unsettled = False
            log = partition.log
            start = log.log_start_offset
            true.give_up(start, look.log_end, lambda at: log.epochs.epoch_at(Offset(at)) or 0)
        if is_new and is_latest and look.log_end < true.high_watermark:
            raise BrokenInvariantError(
                "I1",
                f"{where}: leads epoch {look.leader_epoch} with {look.log_end} records, "
                f"{true.high_watermark} are committed",
            )
        if before is not None and not is_new and look.high_watermark < before.high_watermark:
            raise BrokenInvariantError(
                "I7", f"{where}: high watermark of a leader fell: {before}, then {look}"
            )
        self._check_maximal(where, broker, partition, look)

    def _check_maximal(
        self, where: str, broker: ClusterBroker, partition: Partition, look: Look
    ) -> None:
        """Check I3 and I20."""
        cluster = broker.node.cluster
        newest = self._newest_of(partition.partition_id)
        if cluster is None or newest is None or newest.leader_epoch != look.leader_epoch:
            return
        leading = cluster.replicas.leading.get(partition.partition_id)
        if leading is None or self.newest is None:
            return
        core = leading.core
        maximal = set(core.maximal_isr)
        if not maximal >= set(core.state.isr):
            raise BrokenInvariantError(
                "I20", f"{where}: maximal set {core.maximal_isr}, in sync {core.state.isr}"
            )
        found = next((stream for stream, one in self.newest.partitions() if one is newest), None)
        if found is None or len(newest.isr) < effective_min_isr(found, newest):
            return
        wanted = {*newest.isr, *newest.elr}
        if not maximal >= wanted:
            raise BrokenInvariantError(
                "I3", f"{where}: maximal set {core.maximal_isr}, electable {sorted(wanted)}"
            )

    def _on_truncated(
        self,
        where: str,
        machine: Machine,
        true: TrueLog,
        newest: PartitionState | None,
        before: Look,
        look: Look,
    ) -> None:
        """Check I22."""
        self._world.coverage.count("world", "truncation")
        if newest is None or newest.unclean_epoch > true.unclean_epoch:
            return
        is_member = machine.name in newest.isr or machine.name in newest.elr
        if is_member and look.log_end < true.high_watermark and not newest.is_recovering:
            raise BrokenInvariantError(
                "I22",
                f"{where}: electable, cut from {before.log_end} to {look.log_end}, "
                f"{true.high_watermark} are committed",
            )

    def _check_committed(
        self,
        where: str,
        partition: Partition,
        before: Look | None,
        look: Look,
        true: TrueLog,
    ) -> None:
        """Check I5 and I8: records committed here are committed in true state."""
        log = partition.log
        start = max(0 if before is None else before.high_watermark, log.log_start_offset)
        known = min(look.high_watermark, true.high_watermark)
        if (log.epochs.latest or 0) < true.unclean_epoch:
            # Records committed before an unclean election remain until the replica follows its
            # leader.
            known = start
        for offset in range(start, known):
            epoch = log.epochs.epoch_at(Offset(offset))
            if epoch != true.epoch_at(offset):
                raise BrokenInvariantError(
                    "I5",
                    f"{where}: record {offset} is of leader epoch {epoch}, committed was "
                    f"one of {true.epoch_at(offset)}",
                )
        if look.role is Role.LEADER and look.high_watermark > true.high_watermark:
            true.commit(look.high_watermark, lambda at: log.epochs.epoch_at(Offset(at)) or 0)
