"""Members of the metadata group, and the state of their brokers in the metadata."""

from liftbridge_broker.controller.state import ClusterState
from liftbridge_broker.model.ids import BrokerId
from liftbridge_broker.model.metadata_log import Peer
from liftbridge_broker.ports.metadata import MetadataConsensus


def is_alive(state: ClusterState, peer: Peer) -> bool:
    """Return whether a member's broker is registered from that directory and not fenced."""
    known = state.brokers.get(peer.broker)
    return known is not None and not known.fenced and known.data_dir_id == peer.data_dir_id


def furthest_voter(
    state: ClusterState, group: MetadataConsensus, *, besides: Peer
) -> BrokerId | None:
    """Return the eligible voter with the highest match index, except `besides`, or `None`."""
    others: list[tuple[int, str]] = []
    for peer in group.voters:
        known = state.brokers.get(BrokerId(peer.broker))
        if peer != besides and known is not None and known.can_lead and is_alive(state, peer):
            others.append((group.match(peer) or 0, peer.broker))
    return BrokerId(max(others)[1]) if others else None
