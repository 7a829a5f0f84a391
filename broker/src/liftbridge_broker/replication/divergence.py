"""Truncation point of a follower's log that diverges from its leader's (KIP-101, 279, 320, 595)."""

from liftbridge_broker.model.ids import LeaderEpoch, Offset
from liftbridge_broker.replication.views import Epochs


def truncation_target(
    epochs: Epochs, log_end_offset: Offset, diverging: tuple[LeaderEpoch, Offset]
) -> Offset | None:
    """Return the new end of a follower's log after its leader found a divergence (F3).

    Every round strictly lowers the follower's last epoch or, within one, its end; several may be
    needed, because each side sends only one epoch at a time.

    Args:
        epochs: Epochs of the follower's log.
        log_end_offset: Its end.
        diverging: Largest epoch that the leader knows which is not above the follower's last one,
            and where it ends there.

    Returns:
        The new end, which may lie below the follower's log start; `None` when an honest leader
        cannot have sent this, so that following it would not converge.
    """
    leader_epoch, leader_end = diverging
    last = epochs.latest
    local = epochs.end_offset_for(leader_epoch, log_end_offset)
    if last is None or local is None:
        return None
    if leader_epoch == last and leader_end >= log_end_offset:  # guard F3.progress
        return None
    # Also where the follower does not know that epoch (Kafka then takes its own end alone):
    # from the leader's end on the leader has later epochs than the follower below its own.
    return min(local[1], leader_end)  # guard F3.min
