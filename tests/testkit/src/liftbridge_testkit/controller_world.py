"""The controller alone: commands in, answers out, invariants checked after each of them."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from liftbridge_broker.controller.commands import (
    FEATURE_LEVEL,
    MEMBER_ALREADY,
    AlterPartition,
    CancelReassignment,
    Command,
    CreateStream,
    FenceBroker,
    IsrMember,
    RegisterBroker,
    UnfenceBroker,
)
from liftbridge_broker.controller.decide import decide
from liftbridge_broker.controller.records import (
    BrokerEpochAnswer,
    Decision,
    Done,
    StreamIdAnswer,
)
from liftbridge_broker.controller.replay import apply
from liftbridge_broker.controller.state import (
    ClusterState,
    StreamState,
    effective_min_isr,
)
from liftbridge_broker.errors import LiftbridgeError
from liftbridge_broker.model.ids import (
    BrokerId,
    MetadataIndex,
    PartitionId,
    PartitionNumber,
    StreamName,
    partition_id,
)
from liftbridge_broker.model.partitions import PartitionState
from liftbridge_broker.model.streams import StreamOverrides
from liftbridge_testkit.controller_promises import Promises


def brokers_of(names: str) -> tuple[BrokerId, ...]:
    """Broker ids of one letter each."""
    return tuple(BrokerId(name) for name in names)


def broken_partition(
    state: ClusterState, stream: StreamState, partition: PartitionState
) -> list[str]:
    """Return the faults of a partition by I11; empty for none.

    Args:
        state: Applied metadata.
        stream: Stream of the partition.
        partition: The partition.
    """
    replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.elr)
    known = set(partition.last_known_elr)
    claims = {
        "replicas are distinct": len(replicas) == len(partition.replicas) > 0,
        "isr and elr are disjoint": not isr & elr,
        "a last known replica is in neither": not known & (isr | elr),
        "all are replicas": isr | elr | known | set(partition.target) <= replicas,
        "what is added is wanted": set(partition.adding) <= set(partition.target),
        "the leader is in sync": partition.leader is None or partition.leader in isr,
        "all are on brokers of the cluster": all(
            replica in state.brokers and not state.brokers[replica].removed for replica in replicas
        ),
        "who is about to stop is in sync only where nobody else can lead": not any(
            state.brokers[one].in_controlled_shutdown for one in isr
        )
        or not any(state.brokers[one].can_lead for one in isr),
        "nobody in sync is fenced": not any(state.brokers[one].fenced for one in isr),
        "no pool beside a full set": len(isr) < effective_min_isr(stream, partition)
        or not elr | known,
        "somebody in sync leads": partition.leader is not None or not isr,
        "a recovering leader is alone": not partition.is_recovering or len(isr) <= 1,
        "epochs are in order": partition.unclean_epoch
        <= partition.leader_epoch
        <= partition.partition_epoch
        <= state.applied_index,
        "each replica has a session": len(partition.replica_epochs) == len(replicas)
        and max(partition.replica_epochs) <= partition.partition_epoch,
        "order is that of the replicas": all(
            members == tuple(replica for replica in partition.replicas if replica in members)
            for members in (
                partition.isr, partition.elr, partition.last_known_elr, partition.adding
            )
        ),
    }  # fmt: skip
    return [claim for claim, holds in claims.items() if not holds]


def broken_epochs(before: PartitionState, after: PartitionState) -> list[str]:
    """Return the faults of a step of a partition by I17: epochs never decrease."""
    claims = {
        "leader epoch rises": after.leader_epoch >= before.leader_epoch,
        "partition epoch rises": after.partition_epoch >= before.partition_epoch,
        "another leader has another epoch": after.leader in (before.leader, None)
        or after.leader_epoch > before.leader_epoch,
        "a change has another epoch": after == before
        or after.partition_epoch > before.partition_epoch,
        "sessions rise": all(
            (after.replica_epoch(one) or epoch) >= epoch
            for one, epoch in zip(before.replicas, before.replica_epochs, strict=True)
        ),
    }
    return [claim for claim, holds in claims.items() if not holds]


@dataclass(slots=True)
class ControllerWorld:
    """A state that commands are applied to.

    Attributes:
        state: Applied metadata.
        guarded: Partitions that had as many in-sync replicas as a commit needs, since that number
            was set; I12 is about those.
    """

    state: ClusterState = field(default_factory=ClusterState)
    guarded: set[PartitionId] = field(default_factory=set)
    promises: Promises = field(default_factory=Promises)
    _min_isrs: dict[PartitionId, int] = field(default_factory=dict)

    # Commands.

    @property
    def index(self) -> int:
        """Index of the last command, as a number that any epoch may be compared with."""
        return self.state.applied_index

    def decide(self, command: Command) -> Decision:
        """Return the outcome that a command would have now."""
        return decide(self.state, MetadataIndex(self.state.applied_index + 1), command)

    def apply(self, command: Command) -> Decision:
        """Apply a command and check the invariants."""
        before = {one.partition_id: one for _, one in self.state.partitions()}
        epochs = {one.broker: one.broker_epoch for one in self.state.brokers.values()}
        decision = apply(self.state, MetadataIndex(self.state.applied_index + 1), command)
        if isinstance(command, CancelReassignment) and command.is_unclean:
            # Whoever asks for it agrees to what is lost with the replicas that were added.
            self.guarded.discard(command.partition_id)
        self._check(before)
        broken = self.promises.check(self.state, command)
        assert broken == [], f"{broken}: {command}"
        for broker, epoch in epochs.items():
            assert self.state.brokers[broker].broker_epoch >= epoch
        return decision

    def ok(self, command: Command) -> object:
        """Apply a command that must not be refused; its answer."""
        answer = self.apply(command).answer
        assert not isinstance(answer, LiftbridgeError), answer
        return answer

    def refused(self, command: Command) -> str:
        """Return the code that a command is refused with, without any change."""
        before = deepcopy(self.state)
        decision = self.apply(command)
        assert decision.records == ()
        assert isinstance(decision.answer, LiftbridgeError), decision.answer
        before.applied_index, before.chain = self.state.applied_index, self.state.chain
        assert self.state == before
        return decision.answer.code

    # Brokers.

    def register(self, name: str, **given: object) -> MetadataIndex:
        """Begin a session; the broker stays fenced. `given` replaces fields of the command."""
        command = RegisterBroker(
            broker=BrokerId(name),
            incarnation_id=f"run-{self.state.applied_index}",
            data_dir_id=f"disk-{name}",
            feature_level=FEATURE_LEVEL,
        )
        answer = self.ok(replace(command, **given))  # type: ignore[arg-type]  # names of fields
        assert isinstance(answer, BrokerEpochAnswer)
        return answer.broker_epoch

    def unfence(self, name: str) -> None:
        """Let a broker lead again."""
        answer = self.apply_unfencing(name).answer
        assert answer == Done(), answer

    def apply_unfencing(self, name: str) -> Decision:
        """Return the outcome of the command that unfences a broker."""
        return self.apply(
            UnfenceBroker(
                broker=BrokerId(name),
                broker_epoch=self.epoch(name),
                applied_index=self.state.applied_index,
            )
        )

    def fence(self, name: str) -> None:
        """End the session of a broker for silence."""
        self.ok(FenceBroker(broker=BrokerId(name), broker_epoch=self.epoch(name)))

    def start(self, names: str, **given: object) -> None:
        """Register brokers of one letter each and unfence them."""
        for name in names:
            self.register(name, **given)
        for name in names:
            self.unfence(name)

    def restart(self, name: str, *, is_clean: bool) -> None:
        """A broker stops, comes back and is unfenced."""
        marker = self.epoch(name) if is_clean else 0
        self.register(name, previous_broker_epoch=marker)
        self.unfence(name)

    def epoch(self, name: str) -> MetadataIndex:
        """Return the current session of a broker."""
        return self.state.brokers[BrokerId(name)].broker_epoch

    # Partitions.

    def create(
        self, factor: int = 3, *, name: str = "foo", partitions: int = 1, **overrides: object
    ) -> PartitionId:
        """Create a stream; the id of its first partition."""
        given = StreamOverrides(**overrides)  # type: ignore[arg-type]  # names of fields
        answer = self.ok(
            CreateStream(
                name=StreamName(name),
                subject=name,
                replication_factor=factor,
                partitions=partitions,
                overrides=given,
            )
        )
        assert isinstance(answer, StreamIdAnswer)
        return partition_id(answer.stream_id, PartitionNumber(0))

    def get(self, number: PartitionId) -> PartitionState:
        """Return a partition that exists."""
        found = self.state.partition(number)
        assert found is not None
        return found

    def alteration(
        self, number: PartitionId, names: Sequence[str], **given: object
    ) -> AlterPartition:
        """Return the request of the leader of a partition for this in-sync set."""
        partition = self.get(number)
        assert partition.leader is not None
        members = tuple(
            IsrMember(one, MEMBER_ALREADY)
            if one in partition.isr
            else IsrMember(one, partition.replica_epoch(one) or 0)
            for one in map(BrokerId, names)
        )
        command = AlterPartition(
            broker=partition.leader,
            broker_epoch=self.epoch(partition.leader),
            partition_id=number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=members,
        )
        return replace(command, **given)  # type: ignore[arg-type]  # names of fields

    def alter(self, number: PartitionId, names: Sequence[str]) -> object:
        """Let the leader change the in-sync set."""
        return self.ok(self.alteration(number, names))

    def pools(self, number: PartitionId) -> tuple[str, str, str, str]:
        """Return in-sync set, eligible and last known replicas, and leader, as text."""
        found = self.get(number)
        return (
            "".join(found.isr),
            "".join(found.elr),
            "".join(found.last_known_elr),
            found.leader or "",
        )

    # Invariants.

    def _check(self, before: dict[PartitionId, PartitionState]) -> None:
        for stream, partition in self.state.partitions():
            number = partition.partition_id
            assert broken_partition(self.state, stream, partition) == [], partition
            if number in before:
                assert broken_epochs(before[number], partition) == [], partition
            self._check_recovery_quorum(stream, partition)

    def _check_recovery_quorum(self, stream: StreamState, partition: PartitionState) -> None:
        """I12: a partition without complete replicas knows as many as a commit needed."""
        number = partition.partition_id
        min_isr = effective_min_isr(stream, partition)
        if self._min_isrs.get(number) != min_isr:
            self.guarded.discard(number)
        self._min_isrs[number] = min_isr
        if len(partition.isr) >= min_isr:
            self.guarded.add(number)
        if number in self.guarded and not partition.isr and not partition.elr:
            assert len(partition.last_known_elr) >= min_isr, partition
