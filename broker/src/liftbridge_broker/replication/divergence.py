"""Truncation point of a follower's log that diverges from its leader's (KIP-101, 279, 320, 595)."""

from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.ports.replica_log import Epochs


def truncation_target(
    epochs: Epochs, log_end_offset: Offset, diverging: tuple[LeaderEpoch, Offset]
) -> Offset | None:
    """Return the new end of a follower's log after its leader found a divergence (F3).

    Each round strictly lowers the follower's last epoch or, within an epoch, its log end. Several
    rounds may be needed, because each side sends only one epoch at a time.

    Args:
        epochs: Epochs of the follower's log.
        log_end_offset: Its end.
        diverging: Largest epoch known to the leader that is not above the follower's last epoch,
            and its end offset in the leader's log.

    Returns:
        The new end, which may be below the follower's log start; `None` for an answer that no
        correct leader sends, with which truncation would not converge.
    """
    leader_epoch, leader_end = diverging
    last = epochs.latest
    local = epochs.end_offset_for(leader_epoch, log_end_offset)
    if last is None or local is None:
        return None
    if leader_epoch == last and leader_end >= log_end_offset:  # guard F3.progress
        return None
    # This also holds if the follower does not know that epoch (Kafka then uses only the follower's
    # end): from its end offset of that epoch on, the leader has later epochs than the follower.
    return min(local[1], leader_end)  # guard F3.min
