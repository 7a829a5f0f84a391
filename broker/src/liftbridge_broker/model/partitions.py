"""A partition in the metadata: the state that the controller decides and replicas follow.

An immutable value. The controller creates new ones, the cores of replication adopt them. Names are
those of docs/spec/replication.md.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from liftbridge_broker.model.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataIndex,
    Offset,
    PartitionId,
    PartitionNumber,
    number_of,
)

NEVER_UNCLEAN: Final = LeaderEpoch(0)


class Copied(NamedTuple):
    """Offset that a copy of a compacted log must reach to lack nothing.

    Compaction at the leader removed records that later ones supersede. A copy that ends before
    those later ones has neither.

    Attributes:
        whole_from: Log end at which the copy holds every record that supersedes a removed one.
        leader_epoch: Epoch of the leader that last sent compacted records; 0 for none.
    """

    whole_from: Offset = Offset(0)
    leader_epoch: LeaderEpoch = LeaderEpoch(0)


NOT_COPIED: Final = Copied()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition.

    All sets of brokers but `target` are kept in the order of `replicas`, so that equal states have
    equal bytes.

    Invariants: `isr`, `elr`, `last_known_elr` and `adding` are subsets of `replicas`; `isr` and
    `elr` are disjoint; a leader is a member of `isr`; `target` is a subset of `replicas`
    and holds all of `adding`; a partition that is recovering has no follower in sync;
    `unclean_epoch` <= `leader_epoch` <= `partition_epoch`; `replica_epochs` has a place for each
    of `replicas`; `auto_paused` implies `paused`.

    Attributes:
        partition_id: Unique id, never reused.
        replicas: Assigned brokers, the preferred leader first; those being added last.
        isr: In-sync set.
        elr: Eligible leader replicas (KIP-966): complete when they left an in-sync set that was
            below its minimum, so they may lead when no replica is in sync.
        last_known_elr: Replicas that would be in `elr` if they had not stopped uncleanly.
        target: Replicas after the reassignment in progress, the preferred leader first; empty
            when there is none.
        adding: Replicas that the reassignment in progress added.
        leader: Present leader, `None` when no replica can lead.
        leader_epoch: Metadata index of the last election.
        partition_epoch: Metadata index of the last change.
        unclean_epoch: Leader epoch of the last election that may have lost records; 0 for never.
        is_recovering: Whether the leader of such an election has not started its work yet.
        replica_epochs: Session of each replica, by its place in `replicas`: metadata index of
            the owner's registration, of the replica's addition or of its declaration as
            unclean, the latest of them.
        paused: Whether intake is stopped.
        auto_paused: Whether the leader paused it for idleness.
        readonly: Whether publishes are refused.
    """

    partition_id: PartitionId
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    partition_epoch: MetadataIndex
    replica_epochs: tuple[MetadataIndex, ...]
    elr: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    target: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    unclean_epoch: LeaderEpoch = NEVER_UNCLEAN
    is_recovering: bool = False
    paused: bool = False
    auto_paused: bool = False
    readonly: bool = False

    @property
    def number(self) -> PartitionNumber:
        """Number within the stream."""
        return number_of(self.partition_id)

    @property
    def is_reassigning(self) -> bool:
        """Return whether a reassignment is in progress."""
        return bool(self.target)

    @property
    def removing(self) -> tuple[BrokerId, ...]:
        """Replicas that leave when the reassignment in progress is complete."""
        if not self.target:
            return ()
        return tuple(replica for replica in self.replicas if replica not in self.target)

    @property
    def replication_factor(self) -> int:
        """Replica count without those that a reassignment is still adding."""
        return len(self.replicas) - len(self.adding)

    def replica_epoch(self, broker: BrokerId) -> MetadataIndex | None:
        """Session of a replica; `None` when the broker holds none."""
        if broker not in self.replicas:
            return None
        return self.replica_epochs[self.replicas.index(broker)]
