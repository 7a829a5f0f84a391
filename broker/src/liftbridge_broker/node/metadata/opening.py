"""Opens this broker's member of the metadata group: its log, and the consensus on it."""

from typing import Final, NamedTuple

from liftbridge_broker.model.ids import Instant
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.node.metadata.consensus import DEFAULT_RAFT_OPTIONS, RaftConsensus
from liftbridge_broker.node.peers.peer_link import PeerLink
from liftbridge_broker.ports.files import Files, Token
from liftbridge_broker.ports.metadata import RecoveredMetadata
from liftbridge_broker.ports.rng import Rng
from liftbridge_broker.raft.configuration import EMPTY
from liftbridge_broker.raft.options import RaftOptions
from liftbridge_broker.storage.raft_log.log import SNAPSHOTS_KEPT, RaftLog

METADATA_DIRECTORY: Final = "metadata"


class Member(NamedTuple):
    """An opened member of the metadata group.

    Attributes:
        log: Its log, read-only for all other code.
        consensus: The member.
        recovered: The metadata that the log is certain to hold.
    """

    log: RaftLog
    consensus: RaftConsensus
    recovered: RecoveredMetadata


def open_member(
    files: Files,
    me: Peer,
    link: PeerLink,
    *,
    origin: bytes,
    sync_token: Token,
    rng: Rng,
    now: Instant,
    bootstrap: Configuration = EMPTY,
    index_min: int = 0,
    snapshots_kept: int = SNAPSHOTS_KEPT,
    options: RaftOptions = DEFAULT_RAFT_OPTIONS,
) -> Member:
    """Open the log of a data directory and the consensus on it; may submit the first sync at once.

    Args:
        files: The data directory.
        me: This broker with its data directory.
        link: Sends messages to other brokers.
        origin: 16 random bytes, unique to this process.
        sync_token: Token of every sync of the log; its events go to the consensus.
        rng: Random source for election timeouts.
        now: Time of the start.
        bootstrap: First configuration of an empty directory; empty for a broker that a leader adds.
        index_min: An index that other files prove to have been durable and committed.
        snapshots_kept: Number of snapshots to keep.
        options: Times and bounds.

    Raises:
        CorruptionError: The log is damaged, or contradicts itself.
        FilesError: The disk reported an error.
    """
    log = RaftLog.open(
        files,
        directory=METADATA_DIRECTORY,
        bootstrap=bootstrap,
        index_min=index_min,
        snapshots_kept=snapshots_kept,
    )
    consensus, recovered = RaftConsensus.open(
        log,
        me,
        link,
        origin=origin,
        sync_token=sync_token,
        rng=rng,
        now=now,
        options=options,
    )
    return Member(log, consensus, recovered)
