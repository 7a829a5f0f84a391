"""Unclean recovery: which partitions need it, whom to ask, whom to choose (C10, KIP-966).

The metadata leader asks; what it heard travels in the command, and `decide` checks it. Nothing in
here is remembered: a new metadata leader asks again.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from liftbridge_broker.controller.commands import RecoverUnclean, ReplicaAnswer
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId
from liftbridge_broker.model.streams import MILLISECOND_NS, UncleanMode

OTHERS_NS: Final = 3_000 * MILLISECOND_NS
"""Time for the answers of those that are asked but not required."""

ABSENT_NS: Final = 60_000 * MILLISECOND_NS
"""Time for replicas that are not alive to come back, when those complete last have lost records."""


class Inquiry(NamedTuple):
    """A partition that the controller may recover by itself, and whom it must ask.

    Attributes:
        partition_id: The partition.
        partition_epoch: Epoch at which it needs recovery.
        mode: `balanced` or `proactive`.
        required: Brokers that are waited for, however long: all that were complete last
            (`balanced`), or none. They may be fenced.
        asked: Brokers to ask for the end of their logs: those required, and every replica that
            is alive, which is waited for during some time only.
        replicas: All replicas, whose order decides among equal logs.
    """

    partition_id: PartitionId
    partition_epoch: MetadataIndex
    mode: UncleanMode
    required: tuple[BrokerId, ...]
    asked: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]


def inquiries(state: ClusterState) -> Iterator[Inquiry]:
    """Partitions without a leader that the mode of their stream lets the controller recover."""
    for stream, partition in state.partitions():
        mode = stream.unclean_mode
        if partition.leader is not None or mode is UncleanMode.MANUAL:
            continue
        required: tuple[BrokerId, ...] = ()
        if mode is UncleanMode.BALANCED:
            required = partition.last_known_elr
            if partition.isr or partition.elr or not required:
                continue
        asked = tuple(
            one
            for one in partition.replicas
            if one in required or not state.brokers[one].fenced  # guard C10.others
        )
        if asked:
            yield Inquiry(
                partition.partition_id,
                partition.partition_epoch,
                mode,
                required,
                asked,
                partition.replicas,
            )


def conclude(
    inquiry: Inquiry, answers: Sequence[ReplicaAnswer], *, asked_ns: int, needed_ns: int
) -> RecoverUnclean | None:
    """The command that an inquiry leads to; `None` while it must go on.

    Args:
        inquiry: What was asked.
        answers: What brokers told, one each.
        asked_ns: Time since they were asked.
        needed_ns: Time since the partition was first found to need recovery.
    """
    heard = tuple(one for one in answers if one.broker in inquiry.asked)
    silent = set(inquiry.asked).difference(one.broker for one in heard)
    if silent and (asked_ns < OTHERS_NS or not silent.isdisjoint(inquiry.required)):
        return None
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


def _is_kept(inquiry: Inquiry, answers: Sequence[ReplicaAnswer], chosen: BrokerId) -> bool:
    """Whether one of those that were complete last holds records, and no less than the chosen."""
    told = _positions(answers)
    position = told[chosen]
    return position[1] > 0 and any(told.get(one) == position for one in inquiry.required)


def _may_return(inquiry: Inquiry, needed_ns: int) -> bool:
    """Whether a replica that is not alive, and may hold what others lost, is waited for."""
    is_absent = any(one not in inquiry.asked for one in inquiry.replicas)
    return is_absent and inquiry.mode is UncleanMode.BALANCED and needed_ns < ABSENT_NS


def best_answer(
    answers: Sequence[ReplicaAnswer], replicas: tuple[BrokerId, ...]
) -> BrokerId | None:
    """The replica with the latest epoch and then the longest log; the first of equals.

    One whose log is damaged does not count: it could serve nothing of it, and would keep
    others from being elected. `None` when there is no other.
    """
    told = _positions(answers)
    known = [one for one in replicas if one in told]
    return max(known, key=lambda one: told[one], default=None)


def _positions(answers: Sequence[ReplicaAnswer]) -> dict[BrokerId, tuple[int, int]]:
    """Last epoch and log end offset of each replica whose log is not damaged."""
    return {
        one.broker: (one.last_epoch, one.log_end_offset)
        for one in answers
        if not one.is_damaged  # guard C10.damaged
    }
