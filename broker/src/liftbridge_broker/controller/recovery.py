"""Unclean recovery.

Partitions that need it, brokers to query, choice of the replica (C10, KIP-966).

The metadata leader queries the brokers; the command carries the answers, and `decide` checks them.
This module keeps no state: a new metadata leader queries again.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from liftbridge_broker.controller.commands import RecoverUnclean, ReplicaAnswer
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId
from liftbridge_broker.model.streams import UncleanMode
from liftbridge_broker.model.units import MILLISECOND_NS

OTHERS_NS: Final = 3_000 * MILLISECOND_NS
"""Time to wait for answers of replicas that are queried but not required."""

ABSENT_NS: Final = 60_000 * MILLISECOND_NS
"""Time to wait for dead replicas, when the last complete replicas have lost records."""


class Inquiry(NamedTuple):
    """A partition that the controller may recover, and the brokers that it must ask.

    Attributes:
        partition_id: The partition.
        partition_epoch: Epoch at which it needs recovery.
        mode: `balanced` or `proactive`.
        last_known: Replicas that were last complete; they may be fenced.
        asked: Brokers to query for the end of their logs: the required brokers, and every live
            replica, for a limited time.
        replicas: All replicas, whose order decides among equal logs.
    """

    partition_id: PartitionId
    partition_epoch: MetadataIndex
    mode: UncleanMode
    last_known: tuple[BrokerId, ...]
    asked: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]

    @property
    def required(self) -> tuple[BrokerId, ...]:
        """Brokers to wait for without limit: those last complete (`balanced`), or none."""
        return self.last_known if self.mode is UncleanMode.BALANCED else ()


def inquiries(state: ClusterState) -> Iterator[Inquiry]:
    """Yield partitions without a leader that their stream's mode lets the controller recover."""
    for stream, partition in state.partitions():
        mode = stream.unclean_mode
        if partition.leader is not None or mode is UncleanMode.MANUAL:
            continue
        last_known = partition.last_known_elr
        required: tuple[BrokerId, ...] = ()
        if mode is UncleanMode.BALANCED:
            required = last_known
            if partition.isr or partition.elr or not required:
                continue
        asked = tuple(
            replica
            for replica in partition.replicas
            if replica in required or not state.brokers[replica].fenced  # guard C10.others
        )
        if asked:
            yield Inquiry(
                partition.partition_id,
                partition.partition_epoch,
                mode,
                last_known,
                asked,
                partition.replicas,
            )


def conclude(
    inquiry: Inquiry, answers: Sequence[ReplicaAnswer], *, asked_ns: int, needed_ns: int
) -> RecoverUnclean | None:
    """Return the command that an inquiry leads to, `None` while it must continue.

    Args:
        inquiry: The inquiry.
        answers: Reports of brokers, one each.
        asked_ns: Time since they were asked.
        needed_ns: Time since the partition was first found to need recovery.
    """
    heard = tuple(answer for answer in answers if answer.broker in inquiry.asked)
    silent = set(inquiry.asked).difference(one.broker for one in heard)
    if silent and (asked_ns < OTHERS_NS or not silent.isdisjoint(inquiry.required)):
        return None
    heard = _without_branches(inquiry, heard)
    chosen = best_answer(heard, inquiry.replicas)
    if chosen is None:
        return None
    if not _is_kept(inquiry, heard, chosen) and _may_return(inquiry, needed_ns):  # guard C10.absent
        return None
    return RecoverUnclean(
        partition_id=inquiry.partition_id,
        chosen=chosen,
        partition_epoch=inquiry.partition_epoch,
        mode=inquiry.mode,
        answers=heard,
    )


def _without_branches(
    inquiry: Inquiry, answers: tuple[ReplicaAnswer, ...]
) -> tuple[ReplicaAnswer, ...]:
    """Leave out replicas that know a later epoch than those last complete, but hold no more.

    The leader of that epoch committed nothing. A complete replica may know only earlier epochs: its
    records were committed later, under a leader that added none. Had it known the later epoch and
    lost it, it would hold less than a replica with records of that epoch.
    """
    positions = _positions(answers)
    complete = [positions[one] for one in inquiry.last_known if one in positions]
    if not complete:
        return answers
    epoch, end = max(complete)
    return tuple(
        answer
        for answer in answers
        if answer.broker in inquiry.last_known
        or answer.last_epoch <= epoch
        or answer.log_end_offset > end  # guard C10.branch
    )


def _is_kept(inquiry: Inquiry, answers: Sequence[ReplicaAnswer], chosen: BrokerId) -> bool:
    """Return whether a last complete replica holds records, and no less than the chosen one."""
    positions = _positions(answers)
    position = positions[chosen]
    return position[1] > 0 and any(positions.get(one) == position for one in inquiry.required)


def _may_return(inquiry: Inquiry, needed_ns: int) -> bool:
    """Return whether to wait for a dead replica that may hold records lost by other replicas."""
    is_absent = any(replica not in inquiry.asked for replica in inquiry.replicas)
    return is_absent and inquiry.mode is UncleanMode.BALANCED and needed_ns < ABSENT_NS


def best_answer(
    answers: Sequence[ReplicaAnswer], replicas: tuple[BrokerId, ...]
) -> BrokerId | None:
    """Return the replica with the latest epoch, then the longest log; the first of equals.

    A replica with a damaged log does not count: it could not serve, and would prevent the election
    of another. `None` when no other is left.
    """
    positions = _positions(answers)
    known = [replica for replica in replicas if replica in positions]
    return max(known, key=lambda one: positions[one], default=None)


def _positions(answers: Sequence[ReplicaAnswer]) -> dict[BrokerId, tuple[int, int]]:
    """Return last epoch and log end offset of each replica with an undamaged log."""
    return {
        answer.broker: (answer.last_epoch, answer.log_end_offset)
        for answer in answers
        if not answer.is_damaged  # guard C10.damaged
    }
