"""Check the controller's state: valid (I11, I12), with epochs that only rise (I17).

All members have the same state after the same index (I16), so each index is checked once, at the
first member that applies it. Partitions are values, and only changed ones are checked.
"""

from collections.abc import Callable

from liftbridge_broker.controller.state import ClusterState, StreamState, effective_min_isr
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.coverage import Coverage
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.rare_partitions import count_partition
from liftbridge_testkit.sim.world import Watcher


class ControllerRules(Watcher):
    """Checks each new state once.

    Attributes:
        top: Highest index checked.
        states: Last state of each partition, deleted ones too: epochs are never reused.
    """

    def __init__(
        self, state_of: Callable[[Machine], ClusterState | None], coverage: Coverage
    ) -> None:
        self.top = 0
        self.states: dict[int, PartitionState] = {}
        self._broker_epochs: dict[str, int] = {}
        self._once_enough: dict[int, int] = {}
        self._state_of = state_of
        self._coverage = coverage

    def on_turn(self, machine: Machine) -> None:
        """Check the state of the member that had a turn: a process may start with a new one."""
        self.on_applied(machine)

    def on_applied(self, machine: Machine) -> None:
        """Check the state of a member that applied a change, if no member had applied it before."""
        state = self._state_of(machine)
        if state is None or state.applied_index <= self.top:
            return
        self.top = state.applied_index
        for stream, partition in state.partitions():
            before = self.states.get(partition.partition_id)
            if partition != before:
                self._check_partition(state, stream, partition)
                if before is not None:
                    self._check_epochs(before, partition)
                    count_partition(self._coverage, before, partition)
                self.states[partition.partition_id] = partition
        for broker in state.brokers.values():
            known = self._broker_epochs.get(broker.broker, 0)
            if broker.broker_epoch < known:
                raise BrokenInvariantError(
                    "I17", f"broker epoch of {broker.broker}: {known}, then {broker.broker_epoch}"
                )
            self._broker_epochs[broker.broker] = broker.broker_epoch

    def _check_partition(
        self, state: ClusterState, stream: StreamState, partition: PartitionState
    ) -> None:
        """Check I11 and I12."""
        replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.elr)
        brokers = state.brokers
        min_isr = effective_min_isr(stream, partition)
        claims = (
            (not isr & elr, "isr and elr have members in common"),
            (isr <= replicas, "isr has members that are no replicas"),
            (elr <= replicas, "elr has members that are no replicas"),
            (set(partition.adding) <= replicas, "adding has members that are no replicas"),
            (
                partition.leader is None or partition.leader in isr,
                "the leader is not in sync",
            ),
            (
                all(not brokers[broker].fenced for broker in partition.isr if broker in brokers),
                "a fenced broker is in sync",
            ),
            (not elr or len(isr) < min_isr, "elr though enough are in sync"),
        )
        for holds, text in claims:
            if not holds:
                raise BrokenInvariantError("I11", f"{text}: {partition}")
        if len(isr) >= min_isr:
            self._once_enough[partition.partition_id] = min_isr
        is_lost = not isr and not elr
        once = self._once_enough.get(partition.partition_id, 0)
        if is_lost and len(partition.last_known_elr) < min(min_isr, once):
            raise BrokenInvariantError("I12", f"nobody is left to recover from: {partition}")

    @staticmethod
    def _check_epochs(before: PartitionState, after: PartitionState) -> None:
        """Check I17."""
        for name in ("leader_epoch", "partition_epoch", "unclean_epoch"):
            if getattr(after, name) < getattr(before, name):
                raise BrokenInvariantError("I17", f"{name} fell: {before}, then {after}")
        for broker in after.replicas:
            old, new = before.replica_epoch(broker), after.replica_epoch(broker)
            if old is not None and new is not None and new < old:
                raise BrokenInvariantError(
                    "I17", f"replica epoch of {broker} fell: {before}, then {after}"
                )
        if after.leader != before.leader and after.leader_epoch == before.leader_epoch:
            raise BrokenInvariantError("I14", f"another leader in one epoch: {before}, {after}")
