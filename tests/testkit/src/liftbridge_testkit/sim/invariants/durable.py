"""Check that a reported epoch is in the journal on disk (I23), in true state.

A leader that served before its epoch was durable, or a follower that reported a position in such an
epoch, could lose the epoch in a power cut. It would then take part in elections and truncations
without it (KIP-101).
"""

from liftbridge_broker.model.ids import BrokerId, LeaderEpoch, PartitionId
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_broker.storage.directory import JOURNAL
from liftbridge_broker.storage.journal import parse_journal
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.broker import ClusterBroker
from liftbridge_testkit.sim.invariants.replication import Look, ReplicationRules
from liftbridge_testkit.sim.machine import Machine

_Key = tuple[BrokerId, int, PartitionId]


class DurableEpochs:
    """Checks leaders that begin to serve, and followers that wrote the first record of an epoch."""

    def __init__(self, rules: ReplicationRules) -> None:
        """Observe the changes that `rules` reports."""
        self._served: set[tuple[_Key, int]] = set()
        self._latest: dict[_Key, LeaderEpoch | None] = {}
        rules.listeners.append(self._on_changed)

    def _on_changed(
        self,
        machine: Machine,
        broker: ClusterBroker,
        partition: Partition,
        before: Look | None,
        look: Look,
    ) -> None:
        key = (machine.name, machine.incarnation, partition.partition_id)
        latest = partition.log.epochs.latest
        # An epoch without records may be lost: a leader replaced in the turn of its election leaves
        # one after its last record.
        has_records = latest is not None and partition.log.epochs.entries[-1][1] < look.log_end
        is_new = has_records and self._latest.get(key) != latest
        if has_records:
            self._latest[key] = latest
        if look.role is Role.LEADER:
            serving = (key, look.leader_epoch)
            if serving not in self._served and partition.replication is not None:
                self._check(machine, partition, LeaderEpoch(look.leader_epoch), "serves")
                self._served.add(serving)
        elif before is not None and is_new and look.log_end > before.log_end:
            cluster = broker.node.cluster
            assert cluster is not None
            following = cluster.replicas.following.get(partition.partition_id)
            if following is not None and not following.is_held and latest is not None:
                self._check(machine, partition, latest, "tells a position")

    @staticmethod
    def _check(machine: Machine, partition: Partition, epoch: LeaderEpoch, what: str) -> None:
        files = machine.files
        loaded = parse_journal(files.durable_content(JOURNAL) if files.exists(JOURNAL) else b"")
        state = loaded.states.get(partition.partition_id)
        if loaded.damaged_count or (state is not None and epoch in dict(state.epochs)):
            return
        held = None if state is None else state.epochs
        raise BrokenInvariantError(
            "I23",
            f"{machine.name} {what} in epoch {epoch} of {partition.partition_id}, "
            f"its journal holds {held}",
        )
