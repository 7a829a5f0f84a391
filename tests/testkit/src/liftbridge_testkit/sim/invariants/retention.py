"""Check that retention removes nothing that a cursor protects (I25), in true state.

The client that sets the cursor knows the bound: no replica may begin beyond the greatest offset
ever sent, unless a log exceeded its size limit. Then a leader with such a log may have moved its
log start, and the other replicas follow it.
"""

from collections.abc import Callable
from typing import NamedTuple

from liftbridge_broker.model.ids import BrokerId, PartitionId
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.broker import ClusterBroker
from liftbridge_testkit.sim.cluster_atlas import broker_on
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.invariants.replication import Look, ReplicationRules
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher


class Promise(NamedTuple):
    """Promise for a stream with a cursor.

    Attributes:
        told: Greatest offset ever sent or stored for its cursor.
        bytes_max: Size of the log beyond which the cursor is ignored; 0 for never.
    """

    told: Callable[[PartitionId], int]
    bytes_max: int = 0


class HeldBack(Watcher):
    """Checks every replica of a stream with a cursor that changed in a turn.

    Attributes:
        promises: Promises by name of the stream.
    """

    def __init__(self, rules: ReplicationRules, coverage: Coverage) -> None:
        """Observe the changes that `rules` reports."""
        self.promises: dict[str, Promise] = {}
        self._coverage = coverage
        self._passed: dict[PartitionId, int] = {}
        self._sizes: dict[tuple[BrokerId, PartitionId], int] = {}
        rules.listeners.append(self._on_changed)

    def on_turn(self, machine: Machine) -> None:
        """Keep the sizes of logs; called after the changes of a turn were checked."""
        broker = broker_on(machine) if self.promises else None
        if broker is None:
            return
        for partition in broker.node.partitions.values():
            if partition.stream in self.promises:
                key = (machine.name, partition.partition_id)
                self._sizes[key] = partition.log.size_bytes

    def _on_changed(
        self,
        machine: Machine,
        broker: ClusterBroker,
        partition: Partition,
        before: Look | None,
        look: Look,
    ) -> None:
        del broker
        promise = self.promises.get(partition.stream)
        if promise is None or (before is not None and before.log_start == look.log_start):
            return
        partition_id = partition.partition_id
        told, passed = promise.told(partition_id), self._passed.get(partition_id, 0)
        if look.log_start <= max(told, passed):
            if before is not None:
                self._coverage.count("world", "log start below a cursor moved")
            return
        size = self._sizes.get((machine.name, partition_id), 0)
        if promise.bytes_max and size > promise.bytes_max:
            self._passed[partition_id] = look.log_start
            self._coverage.count("world", "log start moved past a cursor")
            return
        raise BrokenInvariantError(
            "I25",
            f"{machine.name}, {partition.stream}/{partition.number}: begins at {look.log_start}, "
            f"its cursor was never set beyond {told}, {size} bytes were kept, "
            f"limit {promise.bytes_max or 'none'}",
        )
