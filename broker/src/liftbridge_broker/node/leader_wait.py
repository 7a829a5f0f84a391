"""How long a broker that stops waits for a leader of the metadata group, which nobody may be."""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.streams import MILLISECOND_NS
from liftbridge_broker.raft.quorum import majority
from liftbridge_broker.raft.types import Peer

LEADERLESS_NS: Final = 5_000 * MILLISECOND_NS
"""Wait while others may elect one (replication 1.15)."""

HOPELESS_NS: Final = 1_000 * MILLISECOND_NS
"""Wait while too few voters are left that do not stop: an election under way may still end."""


def leader_wait_ns(state: ClusterState, voters: Sequence[Peer], me: BrokerId) -> int:
    """Longest time without a leader after which a broker stops without handing over.

    When all brokers are stopped at once, their votes are gone for good: what the applied metadata
    tell of the others says so, and waiting for them would only delay the stop.

    Args:
        state: Applied metadata.
        voters: Voters of the metadata group.
        me: The broker that stops; it still votes.
    """
    staying = sum(
        peer.broker == me
        or ((known := state.brokers.get(BrokerId(peer.broker))) is not None and known.can_lead)
        for peer in voters
    )
    return LEADERLESS_NS if staying >= majority(len(voters)) else HOPELESS_NS
