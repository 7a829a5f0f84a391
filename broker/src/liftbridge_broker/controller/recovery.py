"""Unclean recovery: which partitions need it, whom to ask, whom to choose (C10, KIP-966).

The metadata leader asks; what it heard travels in the command, and `decide` checks it. Nothing in
here is remembered: a new metadata leader asks again.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from liftbridge_broker.controller.commands import RecoverUnclean, ReplicaAnswer
from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId, MetadataIndex, PartitionId
from liftbridge_broker.model.streams import UncleanMode


class Inquiry(NamedTuple):
    """A partition that the controller may recover by itself, and whom it must ask.

    Attributes:
        partition_id: The partition.
        partition_epoch: Epoch at which it needs recovery.
        mode: `balanced` waits for all of `asked`, however long; `proactive` for some time only.
        asked: Brokers to ask for the end of their logs; they may be fenced.
        replicas: All replicas, whose order decides among equal logs.
    """

    partition_id: PartitionId
    partition_epoch: MetadataIndex
    mode: UncleanMode
    asked: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]


def inquiries(state: ClusterState) -> Iterator[Inquiry]:
    """Partitions without a leader that the mode of their stream lets the controller recover."""
    for stream, partition in state.partitions():
        mode = stream.unclean_mode
        if partition.leader is not None or mode is UncleanMode.MANUAL:
            continue
        asked = partition.last_known_elr
        if mode is UncleanMode.BALANCED and (partition.isr or partition.elr or not asked):
            continue
        if mode is UncleanMode.PROACTIVE:
            asked = tuple(one for one in partition.replicas if not state.brokers[one].fenced)
            if not asked:
                continue
        yield Inquiry(
            partition.partition_id, partition.partition_epoch, mode, asked, partition.replicas
        )


def conclude(
    inquiry: Inquiry, answers: Sequence[ReplicaAnswer], *, is_over: bool
) -> RecoverUnclean | None:
    """The command that an inquiry leads to; `None` while it must go on.

    Args:
        inquiry: What was asked.
        answers: What brokers told, one each.
        is_over: Whether a proactive inquiry has waited long enough for the others.
    """
    heard = tuple(one for one in answers if one.broker in inquiry.asked)
    is_complete = len(heard) == len(inquiry.asked)
    if not is_complete and not (is_over and inquiry.mode is UncleanMode.PROACTIVE):
        return None
    chosen = best_answer(heard, inquiry.replicas)
    if chosen is None:
        return None
    return RecoverUnclean(
        partition_id=inquiry.partition_id,
        chosen=chosen,
        partition_epoch=inquiry.partition_epoch,
        mode=inquiry.mode,
        answers=heard,
    )


def best_answer(
    answers: Sequence[ReplicaAnswer], replicas: tuple[BrokerId, ...]
) -> BrokerId | None:
    """The replica with the latest epoch and then the longest log; the first of equals."""
    told = {one.broker: (one.last_epoch, one.log_end_offset) for one in answers}
    known = [one for one in replicas if one in told]
    return max(known, key=lambda one: told[one], default=None)
