"""Bounds the wait of a stopping broker for a metadata leader, which may never be elected."""

from collections.abc import Sequence
from typing import Final

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.model.units import MILLISECOND_NS
from liftbridge_broker.raft.quorum import majority

LEADERLESS_NS: Final = 5_000 * MILLISECOND_NS
"""Wait while other voters may elect a leader (C13)."""

HOPELESS_NS: Final = 1_000 * MILLISECOND_NS
"""Wait while the voters that do not stop are no majority: a running election may still end."""


def leader_wait_ns(state: ClusterState, voters: Sequence[Peer], me: BrokerId) -> int:
    """Longest time without a leader after which a broker stops without handing over.

    When all brokers stop at once, no majority remains. The applied metadata show that the other
    brokers stop, and waiting for them would only delay this stop.

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
