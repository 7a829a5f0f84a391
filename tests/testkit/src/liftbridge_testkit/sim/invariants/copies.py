"""Compare replicas with each other (I2, I4, I6, I9, I21), in the true global state.

Leader epoch and offset identify a record (`contents`), so logs are compared by the start offsets of
their epochs. A check follows each change of a replica in a turn, and each change of the metadata.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId, stream_of
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import FsyncPolicy
from liftbridge_broker.node.node import Node
from liftbridge_broker.node.partition.partition import Partition
from liftbridge_broker.node.partition.roles import Role
from liftbridge_testkit.sim.broken import BrokenInvariantError
from liftbridge_testkit.sim.broker import ClusterBroker
from liftbridge_testkit.sim.cluster_atlas import broker_on
from liftbridge_testkit.sim.invariants.replication import Look, ReplicationRules, TrueLog
from liftbridge_testkit.sim.machine import Machine
from liftbridge_testkit.sim.world import Watcher, World

Runs = list[tuple[int, int]]
CLEAN = "stopped"


class _Copy(NamedTuple):
    """A replica with its broker."""

    machine: Machine
    broker: ClusterBroker
    partition: Partition


class CopyRules(Watcher):
    """Checks each replica that changed, and each partition whose metadata changed."""

    def __init__(self, world: World, rules: ReplicationRules) -> None:
        """Observe the changes that `rules` reports."""
        self._world = world
        self._rules = rules
        self._seen_index = MetadataIndex(0)
        self._states: dict[PartitionId, PartitionState] = {}
        self._versions: dict[tuple[BrokerId, int, PartitionId], int] = {}
        self._fetched: set[tuple[BrokerId, int, PartitionId, int]] = set()
        self._is_unclean: dict[BrokerId, bool] = {}
        self._opened: set[BrokerId] = set()
        rules.listeners.append(self._on_changed)

    def on_process_end(self, machine: Machine, reason: str, lost_bytes: int) -> None:
        """Note an unclean end of a process.

        A process that ended before it opened its directory left the directory unchanged.
        """
        del lost_bytes
        if machine.name in self._opened:
            self._opened.remove(machine.name)
            self._is_unclean[machine.name] = reason != CLEAN

    def on_transition(self, machine: Machine, kind: str, fields: Mapping[str, object]) -> None:
        """Note the processes that opened their directories."""
        del fields
        if kind == "data_directory_opened":
            self._opened.add(machine.name)

    def on_turn(self, machine: Machine) -> None:
        """Check the metadata with which a process started."""
        self.on_applied(machine)

    def on_applied(self, machine: Machine) -> None:
        """Check partitions whose newest metadata changed."""
        del machine
        newest = self._rules.newest
        # A broker changes its state in place.
        if newest is None or newest.applied_index == self._seen_index:
            return
        self._seen_index = newest.applied_index
        for _, state in newest.partitions():
            before = self._states.get(state.partition_id)
            if state != before:
                self._states[state.partition_id] = state
                self._check_members(newest, state, before)

    def _copies(self, partition_id: PartitionId) -> Iterator[_Copy]:
        """Yield the replicas at brokers that have a session and did not give the replica up."""
        for machine in self._world.machines.values():
            broker = broker_on(machine)
            if broker is None or broker.registration is None:
                continue
            partition = broker.node.partitions.get(partition_id)
            if partition is not None and not partition.offline_reason:
                yield _Copy(machine, broker, partition)

    # -- metadata changed ---------------------------------------------------------------------

    def _check_members(
        self, newest: ClusterState, state: PartitionState, before: PartitionState | None
    ) -> None:
        true = self._rules.logs.get(state.partition_id)
        electable = {*state.isr, *state.elr}
        for copy in self._copies(state.partition_id):
            name = copy.machine.name
            if name not in electable or len(state.replicas) == 1:
                continue
            own = newest.brokers.get(name)
            is_ours = own is not None and own == copy.broker.registration
            if own is None or not is_ours:
                continue
            # Records that are synced before they count survive any end of a process. The broker
            # does not report whether that held all the time: I2 compares the records.
            policy = newest.streams[stream_of(state.partition_id)].policy.fsync_policy
            is_unclean = self._is_unclean.get(name, False) and policy is not FsyncPolicy.COMMIT
            if is_unclean and state.partition_epoch <= own.broker_epoch:
                raise BrokenInvariantError(
                    "I4", f"{name} restarted uncleanly and is electable since before: {state}"
                )
            if true is not None and not state.is_recovering:
                self._check_complete(copy, true, state)
                has_joined = before is not None and name in state.isr and name not in before.isr
                if has_joined and state.leader_epoch == (before and before.leader_epoch):
                    self._check_joined(copy, state)

    @staticmethod
    def _check_complete(copy: _Copy, true: TrueLog, state: PartitionState) -> None:
        """Check I2, except after an unclean election whose leader has not begun to serve."""
        end = copy.partition.log.log_end_offset
        is_unsettled = true.is_unsettled or state.unclean_epoch > true.unclean_epoch
        if end < true.high_watermark and not is_unsettled:
            raise BrokenInvariantError(
                "I2",
                f"{copy.machine.name} is electable with {end} records, "
                f"{true.high_watermark} are committed: {state}",
            )

    def _check_joined(self, copy: _Copy, state: PartitionState) -> None:
        """Check I9: a joining replica has all records that its leader had when it began to lead."""
        for other in self._copies(state.partition_id):
            partition = other.partition
            if partition.role is Role.LEADER and partition.leader_epoch == state.leader_epoch:
                start = epoch_start(other.broker.node, partition)
                if start is not None and copy.partition.log.log_end_offset < start:
                    raise BrokenInvariantError(
                        "I9",
                        f"{copy.machine.name} joined with {copy.partition.log.log_end_offset} "
                        f"records, its leader began with {start}: {state}",
                    )

    # -- a replica changed --------------------------------------------------------------------

    def _on_changed(
        self,
        machine: Machine,
        broker: ClusterBroker,
        partition: Partition,
        before: Look | None,
        look: Look,
    ) -> None:
        state = self._states.get(partition.partition_id)
        if state is None or state.unclean_epoch:
            return
        key = (machine.name, machine.incarnation, partition.partition_id)
        version = partition.log.epochs.version
        copy = _Copy(machine, broker, partition)
        if self._versions.get(key) != version:
            self._versions[key] = version
            for other in self._copies(partition.partition_id):
                if other.machine is not machine:
                    self._check_prefixes(copy, other)
        if before is None or not before.role is look.role is Role.FOLLOWER:
            return  # its writes as a leader in the same turn were not fetched
        if look.log_end > before.log_end:
            epoch = followed_epoch(broker.node, partition)
            first = (*key, epoch)
            if epoch and first not in self._fetched:
                self._fetched.add(first)
                self._check_fetched(copy, epoch)

    @staticmethod
    def _check_prefixes(one: _Copy, other: _Copy) -> None:
        """Check I6."""
        base = max(one.partition.log.log_start_offset, other.partition.log.log_start_offset)
        ours, theirs = runs_of(one.partition), runs_of(other.partition)
        ends = {epoch: end for epoch, _, end in _with_ends(theirs, other.partition)}
        starts = dict(theirs)
        for epoch, start, end in reversed(_with_ends(ours, one.partition)):
            if epoch not in starts:
                continue
            if min(end, ends[epoch]) <= max(start, starts[epoch], base):
                continue
            mine = [run for run in ours if run[0] <= epoch and run[1] > base]
            if mine != [run for run in theirs if run[0] <= epoch and run[1] > base]:
                raise BrokenInvariantError(
                    "I6",
                    f"{one.machine.name} and {other.machine.name} share records of leader epoch "
                    f"{epoch} and differ before: {ours} and {theirs}",
                )
            return

    def _check_fetched(self, copy: _Copy, epoch: int) -> None:
        """Check I21."""
        partition = copy.partition
        for other in self._copies(partition.partition_id):
            led = other.partition
            if led.role is not Role.LEADER or led.leader_epoch != epoch:
                continue
            end = partition.log.log_end_offset
            base = max(partition.log.log_start_offset, led.log.log_start_offset)
            ours = [run for run in runs_of(partition) if base < run[1] < end]
            theirs = [run for run in runs_of(led) if base < run[1] < end]
            if ours != theirs or end > led.log.log_end_offset:
                raise BrokenInvariantError(
                    "I21",
                    f"{copy.machine.name} fetched from {other.machine.name} and differs: {ours} "
                    f"up to {end}, {theirs} up to {led.log.log_end_offset}",
                )


def runs_of(partition: Partition) -> Runs:
    """Return (leader epoch, first offset) of each run of records."""
    return [(int(epoch), int(start)) for epoch, start in partition.log.epochs.entries]


def _with_ends(runs: Runs, partition: Partition) -> list[tuple[int, int, int]]:
    """Return runs with the offset behind their last record."""
    ends = [*(start for _, start in runs[1:]), int(partition.log.log_end_offset)]
    return [(epoch, start, ends[at]) for at, (epoch, start) in enumerate(runs)]


def followed_epoch(node: Node, partition: Partition) -> int:
    """Return the leader epoch that a follower fetches in; 0 when this broker does not follow."""
    cluster = node.cluster
    following = None if cluster is None else cluster.replicas.following.get(partition.partition_id)
    return 0 if following is None else int(following.core.state.leader_epoch)


def epoch_start(node: Node, partition: Partition) -> int | None:
    """Return the state found by a new leader; `None` when this broker no longer leads."""
    cluster = node.cluster
    if cluster is None:
        return None
    leading = cluster.replicas.leading.get(partition.partition_id)
    return None if leading is None else int(leading.core.leader_epoch_start)


def check_latest_told(node: Node, partition: Partition) -> None:
    """Check I9: no leader returns a latest offset before it knows the committed end.

    Raises:
        BrokenInvariantError: It returned one too early.
    """
    start = epoch_start(node, partition)
    if start is not None and partition.log.high_watermark < start:
        raise BrokenInvariantError(
            "I9",
            f"{partition.stream}/{partition.number} told the latest offset with high watermark "
            f"{partition.log.high_watermark}, its leader began with {start}",
        )
