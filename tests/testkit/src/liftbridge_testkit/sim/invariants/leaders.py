"""Check that a new leader has a log that readers may start with, from its files.

This module decodes the files, so a wrong state of the log object does not hide an error.
"""

from fnmatch import fnmatchcase

from liftbridge_broker.model.ids import PartitionId
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_testkit.sim.broker import ClusterBroker
from liftbridge_testkit.sim.disk import LOG_FILES
from liftbridge_testkit.sim.history import FinalLog, History, Record
from liftbridge_testkit.sim.invariants.contents import batches_of, frames_of, range_of
from liftbridge_testkit.sim.invariants.replication import Look, ReplicationRules
from liftbridge_testkit.sim.machine import Machine


class LeaderLogs:
    """Gives the checkers the log of each new leader of a compacted stream."""

    def __init__(self, history: History, rules: ReplicationRules) -> None:
        """Observe the changes that `rules` reports."""
        self._history = history
        rules.listeners.append(self._on_changed)

    def _on_changed(
        self,
        machine: Machine,
        broker: ClusterBroker,
        partition: Partition,
        before: Look | None,
        look: Look,
    ) -> None:
        del broker
        was = None if before is None else (before.role, before.leader_epoch)
        begins = look.role is Role.LEADER and was != (look.role, look.leader_epoch)
        # A damaged batch does not show its records.
        if begins and partition.options.compact_enabled and not machine.files.is_damaged:
            self._history.check_leader(self._log(machine, partition, look))

    def _log(self, machine: Machine, partition: Partition, look: Look) -> FinalLog:
        records: list[Record] = []
        end = look.log_start
        pattern = f"{partition.log.directory}/{LOG_FILES}"
        for path in sorted(path for path in machine.files.paths() if fnmatchcase(path, pattern)):
            for batch in batches_of(machine.files.content(path)):
                end = range_of(batch)[1]
                records += self._history.frames.records(frames_of(batch))
        return FinalLog(
            PartitionId(partition.partition_id),
            look.log_start,
            min(end, look.high_watermark),
            [record for record in records if record.offset >= look.log_start],
            is_compacted=True,
        )
