"""The metadata of a single broker, on files in memory."""

from collections.abc import Sequence
from itertools import count
from random import Random

from liftbridge_broker.adapters.memory.files import MemoryFiles
from liftbridge_broker.model.ids import BrokerId, Instant
from liftbridge_broker.model.metadata_log import Configuration, Peer
from liftbridge_broker.node.metadata.consensus import RaftConsensus
from liftbridge_broker.node.metadata.opening import open_member
from liftbridge_broker.node.peers.peer_link import NoPeers, PeerLink, unsigned_sessions
from liftbridge_broker.ports.files import Token
from liftbridge_broker.ports.metadata import (
    Committed,
    MetadataEvent,
    ProposalToken,
    RecoveredMetadata,
    Urgency,
)
from liftbridge_broker.storage.raft_log.log import SNAPSHOTS_KEPT

SYNC_TOKEN = Token(7)
PEER = Peer(BrokerId("broker-1"), "data-dir-1")
START = Instant(0)
_LIVES = count(1)


def open_lone(
    files: MemoryFiles,
    *,
    sync_token: Token = SYNC_TOKEN,
    index_min: int = 0,
    snapshots_kept: int = SNAPSHOTS_KEPT,
    now: Instant = START,
) -> tuple[RaftConsensus, RecoveredMetadata]:
    """Open the log of the only voter; it leads after two syncs."""
    life = next(_LIVES)
    member = open_member(
        files,
        PEER,
        PeerLink(NoPeers(), unsigned_sessions(PEER.broker, f"run-{life}")),
        origin=life.to_bytes(16, "big"),
        sync_token=sync_token,
        rng=Random(life),
        now=now,
        bootstrap=Configuration((PEER,)),
        index_min=index_min,
        snapshots_kept=snapshots_kept,
    )
    return member.consensus, member.recovered


def pump(files: MemoryFiles, consensus: RaftConsensus) -> list[MetadataEvent]:
    """Run syncs until none is left, and take all events."""
    events = [*consensus.take_events()]
    while files.calls.waiting:
        for event in files.calls.pump():
            consensus.on_file_event(event)
        events += consensus.take_events()
    return events


def propose(consensus: RaftConsensus, token: int, urgency: Urgency = Urgency.ORDINARY) -> None:
    """Propose `command <token>`."""
    consensus.propose(ProposalToken(token), b"command %d" % token, urgency)


def commit(files: MemoryFiles, consensus: RaftConsensus, *tokens: int) -> int:
    """Propose commands and wait until all are committed; return the index of the last entry."""
    for token in tokens:
        propose(consensus, token)
    committed = [event for event in pump(files, consensus) if isinstance(event, Committed)]
    assert [event.token for event in committed if event.token] == list(tokens)
    return committed[-1].entry_index


def commands_of(recovered: RecoveredMetadata | Sequence[MetadataEvent]) -> list[bytes]:
    """Return the commands among recovered entries or events."""
    found = recovered.entries if isinstance(recovered, RecoveredMetadata) else recovered
    return [one.command for one in found if isinstance(one, Committed) and one.command]
