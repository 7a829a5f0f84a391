"""A leader's view of the members, for operators."""

from typing import NamedTuple

from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.raft.leader import Leader
from liftbridge_broker.raft.log import Log
from liftbridge_broker.raft.progress import ProgressState


class PeerStatus(NamedTuple):
    """The leader's status of a member.

    Attributes:
        match: Last index known to be durable at the member.
        state: Replication mode; `None` for the leader itself.
        silent_ns: Time since its last answer.
        snapshot_position: Bytes of a snapshot sent so far, if one is being sent.
    """

    peer: Peer
    is_voter: bool
    match: int
    state: ProgressState | None
    silent_ns: int
    snapshot_position: int


def peer_statuses(me: Peer, leading: Leader, log: Log, now: int) -> tuple[PeerStatus, ...]:
    """Return the status of all members, voters first."""
    voters, learners = log.membership.latest
    statuses = []
    for peer in voters + learners:
        is_voter = peer in voters
        if peer == me:
            statuses.append(PeerStatus(peer, is_voter, log.durable, None, 0, 0))
            continue
        progress = leading.progress[peer]
        silent_ns = now - progress.heard_at
        statuses.append(
            PeerStatus(peer, is_voter, progress.match, progress.state, silent_ns, progress.position)
        )
    return tuple(statuses)
